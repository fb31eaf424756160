"""File names of Flink's BucketingSink: which part, which state, which sidecar. Pure."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from partfile.errors import ConfigError
from partfile.readers.files import FlinkSidecars, is_hidden
from partfile.recovery.documents import Json
from partfile.stores.base import PartHandle
from partfile.stores.paths import TOKEN_HEX_DIGITS, check_relative_path

FlinkRole = Literal["finished", "in-progress", "pending", "sidecar", "copied"]
"""copied: made or put aside by a store that cuts by a copy, under a staged name with a token."""

OWN_SUFFIX = ".partfile-adoption"
"""Of names that no file has: the sidecar that is never written, and the final name of a file that is only hidden."""

# Neither digits nor a hyphen may follow the counter: parts of partfile have one number more.
_NUMBERS = r"-[0-9]{1,10}-[0-9]{1,19}(?:[^-0-9/][^/]*)?"


_TOKEN = re.compile(rf"\.[0-9a-f]{{{TOKEN_HEX_DIGITS}}}$")


class FlinkFile(NamedTuple):
    """One file of a part."""

    role: FlinkRole
    final_name: str
    """Of the part that it is or belongs to."""


class FlinkNames(Json):
    """The affixes of a BucketingSink, with Flink's defaults."""

    part_prefix: str = "part"
    """The argument of setPartPrefix."""
    in_progress_prefix: str = "_"
    """The argument of setInProgressPrefix."""
    in_progress_suffix: str = ".in-progress"
    """The argument of setInProgressSuffix."""
    pending_prefix: str = "_"
    """The argument of setPendingPrefix."""
    pending_suffix: str = ".pending"
    """The argument of setPendingSuffix."""
    valid_length_prefix: str = "_"
    """The argument of setValidLengthPrefix."""
    valid_length_suffix: str = ".valid-length"
    """The argument of setValidLengthSuffix."""

    def role_of(self, name: str) -> FlinkFile | None:
        """The role of a file by its name; None if no such sink calls a file so."""
        for role, prefix, suffix in self._affixes():
            inner = name[len(prefix) : len(name) - len(suffix)]
            if name == f"{prefix}{inner}{suffix}" and self._is_part(inner):
                return FlinkFile(role, inner)
        if self._is_part(name):
            return FlinkFile("finished", name)
        staged = _TOKEN.sub("", name)
        found = self.role_of(staged) if staged != name else None
        return FlinkFile("copied", found.final_name) if found and found.role in {"pending", "in-progress"} else None

    def name_of(self, role: FlinkRole, final_name: str) -> str:
        """The name of a file of a part."""
        for one, prefix, suffix in self._affixes():
            if one == role:
                return f"{prefix}{final_name}{suffix}"
        return final_name

    def part(self, bucket: str, final_name: str, valid_length: int) -> PartHandle:
        """A part as a store commits it. Its sidecar is Flink's, which no store reads, so it has none here."""
        return PartHandle(
            bucket=bucket,
            name=final_name,
            in_progress=self.name_of("in-progress", final_name),
            pending=self.name_of("pending", final_name),
            sidecar=f"_{final_name}{OWN_SUFFIX}",
            valid_length=valid_length,
        )

    def check(self) -> None:
        """Refuse affixes by which files cannot be told apart.

        Raises:
            ConfigError: Files of two roles would be called alike, or readers would see one that is not finished.
        """
        example = f"{self.part_prefix}-0-0"
        called = [f"{prefix}{example}{suffix}" for _role, prefix, suffix in self._affixes()]
        for name in called:
            check_relative_path(name)
            if "/" in name or not is_hidden(name):
                raise ConfigError(
                    f"with these affixes a file that is not finished is called {name!r}, which readers would see",
                    hint="Only trees whose staged files begin with _ or . can be told apart safely. Pass the sink's "
                    "own affixes, as --affix pending-prefix=_",
                )
        if len({*called, example}) < len(called) + 1:
            raise ConfigError(
                f"with these affixes files of two kinds are called alike: {called}",
                hint="Give each kind its own, as --affix in-progress-suffix=.open --affix pending-suffix=.waiting",
            )

    @property
    def sidecars(self) -> FlinkSidecars:
        """The naming of its sidecars; raises ConfigError where they would not be hidden."""
        return FlinkSidecars(self.valid_length_prefix, self.valid_length_suffix)

    def _affixes(self) -> tuple[tuple[FlinkRole, str, str], ...]:
        return (
            ("in-progress", self.in_progress_prefix, self.in_progress_suffix),
            ("pending", self.pending_prefix, self.pending_suffix),
            ("sidecar", self.valid_length_prefix, self.valid_length_suffix),
        )

    def _is_part(self, name: str) -> bool:
        return re.fullmatch(re.escape(self.part_prefix) + _NUMBERS, name) is not None
