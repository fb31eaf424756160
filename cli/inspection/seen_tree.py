"""What one listing of a base has shown, as far as the checks of its files need it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from partfile.sink.shared_names import unmarked

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from partfile.cli.inspection.classification import Classified, ClassifiedFile, FileKind
    from partfile.cli.inspection.knowledge import Knowledge, KnownPart
    from partfile.sink.naming import PartNumber

MAX_EXAMPLES = 20
LITTER: frozenset[FileKind] = frozenset({"orphan", "temporary", "lone-sidecar", "unknown-chain", "foreign"})
"""What nobody needs, or knows."""


@dataclass(slots=True)
class Tree:
    """What one listing has shown, as far as the checks need it. Grows with finished files by one number each."""

    counts: Counter[FileKind] = field(default_factory=Counter)
    sizes: dict[str, int] = field(default_factory=dict)
    """Of the files that checkpoints name, by path, in bytes."""
    finished: dict[str, Classified] = field(default_factory=dict)
    """Those that checkpoints name, by path."""
    beyond: list[Classified] = field(default_factory=list)
    """With a number beyond what the counter was before."""
    twice: list[Classified] = field(default_factory=list)
    early: list[tuple[Classified, KnownPart]] = field(default_factory=list)
    """Files of a shared stage, in one of its buckets, and that stage, which waits to be encoded."""
    sidecars: dict[str, Classified] = field(default_factory=dict)
    """By the final path of their parts."""
    identities: dict[str, list[Classified]] = field(default_factory=dict)
    """Files with several names."""
    litter: dict[FileKind, list[Classified]] = field(default_factory=dict)
    """The first files of each kind that nobody needs."""
    elsewhere: dict[str, str] = field(default_factory=dict)
    """Where files lie that are called as a part that has to be there, by the key of that part."""


def read_tree(files: Iterable[ClassifiedFile], known: Knowledge) -> Tree:
    """Go through a listing.

    Args:
        files: Every file with what it is.
        known: What the checkpoints said before it was listed.
    """
    tree = Tree()
    numbers = _Numbers(known)
    stages = {unmarked(part.handle.name): part for part in known.current if part.is_shared}
    names = _wanted(known)
    for one in files:
        what, file = one.what, one.file
        tree.counts[what.kind] += 1
        is_moved = _note_moved(tree, file.path, names.get(file.path.rpartition("/")[2], ()))
        if file.identity is not None:
            tree.identities.setdefault(file.identity, []).append(what)
        if what.part is not None and what.kind in {"finished", "staged"}:
            tree.sizes[file.path] = file.size
        if what.kind == "finished" and what.number is not None:
            tree.twice.extend(numbers.strangers(what, what.number))
            if what.number.count > known.chains[what.number.chain].max_count:
                tree.beyond.append(what)
            _note_finished(tree, what, stages.get(unmarked(file.path.rpartition("/")[2])) if stages else None)
        elif what.kind == "sidecar" and what.final_path is not None:
            tree.sidecars[what.final_path] = what
        elif what.kind in LITTER and not is_moved and len(tree.litter.setdefault(what.kind, [])) < MAX_EXAMPLES:
            tree.litter[what.kind].append(what)
    return tree


def _wanted(known: Knowledge) -> dict[str, list[KnownPart]]:
    """The parts that have to be there, by every name they can have."""
    found: dict[str, list[KnownPart]] = {}
    for part in known.current:
        for path in part.all_paths:
            found.setdefault(path.rpartition("/")[2], []).append(part)
    return found


def _note_finished(tree: Tree, what: Classified, stage: KnownPart | None) -> None:
    """Note a finished file, and that it comes too early if it has the name of a shared stage that is not encoded."""
    if what.part is not None:
        tree.finished[what.path] = what
    # A stage that waits for one bucket has been encoded for others; the base may be one of those.
    if stage is not None and not stage.has_file_in(what.path.rpartition("/")[0]):
        tree.early.append((what, stage))


class _Numbers:
    """The numbers of finished files: one each, or one name each where buckets have shared a stage."""

    def __init__(self, known: Knowledge) -> None:
        self._chains = known.chains
        self._places = {chain: place for place, chain in enumerate(sorted(known.chains))}
        self._seen: set[int] = set()
        self._named: dict[int, str] = {}
        """A file of each number that files in several buckets may have, all of one stage's name."""

    def strangers(self, what: Classified, number: PartNumber) -> list[Classified]:
        """Note a file; the one, it or an earlier one, that has a number which it must not have."""
        packed = (number.count * 10**9 + number.subtask) * len(self._places) + self._places[number.chain]
        shared_from = self._chains[number.chain].shared_from
        if shared_from is None or number.count < shared_from:
            is_twice = packed in self._seen
            self._seen.add(packed)
            return [what] if is_twice else []
        known = self._named.setdefault(packed, what.path)
        name, own = unmarked(what.path.rpartition("/")[2]), unmarked(known.rpartition("/")[2])
        if name == own:
            return []
        # Whoever copies a file beside itself adds to its name; files are listed in any order.
        if (len(name), name) > (len(own), own):
            return [what]
        self._named[packed] = what.path
        return [replace(what, path=known)]


def _note_moved(tree: Tree, path: str, wanted: Sequence[KnownPart]) -> bool:
    """Whether a file has the name of a part that has to be in another directory.

    No two parts share a name but the files of one shared stage, of which nobody knows where one that has moved belongs.
    """
    if len(wanted) != 1 or path in wanted[0].all_paths:
        return False
    tree.elsewhere[wanted[0].key] = path
    return True
