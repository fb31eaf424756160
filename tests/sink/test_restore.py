"""What a start begins with: a savepoint or an older checkpoint, never a row twice in silence; refused starts."""

from __future__ import annotations

import logging
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import partfile as pf
from partfile.errors import ConfigError, Fenced, NotFound, PartfileError, RecoveryRefused, SnapshotCorrupt, StoreError
from partfile.sink.coordinator import Runtime
from partfile.sink.plan import SinkSnapshot
from partfile.sink.policies import PartNaming, PartNumber, number_in, own_name
from partfile.sink.restore_rules import (
    Choice,
    FinishedPart,
    RestorePoint,
    adds_nothing,
    choose,
    later_parts,
    onto_an_empty_log,
    open_since,
    over_later_parts,
    over_unreadable,
    paths_of,
    refusal,
)
from partfile.sink.spark.stream import SparkStream
from partfile.sink.states import ClosedStagingFile, OpenPart, PendingPart, QueryPosition, StagingFile, StreamPosition
from partfile.snapshot.checkpoint_log import CheckpointLog
from partfile.snapshot.savepoints import complete_savepoint, read_savepoint, reserve_savepoint
from partfile.stores.base import PartHandle
from partfile.stores.local.store import LocalStore
from support.processes.command_line import run, told
from support.sinks.life_cycle import (
    assert_exactly_once,
    assert_only_grew,
    batch,
    continue_to,
    everything,
    finished_files,
    long_sink,
    make_sink,
    rows_of,
    run_to_the_end,
    stopped_with_savepoint,
)
from support.sinks.recovery import go_back, planned_recovery, recover_all

# What a start does with a savepoint or an older checkpoint: never a row twice in silence.

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
            epoch=1,
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
def test_an_empty_log_begins_with_the_savepoint() -> None:
    """It takes the position and nothing else: no part, a checkpoint log of its own, counters from the start."""
    taken = point(state(9, kept=True, query=QueryPosition(query_id="q", batch_id=4)))
    assert choose(None, taken) is Choice.RESTORE
    begun = onto_an_empty_log(taken, OTHER)
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
    error = str(refusal("u", point(held), [f"part-{number}" for number in range(30)], has_log=True))
    assert "30 later parts" in error
    assert "'part-19' and 10 more" in error
    assert "--accept-newer" in error
    assert "Do not delete these parts" in error


def test_accepting_later_parts_touches_none_of_them() -> None:
    """What is open now as then goes back; finished, moved and promised parts are left; the counter never goes back."""
    held = state(3, opened("finished", "promised", "still-open", length=5), ("old",), retired_queries=("r",))
    current = state(
        8, opened("still-open", "since", length=9), ("promised", "owed"), user_position=9, retired_queries=("r", "s")
    )
    closed = over_later_parts(current, point(held))
    assert [(part.part.name, part.part.valid_length) for part in closed.open[0]] == [("still-open", 5)]
    assert [part.part.name for part in closed.pending] == ["promised", "owed"]
    assert closed.max_count == 8
    assert closed.position.user_position == 7
    assert closed.position.restored_from == "t" * 32
    assert closed.position.retired_queries == ("r", "s")


def test_a_part_that_cannot_go_back_stays_as_it_is() -> None:
    """With its later rows, which come twice, rather than with none; one that is not open any more is left."""
    held = state(3, opened("stuck", "goes-back", "finished", length=5))
    current = state(8, opened("stuck", "goes-back", "since", length=9))
    assert [part.name for part in open_since(current, held)] == ["stuck", "goes-back"]
    closed = over_later_parts(current, point(held), {"stuck"})
    assert [(part.part.name, part.part.valid_length) for part in closed.open[0]] == [("stuck", 9), ("goes-back", 5)]


@pytest.mark.item("DL-10")
@pytest.mark.parametrize(
    "later",
    [
        state(open_parts=opened("x"), pending=("y",)),
        state(pending=("x", "y"), kept=True, parallelism=5, restored_from="t"),
        state(),
    ],
)
def test_a_takeover_or_a_clean_end_adds_nothing(later: SinkSnapshot) -> None:
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
    """Also a takeover that went back to fewer rows than this checkpoint holds."""
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


def multi_bucket_staging_file() -> ClosedStagingFile:
    """A staging file of several buckets that waits to be encoded."""
    part = PartNaming().handle("", PartNumber(CHAIN, 0, 5), suffix=".json", token="t" * 32)
    return ClosedStagingFile(
        part=part.model_copy(update={"is_staging_file": True, "valid_length": 9}),
        staging_file=StagingFile(spec={"format": "json"}, shared=True),
        rows=4,
        since=1,
    )


