"""Final names of the files of a shared stage: one name in many buckets, but where two buckets may be one directory."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections import Counter
from typing import TYPE_CHECKING

from partfile.sink.naming import with_mark

if TYPE_CHECKING:
    from collections.abc import Iterable

_MARK_HEX_DIGITS = 8
_MARKED = re.compile(rf"(-[0-9a-f]{{8}}-[0-9]{{1,9}}-[0-9]{{1,18}})-x[0-9a-f]{{{_MARK_HEX_DIGITS}}}(?![0-9a-f])")


def clashing(buckets: Iterable[str]) -> frozenset[str]:
    """The buckets of a stage that some file system takes for one another: it ignores case, or how accents are spelt.

    Args:
        buckets: All of a stage, those that have their files among them: each start has to find the same ones.
    """
    folded = {bucket: _folded(bucket) for bucket in buckets}
    counts = Counter(folded.values())
    return frozenset(bucket for bucket, fold in folded.items() if counts[fold] > 1)


def own_name(name: str, bucket: str) -> str:
    """The name that a stage's file has in a bucket that clashes with another one.

    Args:
        name: The name of the stage.
        bucket: Where the file goes.
    """
    return with_mark(name, _mark(bucket))


def own_path(path: str) -> str:
    """The longest path that a file of a stage can have for one of its final name: as if its bucket clashed."""
    bucket, slash, name = path.rpartition("/")
    return f"{bucket}{slash}{own_name(name, bucket)}"


def unmarked(name: str) -> str:
    """What the files of one shared stage have in common: their final name without the mark of a bucket.

    To be compared with what comes of other names, since any suffix may look like a mark.
    """
    return _MARKED.sub(r"\1", name)


def _mark(bucket: str) -> str:
    return f"-x{hashlib.sha256(bucket.encode()).hexdigest()[:_MARK_HEX_DIGITS]}"


def _folded(path: str) -> str:
    """Equal for all paths that some file system holds for one.

    Case, composition and compatible forms are nothing to macOS, Windows and folding directories of ext4, which does not
    see characters that format nothing either; Windows drops dots and blanks at the end of a name.
    """
    plain = path.lower() if path.isascii() else _plain(path)
    return "/".join(step.rstrip(". ") for step in plain.split("/"))


def _plain(path: str) -> str:
    folded = unicodedata.normalize("NFKC", path).upper().casefold()
    return "".join(one for one in unicodedata.normalize("NFKC", folded) if not _is_ignored(one))


def _is_ignored(character: str) -> bool:
    return unicodedata.category(character) == "Cf" or "\ufe00" <= character <= "\ufe0f"
