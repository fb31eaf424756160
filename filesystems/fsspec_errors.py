"""From errors of fsspec's file systems to ours. Their text may hold what a client was given, so it is not passed on."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from partfile.filesystems.errors import (
    AlreadyExists,
    ConfigError,
    NotApplied,
    NotFound,
    OutcomeUnknown,
    PartfileError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_UNABLE = (NotImplementedError, TypeError)
"""It has no such call, or not with what it was given."""


@contextmanager
def translated(action: str, shown: str, *, changes: bool) -> Iterator[None]:
    """Raise what is raised inside as an error of ours.

    Args:
        action: What is done, for the message.
        shown: The URL of what it is done to.
        changes: Whether it changes anything: then a failure that says nothing may have done it.
    """
    try:
        yield
    except PartfileError:
        raise
    except FileNotFoundError:
        raise NotFound(f"{shown!r} is not there", path=shown) from None
    except FileExistsError:
        raise AlreadyExists(f"{shown!r} is there already", path=shown) from None
    except (PermissionError, NotADirectoryError, IsADirectoryError) as error:
        raise NotApplied(f"cannot {action} {shown!r}: {type(error).__name__}", path=shown) from None
    except _UNABLE as error:
        raise ConfigError(
            f"cannot {action} {shown!r}: its file system raised {_said(error)}",
            hint="A sink needs this: write to another file system, or install a later version of its client.",
        ) from None
    except Exception as error:  # noqa: BLE001 - each client has errors of its own; raised again as ours.
        kind = OutcomeUnknown if changes else NotApplied
        raise kind(f"cannot {action} {shown!r}: {_said(error)}", path=shown) from None


def _said(error: Exception) -> str:
    number = getattr(error, "errno", None) or getattr(error, "code", None) or getattr(error, "status_code", None)
    return f"{type(error).__name__} {number}" if isinstance(number, int | str) else type(error).__name__