def test_going_back_over_damage_knows_files_of_both_kinds_of_names() -> None:
    """Those of a multi-bucket staging file's own name, and those with a mark of their bucket."""
    staging_file = multi_bucket_staging_file()
    name = staging_file.part.name
    there = {staging_file.part.in_progress, f"b=b/{name}", f"b=C/{own_name(name, 'b=C')}", "b=d/part-other"}
    held = replace(state(7), closed=(staging_file,))
    (left,) = over_unreadable(point(held), there, OTHER, published=True).state.closed
    assert left.staging_file.finished_buckets == ("b=C", "b=b")


def test_files_of_a_staging_file_that_waited_then_are_no_later_parts() -> None:
    """Whatever mark of their bucket they have: they hold the rows that the staging file held."""
    staging_file = multi_bucket_staging_file()
    names = [staging_file.part.name, *(own_name(staging_file.part.name, bucket) for bucket in ("b=a", "b=A"))]
    now = replace(state(7), pending=tuple(PendingPart(part=handle(name), rows=1, since=2) for name in names))
    assert len(set(names)) == 3
    assert later_parts([], now, replace(state(7), closed=(staging_file,))) == []


def test_marked_files_of_a_staging_file_that_was_open_then_are_later_parts() -> None:
    """Finished since: they may hold later rows, too."""
    staging_file = multi_bucket_staging_file()
    more: Any = {"count": 5, "schema_fingerprint": "s", "epoch": 1, "created_at_ms": 0, "last_write_ms": 0}
    opened = OpenPart(part=staging_file.part, rows=1, staging_file=staging_file.staging_file, **more)
    own = own_name(staging_file.part.name, "b=A")
    files = [FinishedPart(f"b=A/{own}", PartNumber(CHAIN, 0, 5)), FinishedPart("b=c/part-x", PartNumber(CHAIN, 0, 4))]
    assert later_parts(files, None, replace(state(7), open={0: (opened,)})) == [f"b=A/{own}"]


# Going back to an older checkpoint: of the own checkpoint log alone, and never a row twice in silence (R12, M8).


def newest_checkpoint(base: Path) -> Path:
    return max((base / "_partfile" / "life").glob("chk-*"), key=lambda path: int(path.name[4:]))


@pytest.mark.item("DL-10")
@pytest.mark.parametrize("form", ["{}", "{}/_metadata", "file://{}", "{}/../{name}"])
def test_naming_the_newest_checkpoint_is_no_rollback(tmp_path: Path, form: str) -> None:
    """Naming it, by directory or file, is what a start does anyway."""
    out = long_sink(tmp_path / "out").local().open()
    out.write(batch(0, 4), position=4)
    out.checkpoint()
    out.close()
    newest = newest_checkpoint(tmp_path / "out")
    chosen = form.format(newest, name=newest.name)
    assert continue_to(long_sink(tmp_path / "out", restore_from=chosen), 9) == 4
    assert_exactly_once(tmp_path / "out", 9)


@pytest.mark.item("DL-10")
@pytest.mark.parametrize("is_published", [False, True])
def test_going_back_to_an_older_checkpoint(tmp_path: Path, *, is_published: bool) -> None:
    """Refused while later parts are there; accepted, rows of unpublished parts are cut and come again, once."""
    out = long_sink(tmp_path / "out", retained_checkpoints=5).local().open()
    out.write(batch(0, 4), position=4)
    out.checkpoint()
    chosen = newest_checkpoint(tmp_path / "out")
    out.write(batch(4, 4), position=8)
    out.checkpoint()
    if is_published:
        out.finish()
    out.close()
    files, held = finished_files(tmp_path / "out"), everything(tmp_path)
    with pytest.raises(RecoveryRefused, match="has checkpoints of its own"):
        continue_to(long_sink(tmp_path / "out", restore_from=chosen, retained_checkpoints=5), 9)
    with pytest.raises(RecoveryRefused, match="2 later parts"):
        recover_all(tmp_path / "out", restore_from=str(chosen))
    assert everything(tmp_path) == held
    go_back(tmp_path / "out", chosen)
    assert continue_to(long_sink(tmp_path / "out", retained_checkpoints=5), 9) == 4
    after = finished_files(tmp_path / "out")
    assert_only_grew(files, after)
    doubled = {f"row-{number:04d}" for number in range(4, 8)} if is_published else set()
    assert rows_of(after) == {row: 2 if row in doubled else 1 for row in (f"row-{n:04d}" for n in range(9))}


@pytest.mark.item("DL-12", "DL-08")
def test_a_checkpoint_that_was_moved_is_refused(tmp_path: Path) -> None:
    """It names staged parts of its base path; the error says to Take a savepoint."""
    out = long_sink(tmp_path / "out").local().open()
    out.write(batch(0, 4), position=4)
    out.checkpoint()
    out.close()
    moved = shutil.copytree(newest_checkpoint(tmp_path / "out"), tmp_path / "elsewhere" / "chk-7")
    for base in ("fresh", "out"):
        with pytest.raises(RecoveryRefused, match="Take a savepoint"):
            continue_to(long_sink(tmp_path / base, restore_from=moved), 9)
    assert finished_files(tmp_path / "fresh") == {}


