"""What each path below a base is, by its name and what the retained checkpoints say. No file is touched."""

from __future__ import annotations

import pytest

from partfile.readers.files import DEFAULT_SIDECARS, SidecarNaming
from partfile.recovery.inspect.checkpoints import SeenLog
from partfile.recovery.inspect.files import (
    Classified,
    KnownChain,
    KnownPart,
    PartIndex,
    classified,
    classify,
    part_index_of,
    tokens_in,
)
from partfile.recovery.inspect.places import Job
from partfile.sink.plan import SinkSnapshot
from partfile.sink.policies import PartNaming, PartNumber, numbers_in
from partfile.sink.states import PendingPart, StreamPosition
from partfile.snapshot.storage import CheckpointStorage
from partfile.stores.base import PartHandle, StoredFile
from partfile.stores.memory import MemoryMetadataStore
from partfile.stores.parts import rewritten

CHAIN = "0a1b2c3d"
TOKEN = "0123456789abcdef" * 2
JOB = Job("flights")


def handle(count: int, bucket: str = "b", **affixes: str) -> PartHandle:
    """A part as the sink names it."""
    return PartNaming(**affixes).handle(bucket, PartNumber(CHAIN, 3, count), suffix=".json", token=TOKEN)


def part(count: int, *, is_current: bool = True, **affixes: str) -> KnownPart:
    """A part that a checkpoint holds open."""
    return KnownPart(JOB, handle(count, **affixes), "in-progress", 7, None, is_current, 3, 1, 0, 0)


def knowing(*parts: KnownPart, **more: object) -> PartIndex:
    """What checkpoints say that name these parts."""
    staged = {path: one for one in parts for path in one.staged_paths}
    return PartIndex(
        chains={CHAIN: KnownChain(JOB, 9)},
        parts={one.path: one for one in parts},
        staged=staged,
        tokens=frozenset(token for path in staged for token in tokens_in(path)),
        **more,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        (f"b/part-{CHAIN}-3-1.json", "finished"),
        (f"part-{CHAIN}-3-1.json.gz", "finished"),
        (f"b/c/any-prefix-{CHAIN}-3-1", "finished"),
        (f"b/_part-{CHAIN}-3-5.json.{TOKEN}.in-progress", "orphan"),
        (f"b/_part-{CHAIN}-3-5.json.{TOKEN}.pending", "orphan"),
        (f"b/_part-{CHAIN}-3-1.json.valid-length", "sidecar"),
        (f"b/_tmp.{TOKEN}", "temporary"),
        ("b/part-ffffffff-3-1.json", "unknown-chain"),
        (f"b/_part-ffffffff-3-1.json.{TOKEN}.pending", "unknown-chain"),
        # Nothing that merely looks a little like ours is.
        ("b/part-3-1.json", "foreign"),
        (f"b/part-{CHAIN}-3.json", "foreign"),
        (f"b/part-{CHAIN.upper()}-3-1.json", "foreign"),
        (f"b/_part-{CHAIN}-3-5.json.in-progress", "foreign"),
        (f"b/_part-{CHAIN}-3-5.json.{TOKEN[:-1]}.in-progress", "foreign"),
        (f"b/_part-{CHAIN}-3-5.json.{TOKEN}0.in-progress", "foreign"),
        (f"b/_tmp.{TOKEN}.json", "foreign"),
        (f"b/_tmp.{TOKEN[:-1]}", "foreign"),
        (f"_temporary/part-{CHAIN}-3-1.json", "foreign"),
        (f".hidden/_part-{CHAIN}-3-5.json.{TOKEN}.pending", "foreign"),
        ("_SUCCESS", "foreign"),
        ("b/.DS_Store", "foreign"),
        (f"b/.part-{CHAIN}-3-1.json.crc", "foreign"),
        (f"b/.tmp_part-{CHAIN}-3-5.json.{TOKEN}", "foreign"),
        (f"b/_part-{CHAIN}-3-5.json.{TOKEN}.in-progress.bak", "foreign"),
        (f"b/.part-{CHAIN}-3-5.json.crc.{TOKEN}", "foreign"),
        (f"b/_my-notes-on-part-{CHAIN}-3-5.json.{TOKEN}", "foreign"),
        (f"b/__part-{CHAIN}-3-5.json.{TOKEN}.pending", "foreign"),
        (f"b/_part-ffffffff-3-1.json.{TOKEN}.pending.bak", "foreign"),
        ("b/data.csv", "foreign"),
        (f"b/part-{CHAIN}-3-1.json\n", "foreign"),
        (f"b/_part-{CHAIN}-3-1\x1b.json.valid-length", "foreign"),
        (f"tab\t/_part-{CHAIN}-3-5.json.{TOKEN}.pending", "foreign"),
    ],
)
def test_a_path_is_what_its_name_says(path: str, kind: str) -> None:
    """Ours is only what has our grammar and the id of a checkpoint log that is known; all else is foreign."""
    assert classify(path, knowing()).kind == kind


