"""What a start does with a savepoint or an older checkpoint: never a row twice in silence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from partfile.sink.multi_bucket import own_name
from partfile.sink.plan import SinkSnapshot
from partfile.sink.policies import PartNaming, PartNumber, number_in
from partfile.sink.restore_rules import (
    Choice,
    FinishedPart,
    RestorePoint,
    adds_nothing,
    choose,
    later_parts,
    onto_an_empty_chain,
    open_since,
    over_later_parts,
    over_unreadable,
    paths_of,
    refusal,
)
from partfile.sink.states import OpenPart, PendingPart, QueryPosition, RolledStage, Stage, StreamPosition
from partfile.stores.base import PartHandle

CHAIN, OTHER = "a" * 8, "b" * 8


def handle(name: str, length: int = 10) -> PartHandle:
    return PartHandle(
        bucket="", name=name, in_progress=f"_{name}.i", pending=f"_{name}.p", sidecar=f"_{name}.v", valid_length=length
    )


def opened(*names: str, length: int = 10) -> dict[int, tuple[OpenPart, ...]]:
    parts = (
        OpenPart(
            part=handle(name, length),
            count=0,
            schema_fingerprint="s",
            generation=1,
            created_at_ms=0,
            last_write_ms=0,
            rows=1,
        )
        for name in names
    )
    return {0: tuple(parts)} if names else {}


def state(max_count: int = 3, open_parts: Any = None, pending: tuple[str, ...] = (), **position: Any) -> SinkSnapshot:
    stands = StreamPosition(**({"chain": CHAIN, "user_position": 7} | position))
    owed = tuple(PendingPart(part=handle(name), rows=1, since=1) for name in pending)
    return SinkSnapshot(stands, open_parts or {}, owed, max_count)


def point(of: SinkSnapshot, *, is_newest: bool = False) -> RestorePoint:
    return RestorePoint("t" * 32, "/sp/savepoint-a-0", of, is_newest)


@pytest.mark.item("SP-14")
def test_an_empty_chain_begins_with_the_savepoint() -> None:
    """It takes the position and nothing else: no part, a chain of its own, counters from the start."""
    taken = point(state(9, kept=True, query=QueryPosition(query_id="q", batch_id=4)))
    assert choose(None, taken) is Choice.RESTORE
    begun = onto_an_empty_chain(taken, OTHER)
    assert (begun.open, begun.pending, begun.max_count) == ({}, (), -1)
    assert begun.position == taken.state.position.model_copy(
        update={"chain": OTHER, "kept": False, "restored_from": "t" * 32, "restored_location": taken.location}
    )


@pytest.mark.item("SP-14")
@pytest.mark.parametrize(
    "current",
    [
        state(50, opened("x"), user_position=99, restored_from="t" * 32),
        state(),
        state(pending=("p",), kept=True, parallelism=5),
    ],
)
def test_a_sink_that_stands_there_or_came_from_there_goes_on(current: SinkSnapshot) -> None:
    """The option may stay set: restored from it already, or nothing was written since it was taken."""
    assert choose(current, point(state())) is Choice.GO_ON


@pytest.mark.item("SP-14")
@pytest.mark.parametrize(
    "current",
    [
        state(4),
        state(open_parts=opened("x")),
        state(user_position=8),
        state(query=QueryPosition(query_id="q", batch_id=5)),
        state(chain=OTHER),
        state(restored_from="u" * 32, max_count=4),
    ],
)
@pytest.mark.fault("M8")
def test_a_sink_that_has_gone_on_is_refused(current: SinkSnapshot) -> None:
    """One more part, row or batch, or another chain: restoring would write rows again (M8)."""
    assert choose(current, point(state())) is Choice.REFUSE


def test_the_newest_checkpoint_is_no_rollback() -> None:
    """Whatever is open in it, the start goes on from it as always."""
    current = state(open_parts=opened("x"))
    assert choose(current, point(current, is_newest=True)) is Choice.GO_ON
    assert choose(current, point(current)) is Choice.REFUSE


def test_the_later_parts_are_named() -> None:
    """Finished files beyond the counter, those that were open then, and what is not published yet; each by its path."""
    files = [FinishedPart(f"part-{CHAIN}-0-{count}", PartNumber(CHAIN, 0, count)) for count in range(6)]
    held = state(3, opened(f"part-{CHAIN}-0-2"), ("old",))
    assert later_parts(files, None, held) == [f"part-{CHAIN}-0-{count}" for count in (2, 4, 5)]
    current = state(5, opened("open"), ("old", "owed"))
    assert later_parts(files[:5], current, held) == ["open", "owed", f"part-{CHAIN}-0-2", f"part-{CHAIN}-0-4"]
    foreign = [FinishedPart(f"part-{OTHER}-0-{count}", PartNumber(OTHER, 0, count)) for count in range(2)]
    assert later_parts(foreign, state(5, chain=OTHER), held) == [f"part-{OTHER}-0-{count}" for count in range(2)]
    error = str(refusal("u", point(held), [f"part-{number}" for number in range(30)]))
    assert "30 later parts" in error
    assert "'part-19' and 10 more" in error
    assert "accept_newer=True" in error
    assert "Do not delete them" in error


def test_accepting_later_parts_touches_none_of_them() -> None:
    """What is open now as then goes back; finished, moved and promised parts are left; the counter never goes back."""
    held = state(3, opened("finished", "promised", "still-open", length=5), ("old",), retired_queries=("r",))
    current = state(
        8, opened("still-open", "since", length=9), ("promised", "owed"), user_position=9, retired_queries=("r", "s")
    )
    rolled = over_later_parts(current, point(held))
    assert [(part.part.name, part.part.valid_length) for part in rolled.open[0]] == [("still-open", 5)]
    assert [part.part.name for part in rolled.pending] == ["promised", "owed"]
    assert rolled.max_count == 8
    assert rolled.position.user_position == 7
    assert rolled.position.restored_from == "t" * 32
    assert rolled.position.retired_queries == ("r", "s")


def test_a_part_that_cannot_go_back_stays_as_it_is() -> None:
    """With its later rows, which come twice, rather than with none; one that is not open any more is left."""
    held = state(3, opened("stuck", "goes-back", "finished", length=5))
    current = state(8, opened("stuck", "goes-back", "since", length=9))
    assert [part.name for part in open_since(current, held)] == ["stuck", "goes-back"]
    rolled = over_later_parts(current, point(held), {"stuck"})
    assert [(part.part.name, part.part.valid_length) for part in rolled.open[0]] == [("stuck", 9), ("goes-back", 5)]


@pytest.mark.item("DL-10")
@pytest.mark.parametrize(
    "later",
    [
        state(open_parts=opened("x"), pending=("y",)),
        state(pending=("x", "y"), kept=True, parallelism=5, restored_from="t"),
        state(),
    ],
)
def test_a_fence_or_a_clean_end_adds_nothing(later: SinkSnapshot) -> None:
    """The same parts at the same lengths, open, promised or published since."""
    assert adds_nothing(later, state(open_parts=opened("x"), pending=("y",)))


@pytest.mark.item("DL-10")
@pytest.mark.parametrize(
    "later",
    [
        state(open_parts=opened("x", length=11)),
        state(open_parts=opened("x", length=9)),
        state(open_parts=opened("z")),
        state(pending=("z",)),
        state(4),
        state(user_position=8),
        state(query=QueryPosition(query_id="q", batch_id=5)),
        state(chain=OTHER),
    ],
)
def test_a_row_a_part_or_a_batch_adds_something(later: SinkSnapshot) -> None:
    """Also a fence that went back to fewer rows than this checkpoint holds."""
    assert not adds_nothing(later, state(open_parts=opened("x"), pending=("y",)))


def test_parts_of_two_chains_are_told_apart() -> None:
    """A counter means nothing in another chain: its parts are later ones, whatever their number."""
    files = [FinishedPart(f"part-{chain}-0-1", PartNumber(chain, 0, 1)) for chain in (CHAIN, OTHER)]
    assert later_parts(files, state(chain=OTHER), state(3)) == [f"part-{OTHER}-0-1"]


@pytest.mark.item("DL-10")
def test_over_an_unreadable_checkpoint_only_what_is_there_counts() -> None:
    """Staged parts go back to what they held, finished ones are left, vanished ones are told; names begin anew."""
    held = state(7, {**opened("staged", "closed", "finished", "gone", length=5)}, ("owed", "moved"), kept=True)
    there = {"_staged.i", "_closed.p", "finished", "_finished.p", "owed"}
    assert there <= paths_of(held)
    went = over_unreadable(point(held), there, OTHER, published=False)
    assert [(part.part.name, part.part.valid_length) for part in went.state.open[0]] == [("staged", 5), ("closed", 5)]
    assert [part.part.name for part in went.state.pending] == ["owed"]
    assert went.gone == ("gone", "moved")
    assert (went.state.max_count, went.state.position.chain, went.state.position.kept) == (-1, OTHER, False)
    assert went.state.position.restored_from == "t" * 32
    published = over_unreadable(point(held), there, OTHER, published=True)
    assert (published.state.pending, published.gone) == ((), ("gone",))
    assert over_unreadable(point(held), set(), OTHER, published=True).state.open == {}


@pytest.mark.parametrize(
    ("name", "number"),
    [
        (f"part-{CHAIN}-3-17.json.gz", PartNumber(CHAIN, 3, 17)),
        (f"part-{CHAIN}-3-17", PartNumber(CHAIN, 3, 17)),
        (f"other-affix-{CHAIN}-3-17.txt", PartNumber(CHAIN, 3, 17)),
        (f"part-{OTHER}-3-17.txt", None),
        (f"_part-{CHAIN}-3-17.json.x.pending", None),
        (f"part-{CHAIN}-3-.json", None),
        ("part-00000-1234.json", None),
        ("data.json", None),
    ],
)
def test_a_final_name_tells_its_number(name: str, number: PartNumber | None) -> None:
    """Chain, subtask and counter; a staged or foreign file has none."""
    assert number_in(name, {CHAIN}) == number


def shared_stage() -> RolledStage:
    """A stage of several buckets that waits to be encoded."""
    part = PartNaming().handle("", PartNumber(CHAIN, 0, 5), suffix=".json", token="t" * 32)
    return RolledStage(
        part=part.model_copy(update={"is_stage": True, "valid_length": 9}),
        stage=Stage(recipe={"format": "json"}, shared=True),
        rows=4,
        since=1,
    )


def test_going_back_over_damage_knows_files_of_both_kinds_of_names() -> None:
    """Those of a shared stage's own name, and those with a mark of their bucket."""
    stage = shared_stage()
    name = stage.part.name
    there = {stage.part.in_progress, f"b=b/{name}", f"b=C/{own_name(name, 'b=C')}", "b=d/part-other"}
    held = replace(state(7), rolled=(stage,))
    (left,) = over_unreadable(point(held), there, OTHER, published=True).state.rolled
    assert left.stage.finished_buckets == ("b=C", "b=b")


def test_files_of_a_stage_that_waited_then_are_no_later_parts() -> None:
    """Whatever mark of their bucket they have: they hold the rows that the stage held."""
    stage = shared_stage()
    names = [stage.part.name, *(own_name(stage.part.name, bucket) for bucket in ("b=a", "b=A"))]
    now = replace(state(7), pending=tuple(PendingPart(part=handle(name), rows=1, since=2) for name in names))
    assert len(set(names)) == 3
    assert later_parts([], now, replace(state(7), rolled=(stage,))) == []


def test_marked_files_of_a_stage_that_was_open_then_are_later_parts() -> None:
    """Finished since: they may hold later rows, too."""
    stage = shared_stage()
    more: Any = {"count": 5, "schema_fingerprint": "s", "generation": 1, "created_at_ms": 0, "last_write_ms": 0}
    opened = OpenPart(part=stage.part, rows=1, stage=stage.stage, **more)
    own = own_name(stage.part.name, "b=A")
    files = [FinishedPart(f"b=A/{own}", PartNumber(CHAIN, 0, 5)), FinishedPart("b=c/part-x", PartNumber(CHAIN, 0, 4))]
    assert later_parts(files, None, replace(state(7), open={0: (opened,)})) == [f"b=A/{own}"]