@pytest.mark.item("DL-10")
def test_a_restart_since_is_no_later_checkpoint(tmp_path: Path) -> None:
    """A takeover holds what the checkpoint held: naming that is still no rollback."""
    out = long_sink(tmp_path / "out", retained_checkpoints=9).local().open()
    out.write(batch(0, 4), position=4)
    out.checkpoint()
    out.close()
    chosen = newest_checkpoint(tmp_path / "out")
    long_sink(tmp_path / "out", retained_checkpoints=9).local().open().close()
    assert newest_checkpoint(tmp_path / "out") != chosen
    assert continue_to(long_sink(tmp_path / "out", restore_from=chosen, retained_checkpoints=9), 9) == 4
    assert_exactly_once(tmp_path / "out", 9)


@pytest.mark.item("DL-10")
def test_a_checkpoint_that_retention_has_deleted_since_is_not_needed(tmp_path: Path) -> None:
    """The option may stay set: the sink went back to it long ago."""
    out = long_sink(tmp_path / "out").local().open()
    out.write(batch(0, 4), position=4)
    out.checkpoint()
    out.close()
    sink = long_sink(tmp_path / "out", restore_from=newest_checkpoint(tmp_path / "out"))
    assert [continue_to(sink, rows) for rows in (6, 7, 8, 9)] == [4, 6, 7, 8]
    assert_exactly_once(tmp_path / "out", 9)


@pytest.mark.item("DL-10")
def test_a_part_that_a_consumer_moved_does_not_stop_a_rollback(tmp_path: Path) -> None:
    """It was open then and is published since: no start looks for it again (R5)."""
    out = long_sink(tmp_path / "out", retained_checkpoints=9).local().open()
    out.write(batch(0, 4), position=4)
    out.checkpoint()
    chosen = newest_checkpoint(tmp_path / "out")
    out.finish()
    continue_to(long_sink(tmp_path / "out", retained_checkpoints=9), 6)
    for name in finished_files(tmp_path / "out"):
        (tmp_path / "out" / name).rename(tmp_path / name.replace("/", "-"))
    go_back(tmp_path / "out", chosen)
    sink = long_sink(tmp_path / "out", restore_from=chosen, retained_checkpoints=9)
    assert [continue_to(sink, 9), continue_to(sink, 9)] == [4, 9]


@pytest.mark.item("DL-10")
@pytest.mark.parametrize("positions", [True, False])
def test_a_clean_end_without_rows_is_nothing_later(tmp_path: Path, *, positions: bool) -> None:
    """It published what the checkpoint held and added nothing: naming that is no rollback, also after more restarts."""
    out = long_sink(tmp_path / "out", retained_checkpoints=9).local().open()
    out.write(batch(0, 4), position=4 if positions else None)
    out.checkpoint()
    chosen = newest_checkpoint(tmp_path / "out")
    out.finish()
    files = finished_files(tmp_path / "out")
    sink = long_sink(tmp_path / "out", restore_from=chosen, retained_checkpoints=9)
    for _ in range(3):
        with sink.local() as again:
            assert again.position == (4 if positions else None)
    assert finished_files(tmp_path / "out") == files == assert_exactly_once(tmp_path / "out", 4)


@pytest.mark.item("DL-10", "SP-14")
def test_rows_that_a_part_took_before_a_clean_end_are_later(tmp_path: Path) -> None:
    """No new part, no position: only the length of the part in the checkpoints between tells."""
    out = long_sink(tmp_path / "out", retained_checkpoints=9).local().open()
    out.write(batch(0, 4))
    out.checkpoint()
    chosen = newest_checkpoint(tmp_path / "out")
    out.write(batch(4, 4))
    out.finish()
    long_sink(tmp_path / "out", retained_checkpoints=9).local().open().close()
    with pytest.raises(RecoveryRefused, match="2 later parts"):
        recover_all(tmp_path / "out", restore_from=str(chosen))


