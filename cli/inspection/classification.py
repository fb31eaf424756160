"""What each file below a base is: finished, staged, orphan, sidecar, foreign. Pure; decides, and never looks.

Whoever deletes or repairs goes by this too, so a file that is not surely ours is foreign.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from partfile.cli.inspection.affixes import tokens_in
from partfile.filesystems.relative_paths import is_relative_path
from partfile.recovery.layout import is_hidden
from partfile.sink.naming import number_in, numbers_in
from partfile.snapshot.layout import is_temporary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from partfile.cli.inspection.knowledge import Knowledge, KnownPart
    from partfile.cli.inspection.places import Job
    from partfile.filesystems.port import StoredFile
    from partfile.sink.naming import PartNumber

FileKind = Literal[
    "finished",
    "staged",
    "orphan",
    "sidecar",
    "lone-sidecar",
    "temporary",
    "checkpoint",
    "unknown-chain",
    "foreign",
]

MEANING: dict[FileKind, str] = {
    "finished": "a finished part of a sink here",
    "staged": "a part that a retained checkpoint names, under a name from before it was finished; or a stage of one",
    "orphan": "a staged file of a sink here that no retained checkpoint names",
    "sidecar": "holds the valid length of a part that is there",
    "lone-sidecar": "holds the valid length of a part that is not there",
    "temporary": "a file that somebody was about to give its name",
    "checkpoint": "a checkpoint of a sink that keeps them below its base",
    "unknown-chain": "called like a part, but of a chain that no retained checkpoint here knows",
    "foreign": "nothing of a sink here",
}


@dataclass(frozen=True, slots=True)
class Classified:
    """One path and what it is."""

    path: str
    kind: FileKind
    job: Job | None = None
    """Whose it is, where that is known."""
    number: PartNumber | None = None
    """What its name says, of a part or a staged file of a known chain."""
    part: KnownPart | None = None
    """The part of a retained checkpoint that it is, or whose sidecar it is."""
    final_path: str | None = None
    """The part's final path, of a sidecar."""


@dataclass(frozen=True, slots=True)
class ClassifiedFile:
    """One listed file and what it is."""

    file: StoredFile
    what: Classified


def classify(path: str, known: Knowledge) -> Classified:
    """What a path below the base is, by its name and what the checkpoints say.

    Whether the part of a sidecar is there, a path does not tell: see ``classified``.

    Args:
        path: Relative to the base.
        known: What the checkpoints say; from before the file was listed, or from after it.
    """
    staged = known.staged.get(path)
    if staged is not None:
        return Classified(path, "staged", staged.job, number_in(staged.handle.name, known.chains), staged)
    inside = known.state_directory
    if inside is not None and path.startswith(f"{inside}/"):
        return Classified(path, "checkpoint")
    directory, _, name = path.rpartition("/")
    if (directory and is_hidden(directory)) or not is_relative_path(path):
        return Classified(path, "foreign")
    if not is_hidden(name):
        return _visible(path, name, known)
    if is_temporary(name):
        return Classified(path, "temporary")
    return _sidecar(path, directory, name, known) or _hidden(path, name, known)


def classified(
    files: Iterable[StoredFile], known: Knowledge, is_there: Callable[[str], bool]
) -> Iterator[ClassifiedFile]:
    """Classify files of a listing as they come; sidecars come last, once it is known whether their parts are there.

    Holds nothing but the sidecars in memory.

    Args:
        files: The listing.
        known: What the checkpoints say.
        is_there: Whether a path below the base is there now; asked for the final path of each sidecar.
    """
    sidecars = []
    for file in files:
        what = classify(file.path, known)
        if what.kind == "sidecar":
            sidecars.append(ClassifiedFile(file, what))
        else:
            yield ClassifiedFile(file, what)
    for one in sidecars:
        part, final = one.what.part, one.what.final_path
        # It is made before the final name of its part.
        is_early = part is not None and part.is_current
        if is_early or (final is not None and is_there(final)):
            yield one
        else:
            yield ClassifiedFile(one.file, Classified(one.what.path, "lone-sidecar", one.what.job, one.what.number))


def _visible(path: str, name: str, known: Knowledge) -> Classified:
    number = number_in(name, known.chains)
    if number is not None:
        return Classified(path, "finished", known.chains[number.chain].job, number, known.parts.get(path))
    return Classified(path, "unknown-chain" if numbers_in(name) else "foreign")


def _sidecar(path: str, directory: str, name: str, known: Knowledge) -> Classified | None:
    for naming in known.sidecars:
        if not (name.startswith(naming.prefix) and name.endswith(naming.suffix)):
            continue
        final = name[len(naming.prefix) : len(name) - len(naming.suffix)]
        number = number_in(final, known.chains) if final else None
        if number is not None:
            final_path = f"{directory}/{final}" if directory else final
            job = known.chains[number.chain].job
            return Classified(path, "sidecar", job, number, known.parts.get(final_path), final_path)
    return None


def _hidden(path: str, name: str, known: Knowledge) -> Classified:
    """Only the whole grammar makes a name ours: a copy, a note or a checksum of others may hold a token too.

    And only one path: who has copied a part that a checkpoint names wants to keep that.
    """
    if not known.tokens.isdisjoint(tokens_in(name)):
        return Classified(path, "foreign")
    finals = [final for naming in known.stagings if (final := naming.final_of(name)) is not None]
    for final in finals:
        number = number_in(final, known.chains)
        if number is not None:
            return Classified(path, "orphan", known.chains[number.chain].job, number)
    return Classified(path, "unknown-chain" if any(map(numbers_in, finals)) else "foreign")
