"""The output of ``--json``: frozen models, their text in ASCII, exit codes, and the plan of a verb."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from pydantic import BaseModel, ConfigDict

from partfile.errors import (
    AlreadyExists,
    BucketValueError,
    ConfigError,
    LeaseUnavailable,
    NotFound,
    RecoveryRefused,
    StoreError,
    UnsupportedTypeError,
)


class Json(BaseModel):
    """Base of every document. Within one ``schema_version`` no field is removed or given another meaning."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def json_text(model: BaseModel, *, indent: int | None = None) -> str:
    """A document as JSON in ASCII alone: names are in it literally, and a terminal obeys none of it."""
    text = json.dumps(model.model_dump(mode="json", by_alias=True), indent=indent)
    return text.replace("\x7f", "\\u007f")


DONE = 0
FINDINGS = 1
USAGE = 2
UNREACHABLE = 3

_USAGE = (ConfigError, BucketValueError, UnsupportedTypeError, NotFound)
_REFUSED = (AlreadyExists, LeaseUnavailable)


def code_of(error: BaseException) -> int:
    """The exit code of a process that was ended by an error."""
    if isinstance(error, _USAGE):
        return USAGE
    if isinstance(error, StoreError | OSError) and not isinstance(error, _REFUSED):
        return UNREACHABLE
    return FINDINGS


_OPTIONS = ("checkpoint_dir", "restore_from", "storage_options")
_WORDS = ("cut",)
"""Options that are words as well: meant only where a value follows."""
_NAMES = "|".join((*_OPTIONS, *(f"{word}(?==)" for word in _WORDS)))
_NAMED = re.compile(rf"'(?:[^'\\]|\\.)*'|\b(?P<name>{_NAMES})\b(?P<value>=)?")
_MODEL = re.compile(r"^\w+Settings: ")
_SPELLED = {"storage_options": "--storage-option"}


def in_words_of_a_command(text: str) -> str:
    """A message or hint with ``--restore-from X`` for ``restore_from=X``, and so on; what is quoted stays."""
    return _NAMED.sub(_spelled, _MODEL.sub("", text))


def _spelled(match: re.Match[str]) -> str:
    name = match["name"]
    if name is None:
        return match[0]
    option = _SPELLED.get(name, f"--{name.replace('_', '-')}")
    return f"{option} " if match["value"] else option


DIGEST_DIGITS = 16


class Plan(Json):
    """The changes that a verb is about to make. Two plans of one digest do the same to the same state."""

    def decisions(self) -> dict[str, Any]:
        """The plan without facts of the moment it was made; the digest is made of it."""
        return self.model_dump(mode="json")

    @property
    def digest(self) -> str:
        """16 hexadecimal digits of the SHA-256 of the decisions."""
        text = json.dumps(self.decisions(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_DIGITS]


def check_same(planned: str, found: str) -> None:
    """Refuse a plan that is another one by now.

    Args:
        planned: The digest that was printed.
        found: That of the plan as it would be now.

    Raises:
        RecoveryRefused: They differ.
    """
    if planned != found:
        raise RecoveryRefused(
            f"the plan {planned} is not what would be done any more: by now it would be {found}",
            hint="Nothing of it was done. Run the command again without --apply to see the plan as it is now.",
        )