@pytest.mark.item("DL-10")
@pytest.mark.parametrize("is_deleted", [False, True])
def test_an_option_that_has_been_applied_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, is_deleted: bool
) -> None:
    """A second rollback to the same point does nothing: a warning, as its user asked for more; a start may keep it."""
    out = long_sink(tmp_path / "out", retained_checkpoints=9).local().open()
    out.write(batch(0, 4), position=4)
    out.checkpoint()
    chosen = newest_checkpoint(tmp_path / "out")
    out.write(batch(4, 4), position=8)
    out.checkpoint()
    out.close()
    sink = long_sink(tmp_path / "out", restore_from=chosen, retained_checkpoints=9)
    with caplog.at_level(logging.INFO, logger="partfile"):
        go_back(tmp_path / "out", chosen)
        assert "applied already" not in caplog.text
        assert continue_to(sink, 6) == 4
        (told,) = [record for record in caplog.records if "applied already" in record.message]
        assert told.levelname == "INFO"
        caplog.clear()
        if is_deleted:
            for path in sorted(chosen.parent.iterdir())[:-1]:
                shutil.rmtree(path)
        assert planned_recovery(tmp_path / "out", restore_from=str(chosen), accept_newer=True).jobs == ()
        assert {record.levelname for record in caplog.records if "applied already" in record.message} == {"WARNING"}
        assert str(chosen) in caplog.text
        assert continue_to(sink, 6) == 6
    assert_exactly_once(tmp_path / "out", 6)


@pytest.mark.item("DL-10")
def test_a_stray_checkpoint_of_a_fenced_coordinator_is_no_restore_point(tmp_path: Path) -> None:
    """It holds state, but never counted: no start may go back to what was never committed."""
    sleeper = long_sink(tmp_path / "out").local().open()
    sleeper.write(batch(0, 2), position=2)
    other = long_sink(tmp_path / "out", retained_checkpoints=2).local().open()
    for done in range(4):
        other.write(batch(done, 1), position=done + 1)
        other.checkpoint()
    other.close()
    with pytest.raises(Fenced):
        sleeper.checkpoint()
    stray = tmp_path / "out" / "_partfile" / "life" / "chk-2"
    ids = sorted(int(path.parent.name[4:]) for path in stray.parent.glob("chk-*/_metadata"))
    assert ids == [2, 5, 6]
    with pytest.raises(RecoveryRefused, match="never counted"):
        go_back(tmp_path / "out", stray)


@pytest.mark.item("SP-14", "DL-10")
def test_a_query_that_ends_without_a_batch_does_not_go_back(tmp_path: Path) -> None:
    """Only a batch shows that Spark has gone back as well; what was left open is published as it stands."""
    out = tmp_path / "out"
    sink = long_sink(out, retained_checkpoints=9).local().open()
    coordinator = sink._runtime.coordinator
    for number in range(3):
        sink.write(batch(4 * number, 4))
        sink.checkpoint()
        stands = coordinator.state.position.model_copy(update={"query": QueryPosition(query_id="q", batch_id=number)})
        coordinator.complete(coordinator.trigger(number), coordinator.assignment(), stands)
    sink.close()
    settings = long_sink(out, retained_checkpoints=9, restore_from=out / "_partfile" / "life" / "chk-3").settings
    SparkStream(settings).finish("q")
    assert_exactly_once(out, 12)
    runtime = Runtime(settings, "life")
    newest = runtime.coordinator.look()
    runtime.close()
    assert newest is not None
    assert newest.position.query == QueryPosition(query_id="q", batch_id=2)


# Restoring savepoints of the plain sink: anywhere, and never a row twice in silence (R12, M8).


@pytest.mark.item("SP-07", "SP-14", "SP-23")
@pytest.mark.parametrize("form", ["", "/", "/_metadata"])
def test_a_moved_savepoint_restores_onto_a_fresh_base(tmp_path: Path, form: str) -> None:
    """Named by directory or file, from wherever it lies: the new base goes on at its position, no row twice."""
    moved = shutil.move(stopped_with_savepoint(tmp_path), tmp_path / "moved")
    shutil.rmtree(tmp_path / "savepoints")
    sink = long_sink(tmp_path / "fresh", restore_from=f"{moved}{form}")
    assert continue_to(sink, 9) == 4
    both = rows_of(finished_files(tmp_path / "out")) + rows_of(finished_files(tmp_path / "fresh"))
    assert both == {f"row-{number:04d}": 1 for number in range(9)}


@pytest.mark.item("SP-14")
def test_another_uid_on_the_same_base_restores_too(tmp_path: Path) -> None:
    """Its parts have a chain id of their own, so no name is taken."""
    where = stopped_with_savepoint(tmp_path)
    assert continue_to(long_sink(tmp_path / "out", uid="other", restore_from=where), 9) == 4
    assert_exactly_once(tmp_path / "out", 9)


@pytest.mark.item("SP-14")
def test_the_option_may_stay_set(tmp_path: Path) -> None:
    """A restarted sink goes on from its own checkpoint log, on a fresh base and on the one that was stopped."""
    where = stopped_with_savepoint(tmp_path)
    for base in ("fresh", "out"):
        sink = long_sink(tmp_path / base, restore_from=where)
        assert [continue_to(sink, rows) for rows in (6, 6, 9)] == [4, 6, 6]
    assert_exactly_once(tmp_path / "out", 9)


