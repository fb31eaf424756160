"""Decisions about stages, without a store: what is learnt of sizes, and from when on nobody needs a stage."""

from __future__ import annotations

import pytest

from partfile.errors import NotReady, PartMissing
from partfile.sink.encode import EncodedStage
from partfile.sink.encoded_files import EncodedFile, target_of
from partfile.sink.plan import SinkSnapshot, after_encoding, disposable, learnt_ratio
from partfile.sink.states import PendingPart, RolledStage, SpentStage, Stage
from partfile.stores.base import PartHandle

MIB = 1 << 20


def stage(name: str, length: int = MIB) -> PartHandle:
    return PartHandle(
        bucket="b",
        name=name,
        in_progress=f"_{name}.{'0' * 32}.in-progress",
        pending=f"_{name}.{'0' * 32}.pending",
        sidecar=f"_{name}.valid-length",
        valid_length=length,
        is_stage=True,
    )


def rolled(name: str, length: int = MIB) -> RolledStage:
    return RolledStage(part=stage(name, length), stage=Stage(recipe={"format": "parquet"}), rows=1, since=3)


def encoded(one: RolledStage, length: int) -> EncodedStage:
    return EncodedStage(one, (EncodedFile(part=target_of(one.part).at(length), rows=one.rows, crc32=7),))


@pytest.mark.parametrize(
    ("known", "staged", "files", "learnt"),
    [
        (None, MIB, MIB // 2, 0.5),
        (1.0, MIB, MIB // 2, 0.75),
        (None, MIB - 1, MIB // 2, None),
        (0.3, MIB - 1, MIB, 0.3),
        (None, MIB, 100 * MIB, 4.0),
        (None, 1000 * MIB, 1, 0.01),
    ],
)
def test_the_ratio_follows_what_encodes_showed(
    known: float | None, staged: int, files: int, learnt: float | None
) -> None:
    """Half of what was known and half of what is new; too little says nothing, and no freak makes parts of any size."""
    file = PendingPart(part=target_of(stage("p")).at(files), rows=1, since=4)
    other = PendingPart(part=target_of(stage("row-part")).at(7 * MIB), rows=1, since=4)
    assert learnt_ratio(known, [file, other], [SpentStage(part=stage("p", staged), since=4)]) == learnt


def test_what_was_encoded_is_promised_and_spent_and_the_rest_waits() -> None:
    """A file, a store that failed, and a stage that is gone and given up."""
    done, waits, gone = (rolled(name) for name in "abc")
    before = SinkSnapshot.fresh("0" * 8)
    before = SinkSnapshot(before.position, {}, (), -1, rolled=(done, waits, gone))
    after = after_encoding(
        before,
        [
            encoded(done, MIB // 4),
            EncodedStage(waits, problem=NotReady("later")),
            EncodedStage(gone, problem=PartMissing("gone"), is_given_up=True),
        ],
        7,
    )
    (file,), (spent,) = after.pending, after.spent
    assert (file.part.name, file.part.is_stage, file.part.valid_length, file.since) == ("a", False, MIB // 4, 7)
    assert (file.rows, file.crc32) == (1, 7)
    assert file.part.pending != done.part.pending
    assert (spent.part, spent.since) == (done.part, 7)
    assert after.rolled == (waits,)
    assert after.position.encoded_ratio == 0.25


def test_a_spent_stage_is_needed_by_the_links_before_the_one_that_spent_it() -> None:
    """From the moment on that the oldest link is that one, nobody needs it."""
    spent = [SpentStage(part=stage(str(since)), since=since) for since in (3, 4, 5)]
    assert [one.since for one in disposable(spent, 4)] == [3, 4]
