"""What TAB offers: words that an option knows, and the names of sinks and parts below a local base.

A remote base offers nothing, since TAB must not wait for a network; nor does one that cannot be read.
"""

from __future__ import annotations

import posixpath
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

# typer finds the context by this annotation, when it is called.
from typer import Context  # noqa: TC002

from partfile.errors import PartfileError
from partfile.recovery.inspect.places import Place, jobs_in
from partfile.stores.urls import SCHEME, local_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from partfile.recovery.inspect.files import KnownPart


def complete_word(words: Iterable[str]) -> Callable[[str], list[str]]:
    """What completes an option that takes one of some words."""

    def complete(incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return complete


def complete_uid(context: Context, incomplete: str) -> list[str]:
    """The names that ``--uid`` takes."""
    with suppress(PartfileError, OSError):
        place = _local_place(context)
        if place is not None:
            with place.opener(place.checkpoint_url, {}) as checkpoints:
                return [job.name for job in jobs_in(checkpoints) if job.name.startswith(incomplete)]
    return []


def complete_part(context: Context, incomplete: str) -> list[str]:
    """The names of unfinished parts, and of visible files and directories one level further than what was typed."""
    found = [part.path for part in _unfinished(context)]
    with suppress(PartfileError, OSError):
        place = _local_place(context)
        directory, _, beginning = incomplete.rpartition("/")
        if place is not None and ".." not in directory.split("/") and not directory.startswith("/"):
            entries = sorted(Path(local_path(place.base), directory).iterdir())
            named = [entry for entry in entries if entry.name.startswith(beginning)]
            visible = [entry for entry in named if not entry.name.startswith(("_", "."))]
            found += [posixpath.join(directory, entry.name) + ("/" if entry.is_dir() else "") for entry in visible]
    return [path for path in dict.fromkeys(found) if path.startswith(incomplete)]


def complete_staged_part(context: Context, incomplete: str) -> list[str]:
    """The names of parts that wait to be encoded, of which one can be set aside."""
    return [part.path for part in _unfinished(context) if part.is_staging_file and part.path.startswith(incomplete)]


def _unfinished(context: Context) -> list[KnownPart]:
    from partfile.recovery.inspect.files import read_base  # noqa: PLC0415 - TAB behind --uid needs none of it.

    with suppress(PartfileError, OSError):
        place = _local_place(context)
        if place is not None:
            with place.opener(place.checkpoint_url, {}) as checkpoints:
                return read_base(place, checkpoints).known.current
    return []


def _local_place(context: Context) -> Place | None:
    # Where the value of an option is still missing, what else was typed has not become an argument yet.
    path = context.params.get("path") or next(iter(context.args), None)
    checkpoint_dir = context.params.get("checkpoint_dir")
    schemes = [SCHEME.match(text) for text in (path, checkpoint_dir) if text]
    is_local = all(scheme is None or scheme[1].lower() == "file" for scheme in schemes)
    return Place(path, checkpoint_dir) if path and is_local else None