@pytest.mark.item("SP-14", "SP-26")
@pytest.mark.fault("M8")
def test_a_base_that_has_moved_on_is_refused_with_its_later_parts(tmp_path: Path) -> None:
    """M8: the error names each part that came later; nothing is changed; leaving the option out goes on."""
    where = stopped_with_savepoint(tmp_path)
    before = set(finished_files(tmp_path / "out"))
    continue_to(long_sink(tmp_path / "out"), 7)
    later = set(finished_files(tmp_path / "out")) - before
    held = everything(tmp_path)
    with pytest.raises(RecoveryRefused, match="has checkpoints of its own"):
        continue_to(long_sink(tmp_path / "out", restore_from=where), 9)
    with pytest.raises(RecoveryRefused, match=f"{len(later)} later parts") as raised:
        recover_all(tmp_path / "out", restore_from=where)
    assert all(name in str(raised.value) for name in later)
    assert everything(tmp_path) == held
    continue_to(long_sink(tmp_path / "out"), 9)
    assert_exactly_once(tmp_path / "out", 9)


@pytest.mark.item("SP-14", "SP-26")
@pytest.mark.parametrize("how", ["another uid", "checkpoints deleted"])
def test_a_fresh_log_on_a_base_that_has_moved_on_is_refused_too(tmp_path: Path, how: str) -> None:
    """The parts that came later lie there, whichever sink restores: their rows would come twice in silence."""
    where = stopped_with_savepoint(tmp_path)
    continue_to(long_sink(tmp_path / "out"), 7)
    options: dict[str, Any] = {"restore_from": where}
    if how == "another uid":
        options["uid"] = "other"
    else:
        shutil.rmtree(tmp_path / "out" / "_partfile")
    with pytest.raises(RecoveryRefused, match=r"(?s)2 later parts.*onto another base path") as raised:
        continue_to(long_sink(tmp_path / "out", **options), 9)
    assert "--accept-newer" not in str(raised.value)


@pytest.mark.item("SP-14")
def test_each_writer_restores_its_own_savepoint(tmp_path: Path) -> None:
    """Another writer's position would skip rows, or write them twice."""
    out = long_sink(tmp_path / "out").local(subtask_index=1).open()
    out.write(batch(0, 2), position=2)
    where = out.stop_with_savepoint(tmp_path / "savepoints")
    sink = long_sink(tmp_path / "fresh", restore_from=where)
    with pytest.raises(RecoveryRefused, match="'life~1', not of the writer 'life'"):
        sink.local().open()
    with sink.local(subtask_index=1) as again:
        assert again.position == 2


@pytest.mark.item("SP-11", "SP-14")
def test_a_sink_goes_on_when_its_savepoint_is_gone(tmp_path: Path) -> None:
    """Once restored it needs it no more, so the user may delete it with the option still set."""
    where = stopped_with_savepoint(tmp_path)
    sink = long_sink(tmp_path / "fresh", restore_from=where)
    assert continue_to(sink, 6) == 4
    shutil.rmtree(where)
    assert continue_to(sink, 9) == 6
    for same in (f"{where}/", f"{where}/_metadata", f"file://{where}", f"{where}/../{Path(where).name}"):
        assert continue_to(long_sink(tmp_path / "fresh", restore_from=same), 9) == 9
    with pytest.raises(NotFound):
        continue_to(long_sink(tmp_path / "another", restore_from=where), 9)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("accept_newer", "--restore-from WHERE --accept-newer"),
        ("accept_missing", "--accept-missing"),
        ("moved_from", "--moved-from OLD"),
    ],
)
def test_an_option_of_the_command_is_refused_with_the_command(tmp_path: Path, option: str, words: str) -> None:
    """Its plan is to be seen before it is done. What may be a secret is left out."""
    base, more = tmp_path / "a b", {"storage_options": {"secret": "hush"}, "checkpoint_dir": "/c"}
    with pytest.raises(ConfigError, match=option) as raised:
        long_sink(base, **more, **{option: True})
    command = f"partfile recover '{base}' --uid life --checkpoint-dir /c --storage-option secret=VALUE {words}"
    assert command in str(raised.value)
    assert "hush" not in str(raised.value)


def test_the_command_that_goes_back_is_named_and_works(tmp_path: Path) -> None:
    """The refusal's own words do it, after its plan was seen."""
    base = tmp_path / "a b"
    out = long_sink(base, retained_checkpoints=5).local().open()
    for done in (0, 4):
        out.write(batch(done, 4), position=done + 4)
        out.checkpoint()
    out.close()
    chosen = newest_checkpoint(base).with_name("chk-2")
    with pytest.raises(RecoveryRefused) as raised:
        long_sink(base, restore_from=chosen).local().open()
    command = re.search(r"partfile (recover '.*?a b' --uid life --restore-from '.*?chk-2')", str(raised.value))
    assert command is not None
    words = shlex.split(command[1])
    assert "later parts" in run(*words).stderr
    told(*words, "--accept-newer", "--apply", "--idle-for", "0s")
    assert continue_to(long_sink(base), 9) == 4


