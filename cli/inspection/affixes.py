"""What stands around the names of parts below a base, as the parts that checkpoints name show it. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from partfile.filesystems.tokens import TOKEN_HEX_DIGITS
from partfile.recovery.layout import DEFAULT_SIDECARS, SidecarNaming
from partfile.sink.naming import HIDING_PREFIXES, PartNaming

if TYPE_CHECKING:
    from collections.abc import Iterable

    from partfile.filesystems.port import PartHandle

_TOKEN = rf"\.[0-9a-f]{{{TOKEN_HEX_DIGITS}}}"
_REST = re.compile(rf"{_TOKEN}(.*)", re.DOTALL)
_TOKENS = re.compile(_TOKEN)


@dataclass(frozen=True, slots=True)
class StagedNaming:
    """What stands around the final name and the token in a staged name."""

    prefix: str
    suffix: str

    def final_of(self, name: str) -> str | None:
        """The final name of the part whose staged name this is; None if it is no such name, or that would be hidden."""
        found = re.fullmatch(rf"{re.escape(self.prefix)}([^_.].*){_TOKEN}{re.escape(self.suffix)}", name)
        return found[1] if found else None


_DEFAULTS = PartNaming()
DEFAULT_STAGED = (
    StagedNaming(_DEFAULTS.in_progress_prefix, _DEFAULTS.in_progress_suffix),
    StagedNaming(_DEFAULTS.pending_prefix, _DEFAULTS.pending_suffix),
)


def tokens_in(name: str) -> list[str]:
    """What in a name looks like the token of a staged file."""
    return _TOKENS.findall(name)


def sidecar_namings(parts: Iterable[PartHandle]) -> tuple[SidecarNaming, ...]:
    """The affixes that the parts' own sidecars have."""
    found: dict[SidecarNaming, None] = {}
    for part in parts:
        prefix, name, suffix = part.sidecar.partition(part.name)
        if name and prefix.startswith(("_", ".")):
            found[SidecarNaming(prefix, suffix)] = None
    found.pop(DEFAULT_SIDECARS, None)
    return (*found, DEFAULT_SIDECARS)


def staged_namings(parts: Iterable[PartHandle]) -> tuple[StagedNaming, ...]:
    """The affixes that the parts' own staged names have."""
    found: dict[StagedNaming, None] = {}
    for part in parts:
        for staged in (part.in_progress, part.pending):
            prefix, name, rest = staged.partition(part.name)
            match = _REST.fullmatch(rest)
            if name and match and prefix.startswith(HIDING_PREFIXES):
                found[StagedNaming(prefix, match[1])] = None
    return (*(one for one in found if one not in DEFAULT_STAGED), *DEFAULT_STAGED)