def test_every_name_of_a_part_that_a_checkpoint_holds_is_staged() -> None:
    """In-progress, pending and the name of its cut copy belong to the part; elsewhere they are a foreign copy."""
    known = part(2)
    for name in (known.handle.in_progress, known.handle.pending, rewritten(known.handle).pending):
        what = classify(f"b/{name}", knowing(known))
        assert (what.kind, what.part, what.number) == ("staged", known, PartNumber(CHAIN, 3, 2))
        assert classify(f"c/{name}", knowing(known)).kind == "foreign"
        assert classify(f"b/_other{name}", knowing(known)).kind == "foreign"
    of_another = known.handle.pending.replace(TOKEN, TOKEN[::-1])
    assert classify(f"c/{of_another}", knowing(known)).kind == "orphan"


def test_a_finished_part_knows_its_checkpoint() -> None:
    """Where a retained checkpoint names it, the finished file is that part."""
    known = part(2)
    assert classify(known.path, knowing(known)) == Classified(
        known.path, "finished", JOB, PartNumber(CHAIN, 3, 2), known
    )


def test_affixes_of_a_sink_are_known_by_its_parts() -> None:
    """Sidecars are recognised by the affixes of a sink that has others than the default."""
    path = f"b/.len_part-{CHAIN}-3-1.json.bytes"
    assert classify(path, knowing()).kind == "foreign"
    namings = (SidecarNaming(".len_", ".bytes"), DEFAULT_SIDECARS)
    assert classify(path, knowing(sidecars=namings)).kind == "sidecar"


def test_staged_affixes_of_a_sink_are_known_by_its_parts() -> None:
    """Another part that is staged under affixes of its own is an orphan only while a checkpoint has such a part."""
    affixes = {"in_progress_prefix": ".tmp_", "in_progress_suffix": "", "pending_suffix": ".ready"}
    pending = PendingPart(part=handle(2, **affixes), rows=1, since=7)
    state = SinkSnapshot(StreamPosition(chain=CHAIN), {}, (pending,), 9)
    storage = CheckpointStorage(MemoryMetadataStore(), JOB.name)
    known = part_index_of([(SeenLog(JOB, storage, (), (), None, None), {7: state})])
    for name in (handle(5, **affixes).in_progress, handle(5, **affixes).pending, handle(5).pending):
        assert classify(f"b/{name.replace(TOKEN, TOKEN[::-1])}", known).kind == "orphan"
    assert classify(f"b/{handle(5, **affixes).in_progress}", knowing()).kind == "foreign"


def test_checkpoints_below_the_base_are_no_litter() -> None:
    """A checkpoint directory below the base that is not ours by default is known, and what lies beside it is not."""
    known = knowing(state_directory="_state/all")
    assert classify("_state/all/flights/chk-1/_metadata", known).kind == "checkpoint"
    assert classify("_state/allied/x", known).kind == "foreign"


def test_a_sidecar_is_alone_without_its_part() -> None:
    """A sidecar whose part is neither there nor on its way is told apart; sidecars come last."""
    coming = part(2)
    names = [f"b/_part-{CHAIN}-3-{count}.json.valid-length" for count in (1, 2, 3)]
    files = [StoredFile(path=path, size=1, modified_at_ms=0) for path in (*names, f"b/part-{CHAIN}-3-1.json")]
    found = list(classified(files, knowing(coming), lambda path: path == f"b/part-{CHAIN}-3-1.json"))
    assert [one.what.kind for one in found] == ["finished", "sidecar", "sidecar", "lone-sidecar"]


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("part-aaaaaaaa-12345678-1-2.json", [("aaaaaaaa", 12_345_678, 1), ("12345678", 1, 2)]),
        ("part-aaaaaaaa-1-2", [("aaaaaaaa", 1, 2)]),
        (f"part-aaaaaaaa-1-{'9' * 19}", []),
        ("part", []),
    ],
)
def test_every_number_that_a_name_may_hold_is_found(name: str, numbers: list[tuple[str, int, int]]) -> None:
    """A prefix that ends like a chain hides no number."""
    assert numbers_in(name) == [PartNumber(*number) for number in numbers]