@pytest.mark.item("SP-14")
def test_later_parts_can_be_accepted(tmp_path: Path) -> None:
    """On demand the sink goes back: later finished files stay as they are, their rows are there twice, none is lost."""
    where = stopped_with_savepoint(tmp_path)
    continue_to(long_sink(tmp_path / "out"), 7)
    files = finished_files(tmp_path / "out")
    go_back(tmp_path / "out", where)
    sink = long_sink(tmp_path / "out", restore_from=where)
    assert [continue_to(sink, 9), continue_to(sink, 11)] == [4, 9]
    after = finished_files(tmp_path / "out")
    assert_only_grew(files, after)
    doubled = {f"row-{number:04d}" for number in range(4, 7)}
    assert rows_of(after) == {row: 2 if row in doubled else 1 for row in (f"row-{n:04d}" for n in range(11))}


@pytest.mark.item("DL-10", "SP-14")
@pytest.mark.parametrize("name", ["savepoints/savepoint-life-000000000000", "no/such/dir", "out/_partfile/life/chk-99"])
def test_what_is_not_there_is_named(tmp_path: Path, name: str) -> None:
    """A wrong name is an error that shows it, and nothing is made, not even a directory."""
    stopped_with_savepoint(tmp_path)
    held = sorted(tmp_path.rglob("*"))
    with pytest.raises(StoreError, match=r"savepoint-life-000000000000|no/such|99"):
        continue_to(long_sink(tmp_path / "out", restore_from=tmp_path / name), 9)
    assert sorted(tmp_path.rglob("*")) == held


@pytest.mark.item("SP-15")
def test_state_of_an_operator_that_is_not_there(tmp_path: Path) -> None:
    """Refused by its id."""
    where = Path(stopped_with_savepoint(tmp_path))
    store = LocalStore(str(where.parent))
    metadata = read_savepoint(store, where.name)
    more = metadata.model_copy(
        update={"operators": {**metadata.operators, "my-window": metadata.operators["file-sink"]}}
    )

    name = reserve_savepoint(store, "life")
    complete_savepoint(store, name, more)
    with pytest.raises(RecoveryRefused, match="my-window"):
        continue_to(long_sink(tmp_path / "fresh", restore_from=where.parent / name), 9)


# A start that is refused says why in the words of its options, and leaves nothing behind.


@pytest.fixture
def savepoint(tmp_path: Path) -> Path:
    """A savepoint of a sink that wrote some rows."""
    out = long_sink(tmp_path / "old").local().open()
    out.write(batch(0, 4), position=4)
    return Path(out.stop_with_savepoint(tmp_path / "savepoints"))


def refused_start(tmp_path: Path, location: object, kind: type[PartfileError], **options: Any) -> str:
    """Refuse a start on a fresh base; nothing is made there, nor anywhere else. Returns the message."""
    held = sorted(tmp_path.rglob("*"))
    with pytest.raises(kind) as raised:
        long_sink(tmp_path / "a" / "fresh", restore_from=location, **options).local().open()
    assert sorted(tmp_path.rglob("*")) == held
    return str(raised.value)


@pytest.mark.item("SP-14", "DL-08")
@pytest.mark.parametrize("what", ["metadata", "huge metadata", "state", "missing state"])
def test_damage_of_a_savepoint_is_told_with_option_and_path(tmp_path: Path, what: str) -> None:
    """The whole path of the file, and what the user passed."""
    out = long_sink(tmp_path / "old").local().open()
    out.write(batch(0, 4), position="4" * 30_000)
    savepoint = Path(out.stop_with_savepoint(tmp_path / "savepoints"))
    (state,) = savepoint.glob("*.state")
    damaged = savepoint / "_metadata" if "metadata" in what else state
    if what == "missing state":
        damaged.unlink()
    elif what == "huge metadata":
        with damaged.open("ab") as file:
            file.truncate(1 << 30)
    else:
        damaged.write_bytes(damaged.read_bytes()[:-9])
    message = refused_start(tmp_path, savepoint, SnapshotCorrupt)
    assert f"restore_from={str(savepoint)!r}" in message
    assert str(damaged) in message


@pytest.mark.item("SP-14", "DL-10")
@pytest.mark.parametrize("what", ["link", "file", "file/_metadata", "file/below", "linked metadata", "directory below"])
def test_something_else_than_a_directory_is_told_with_the_option(tmp_path: Path, savepoint: Path, what: str) -> None:
    """What it must be, and no word of a base, which is another option."""
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(savepoint, target_is_directory=True)
    (tmp_path / "linked metadata").mkdir()
    (tmp_path / "linked metadata" / "_metadata").symlink_to(savepoint / "_metadata")
    (tmp_path / "directory below" / "_metadata").mkdir(parents=True)
    message = refused_start(tmp_path, tmp_path / what, PartfileError)
    assert f"restore_from={str(tmp_path / what)!r}" in message
    assert "must be the id of a retained checkpoint of this sink" in message
    assert "base" not in message.replace(str(tmp_path), "")


@pytest.mark.item("SP-14", "DL-10")
@pytest.mark.parametrize("name", ["savepoints/none", "no/such/savepoint"])
def test_what_is_missing_is_told_with_the_option(tmp_path: Path, savepoint: Path, name: str) -> None:
    """Also where the directory above is missing, which is no base either."""
    message = refused_start(tmp_path, savepoint.parents[1] / name, NotFound)
    assert f"restore_from={str(tmp_path / name)!r} is not there" in message
    assert "base" not in message.replace(str(tmp_path), "")


@pytest.mark.item("SP-14")
def test_no_store_for_the_location(tmp_path: Path) -> None:
    """The scheme is named, and the option."""
    message = refused_start(tmp_path, "gopher://hole/savepoint", ConfigError)
    assert "restore_from='gopher://hole/savepoint'" in message
    assert "'gopher'" in message


@pytest.mark.item("SP-14")
def test_every_refusal_leaves_nothing_behind(tmp_path: Path, savepoint: Path) -> None:
    """Another writer's savepoint, a checkpoint from elsewhere, a directory of checkpoints outside: nothing is made."""
    (tmp_path / "elsewhere").mkdir()
    moved = shutil.copytree(tmp_path / "old" / "_partfile" / "life" / "chk-2", tmp_path / "elsewhere" / "chk-2")
    refused_start(tmp_path, moved, RecoveryRefused)
    refused_start(tmp_path, moved, RecoveryRefused, checkpoint_dir=tmp_path / "checkpoints" / "here")
    held = sorted(tmp_path.rglob("*"))
    with pytest.raises(RecoveryRefused):
        long_sink(tmp_path / "fresh", restore_from=savepoint).local(subtask_index=1).open()
    with pytest.raises(StoreError):
        long_sink(tmp_path / "fresh", restore_from=tmp_path / "no" / "such").local().open()
    out = long_sink(tmp_path / "fresh").local()
    out.close()
    assert sorted(tmp_path.rglob("*")) == held


def test_a_refusal_by_what_is_there_changes_nothing(tmp_path: Path) -> None:
    """A checkpoint log that is damaged, or another's: no file, no directory comes or goes."""
    continue_to(long_sink(tmp_path / "out"), 4)
    newest = tmp_path / "out" / "_partfile" / "life" / "chk-2" / "_metadata"
    newest.write_bytes(b"")
    held = sorted(tmp_path.rglob("*"))
    with pytest.raises(SnapshotCorrupt):
        long_sink(tmp_path / "out").local().open()
    with pytest.raises(PartfileError):
        long_sink(tmp_path / "out", uid="other", restore_from=newest.parent).local().open()
    assert sorted(tmp_path.rglob("*")) == held


# A start without a checkpoint, where a sink has written before.


def test_a_mistyped_uid_does_not_write_the_rows_again(tmp_path: Path) -> None:
    """R12: the log of the sink that is there is named, and nothing is changed."""
    run_to_the_end(make_sink(tmp_path))
    before = everything(tmp_path)
    with pytest.raises(
        RecoveryRefused, match=r"(?s)sink 'lief' has no checkpoint in .*the checkpoints of sink 'life'"
    ) as raised:
        pf.FileSink(tmp_path, uid="lief", format="text").local().open()
    assert "on_used_base='accept'" in raised.value.hint
    assert everything(tmp_path) == before


def test_a_changed_checkpoint_dir_does_not_write_the_rows_again(tmp_path: Path) -> None:
    """R12: whether the log that it left lies below the base, or elsewhere: then a part tells."""
    base, elsewhere = tmp_path / "base", str(tmp_path / "elsewhere")
    run_to_the_end(make_sink(base))
    with pytest.raises(RecoveryRefused, match="the checkpoints of sink 'life' are in it"):
        make_sink(base, checkpoint_dir=elsewhere).local().open()
    (base / "_partfile").rename(tmp_path / "moved")
    # Finished ones, then staged ones.
    for _ in range(2):
        with pytest.raises(RecoveryRefused, match=r"(?s)the part '.*part-.*' is in it"):
            make_sink(base, checkpoint_dir=elsewhere).local().open()
        for file in finished_files(base):
            (base / file).rename((base / file).with_name(f"_{Path(file).name}.{'0' * 32}.pending"))
    assert not Path(elsewhere).exists() or not list(Path(elsewhere).rglob("_metadata"))


@pytest.mark.parametrize("suffix", ["_x", "-x.y", ".v1"])
def test_a_part_is_known_by_the_suffix_of_its_sink(tmp_path: Path, suffix: str) -> None:
    """R12: also where the suffix begins with no dot."""
    naming, base = pf.PartNaming(part_suffix=suffix), tmp_path / "base"
    run_to_the_end(make_sink(base, naming=naming, checkpoint_dir=str(tmp_path / "first")))
    with pytest.raises(RecoveryRefused, match=r"(?s)the part '.*part-.*' is in it"):
        make_sink(base, naming=naming, checkpoint_dir=str(tmp_path / "second")).local().open()


def test_parts_are_known_after_their_naming_was_changed_with_the_directory_of_checkpoints(tmp_path: Path) -> None:
    """R12: those that were called as by default."""
    run_to_the_end(make_sink(tmp_path / "base", checkpoint_dir=str(tmp_path / "first")))
    naming = pf.PartNaming(part_prefix="zz", part_suffix=".zz")
    with pytest.raises(RecoveryRefused, match=r"(?s)the part '.*part-.*' is in it"):
        make_sink(tmp_path / "base", naming=naming, checkpoint_dir=str(tmp_path / "second")).local().open()


def test_a_second_sink_says_that_it_means_the_base(tmp_path: Path) -> None:
    """It says so once; from then on it has a log of its own."""
    run_to_the_end(make_sink(tmp_path))
    once: dict[str, Any] = {"on_used_base": "accept"}
    for accepted in (once, dict[str, Any]()):
        with pf.FileSink(tmp_path, uid="second", format="text", **accepted).local() as out:
            out.write(pa.record_batch({"row": ["x"]}))
    assert len(list(tmp_path.glob("part-*"))) == 2


def test_what_no_sink_has_written_is_in_no_way(tmp_path: Path) -> None:
    """Files of Spark, of Flink and of people, and directories that are called as a log may be."""
    for name in (
        "part-00000-1a2b3c4d-1234-4567-8910-1a2b3c4d5e6f-c000.snappy.parquet",
        "part-0-0",
        "report-2026-11-25.csv",
        "events-20240101-12-30.json",
        ".part-1a2b3c4d-0-0.txt.crc",
        "_archive/part-1a2b3c4d-0-0.txt",
        "_partfile/notes.txt",
        "_SUCCESS",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "_partfile" / "life").mkdir()
    (tmp_path / "_partfile" / "linked").symlink_to(tmp_path)
    (tmp_path / "_partfile" / "other" / "notes").mkdir(parents=True)
    with pf.FileSink(tmp_path, uid="u", format="text").local() as out:
        out.write(pa.record_batch({"row": ["x"]}))
    assert len(list(tmp_path.glob("part-*-*-*.txt"))) == 1


def test_a_first_start_that_died_is_in_no_way_of_the_next_one(tmp_path: Path) -> None:
    """It left a directory without a checkpoint; also where the directory of the checkpoints was given as it is."""
    for uid in ("u", "v"):
        (tmp_path / "_partfile" / uid / "chk-1").mkdir(parents=True)
        (tmp_path / "_partfile" / uid / "chk-1" / f"_tmp.{'0' * 32}").write_bytes(b"half")
    with pf.FileSink(tmp_path, uid="u", format="text", checkpoint_dir=str(tmp_path / "_partfile")).local() as out:
        out.write(pa.record_batch({"row": ["x"]}))
    with pf.FileSink(tmp_path, uid="u", format="text").local() as out:
        out.write(pa.record_batch({"row": ["y"]}))
    assert len(list(tmp_path.glob("part-*"))) == 2


def test_what_another_start_of_this_sink_has_written_meanwhile_is_in_no_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R7: it saw an empty log and slept, while the other one ran to the end; then it begins after it."""
    see, slept = CheckpointLog.see, list[None]()

    def see_and_sleep(log: CheckpointLog) -> Any:
        end = see(log)
        if not slept:
            slept.append(None)
            run_to_the_end(make_sink(tmp_path), 6)
        return end

    monkeypatch.setattr(CheckpointLog, "see", see_and_sleep)
    with make_sink(tmp_path).local() as out:
        assert out.position == 6
    assert rows_of(finished_files(tmp_path)).total() == 6


def test_the_writers_of_one_sink_begin_one_after_the_other(tmp_path: Path) -> None:
    """Each begins a log of its own, one after the other, in any order, also where the checkpoints are elsewhere."""
    for checkpoint_dir in (None, str(tmp_path / "elsewhere")):
        base = tmp_path / f"base-{checkpoint_dir is None}"
        for index in (1, 0, 2):
            sink = pf.FileSink(base, uid="u", format="text", checkpoint_dir=checkpoint_dir)
            with sink.local(subtask_index=index) as out:
                out.write(pa.record_batch({"row": [str(index)]}))
        assert len(list(base.glob("part-*"))) == 3
