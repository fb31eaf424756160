"""Jobs of one thread: from a source through functions into a sink, each row once whatever fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from textwrap import dedent
from threading import Timer
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import partfile as pf
from partfile.errors import CheckpointMismatch, ConfigError
from partfile.sink.local import LocalSink
from support.processes.deadline import PATIENCE_S

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pydantic import JsonValue


def sink_in(path: Path, **options: Any) -> pf.FileSink:
    """A sink of JSON lines below a directory."""
    return pf.FileSink(path / "out", uid="job", format="json", **options)


def numbers(first: int, last: int) -> pa.RecordBatch:
    """Rows with numbers."""
    return pa.record_batch({"id": pa.array(range(first, last), pa.int64())})


def ids_in(path: Path) -> list[int]:
    """What the finished files hold, sorted."""
    return (
        sorted(pf.read(path / "out", schema=pa.schema({"id": pa.int64()})).to_table()["id"].to_pylist())
        if (path / "out").exists()
        else []
    )


def job_of(path: Path, source: pf.IterableSource, **options: Any) -> pf.Pipeline:
    """A job that writes what a source yields."""
    return pf.Pipeline("job", **options).source(source).sink(sink_in(path))


def test_each_row_of_an_iterable_is_written_once(tmp_path: Path) -> None:
    """With functions in between, over two runs, of which the second passes over what counts."""
    batches = [numbers(0, 10), numbers(10, 20)]
    for _ in range(2):
        job = pf.Pipeline("job").source(pf.IterableSource(batches)).map_batches(lambda rows: rows.slice(1))
        result = job.sink(sink_in(tmp_path)).run()
        assert result.is_ended
        assert result.position == {"items": 2, "last": None}
        assert ids_in(tmp_path) == [*range(1, 10), *range(11, 20)]


def test_rows_behind_a_position_are_asked_for(tmp_path: Path) -> None:
    """By a function that begins there; the position is that of the item."""
    asked: list[JsonValue] = []

    def items(position: JsonValue) -> Iterator[pa.RecordBatch]:
        asked.append(position)
        begin = 0 if position is None else int(str(position))
        return (numbers(at, at + 5) for at in range(begin, begin + 10, 5))

    for _ in range(2):
        source = pf.IterableSource(items, position=lambda rows: rows["id"][-1].as_py() + 1)
        job_of(tmp_path, source).run()
    assert asked == [None, 10]
    assert ids_in(tmp_path) == list(range(20))


class Flaky:
    """A source that fails before some reads, and is opened again behind a position.

    Args:
        fails: At which reads of all, counted from 1.
        error: What is raised.
    """

    def __init__(self, fails: set[int], error: Callable[[], Exception]) -> None:
        self.fails = fails
        self.error = error
        self.reads = 0
        self.confirmed: list[JsonValue] = []
        self.opened: list[JsonValue] = []
        self.closed = 0

    def open(self, position: JsonValue, job: str, dead_letters: object) -> Any:
        """Begin behind a position."""
        assert (job, dead_letters) == ("job", None)
        self.opened.append(position)
        return FlakyReader(self, int(str(position or 0)))


class FlakyReader:
    """Yields 50 rows, one at a time."""

    def __init__(self, source: Flaky, at: int) -> None:
        self.source = source
        self.position: Any = at
        self.is_ended = False
        self.lag: dict[str, int] = {}

    def read(self, timeout_s: float) -> Any:
        """The next row."""
        assert timeout_s >= 0
        self.source.reads += 1
        if self.source.reads in self.source.fails:
            raise self.source.error()
        if self.position == 50:
            self.is_ended = True
            return None
        self.position += 1
        return numbers(self.position - 1, self.position)

    def confirm(self, position: JsonValue) -> None:
        """Take note."""
        self.source.confirmed.append(position)

    def close(self) -> None:
        """Count it."""
        self.source.closed += 1


def test_a_job_that_fails_begins_again_from_its_newest_checkpoint(tmp_path: Path) -> None:
    """Rows since then come again, and count once. Confirmed are positions of complete checkpoints alone."""
    source = Flaky({10, 11, 40}, lambda: OSError("deliberate"))
    job = pf.Pipeline("job", interval_s=0.001, restart=pf.Restart(3, delay_s=0)).source(source).sink(sink_in(tmp_path))
    result = job.run()
    assert (result.restarts, result.is_ended, result.position) == (3, True, 50)
    assert ids_in(tmp_path) == list(range(50))
    assert source.confirmed == sorted(source.confirmed, key=lambda one: int(str(one)))
    assert source.confirmed[-1] == 50
    assert set(source.opened[1:]) <= {None, *source.confirmed}
    assert source.closed == len(source.opened) == 4


def test_failures_in_a_row_end_the_job(tmp_path: Path) -> None:
    """With its error, and nothing half-written; a failure behind a checkpoint is the first of a row again."""
    source = Flaky({1, 2, 3}, lambda: OSError("deliberate"))
    job = pf.Pipeline("job", restart=pf.Restart(2, delay_s=0)).source(source).sink(sink_in(tmp_path))
    with pytest.raises(OSError, match="deliberate"):
        job.run()
    assert len(source.opened) == 3
    assert ids_in(tmp_path) == []
    for error in (ConfigError("c"), CheckpointMismatch("m")):
        source = Flaky({1}, lambda error=error: error)  # type: ignore[misc]
        with pytest.raises(type(error)):
            pf.Pipeline("job", restart=pf.Restart(9, delay_s=0)).source(source).sink(sink_in(tmp_path)).run()
        assert len(source.opened) == 1


def test_another_input_than_the_checkpoint_is_of_is_refused(tmp_path: Path) -> None:
    """Fewer items, or a position of another source; nothing is changed."""
    job_of(tmp_path, pf.IterableSource([numbers(0, 5), numbers(5, 9)])).run()
    with pytest.raises(CheckpointMismatch, match="the iterable has 1 items, and 2 were read before"):
        job_of(tmp_path, pf.IterableSource([numbers(0, 5)])).run()
    with pytest.raises(CheckpointMismatch, match="stands at 2, which is no position of Kafka"):
        pf.KafkaSource(brokers="127.0.0.1:1", topic="t").open(2, "job", None)
    assert ids_in(tmp_path) == list(range(9))


@pytest.mark.parametrize("are_rows", [False, True])
def test_dead_letters_are_written_once_though_a_crash_parts_them_from_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, are_rows: bool
) -> None:
    """Their checkpoint is complete, and that of the rows is not. The next runs stop before they are there again."""
    source = Dead(40)
    dead = pf.FileSink(tmp_path / "dead", uid="dead", format="json")
    checkpoint = LocalSink.checkpoint

    def failing(sink: LocalSink, position: JsonValue = None) -> Any:
        if sink._settings.uid == "job" and int(str(position or 0)) >= 20:
            raise OSError("deliberate")
        return checkpoint(sink, position)

    def stop_at(end: int) -> pf.Pipeline:
        job = pf.Pipeline("job", interval_s=0.001 if is_late else 3600)
        source.ends = lambda at: job.stop() if at >= end else None
        return job.source(source, dead_letters=dead).sink(sink_in(tmp_path))

    is_late = False
    monkeypatch.setattr(LocalSink, "checkpoint", failing)
    with pytest.raises(OSError, match="deliberate"):
        stop_at(20).run()
    monkeypatch.setattr(LocalSink, "checkpoint", checkpoint)
    is_late = True
    source.as_rows = are_rows  # What was a dead letter stays one, also where it would be a row by now.
    for end in (5, 12, 18, 30, 41):
        stop_at(end).run()
    lines = [json.loads(line) for one in (tmp_path / "dead").rglob("part-*.json") for line in one.open()]
    written = sorted([*ids_in(tmp_path), *(one["id"] for one in lines)])
    assert written == list(range(40))
    assert {one["id"] for one in lines} >= {1, 3, 5, 7, 9, 11, 13, 15, 17, 19}


class Dead:
    """Rows, one at a time, of which each odd one is a dead letter.

    Args:
        count: How many.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.as_rows = False
        self.ends: Callable[[int], None] = lambda _at: None

    def open(self, position: JsonValue, job: str, dead_letters: Any) -> Any:
        """Begin behind a position."""
        assert job == "job"
        return DeadReader(self, int(str(position or 0)), dead_letters)


class DeadReader(FlakyReader):
    """Reads them."""

    def __init__(self, source: Dead, at: int, dead_letters: Any) -> None:
        self.dead = source
        self.position = at
        self.is_ended = False
        self.lag = {}
        self.dead_letters = dead_letters
        dead_letters.forget_before("0", at)

    def read(self, timeout_s: float) -> Any:
        """The next one; a checkpoint comes after each, so that the clock is let pass."""
        time.sleep(0.0015 if timeout_s else 0)
        self.dead.ends(self.position)
        if self.position >= self.dead.count:
            self.is_ended = True
            return None
        at, self.position = self.position, self.position + 1
        if self.dead_letters.pass_over("0", at):
            return numbers(0, 0)
        if at % 2 and not self.dead.as_rows:
            self.dead_letters.write(numbers(at, at + 1), [("0", at)])
            return numbers(0, 0)
        return numbers(at, at + 1)

    def confirm(self, position: JsonValue) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


def test_dead_letters_belong_to_their_rows(tmp_path: Path) -> None:
    """Those of another uid, and those that are there before the rows, are refused: records would be passed over."""
    dead = pf.FileSink(tmp_path / "dead", uid="dead", format="json")
    pf.Pipeline("job").source(Dead(4), dead_letters=dead).sink(sink_in(tmp_path)).run()
    other = pf.FileSink(tmp_path / "other", uid="other", format="json")
    with pytest.raises(CheckpointMismatch, match="with uid 'dead' belong to 'job', and not to 'other'"):
        pf.Pipeline("job").source(Dead(4), dead_letters=dead).sink(other).run()
    elsewhere = pf.FileSink(tmp_path / "elsewhere", uid="job", format="json")
    with pytest.raises(CheckpointMismatch, match="with uid 'dead' are there, and the rows with uid 'job' are not"):
        pf.Pipeline("job").source(Dead(4), dead_letters=dead).sink(elsewhere).run()
    with pytest.raises(ConfigError, match="an IterableSource has no dead letters"):
        pf.Pipeline("job").source(pf.IterableSource([]), dead_letters=dead).sink(sink_in(tmp_path)).run()


def test_dead_letters_do_not_go_back_to_a_savepoint(tmp_path: Path) -> None:
    """With the rows: those behind it would be written again."""
    dead = pf.FileSink(tmp_path / "dead", uid="dead", format="json")
    job = pf.Pipeline("job").source(Dead(4), dead_letters=dead)
    job.sink(sink_in(tmp_path, savepoint_dir=tmp_path / "savepoints")).run()
    with sink_in(tmp_path, savepoint_dir=tmp_path / "savepoints").local() as out:
        location = out.savepoint()
    moved = pf.FileSink(tmp_path / "moved", uid="job", format="json", restore_from=location)
    with pytest.raises(CheckpointMismatch, match="'dead' do not go back, and the rows with uid 'job' have gone back"):
        pf.Pipeline("job").source(Dead(8), dead_letters=dead).sink(moved).run()
    new = pf.FileSink(tmp_path / "new", uid="new", format="json")
    for _ in range(2):
        result = pf.Pipeline("job").source(Dead(8), dead_letters=new).sink(moved).run()
    assert result.position == 8
    lines = [json.loads(line) for one in (tmp_path / "new").rglob("part-*.json") for line in one.open()]
    assert sorted(one["id"] for one in lines) == [5, 7]


def test_dead_letters_alone_do_not_begin_the_count_of_failures_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a job whose rows cannot be written would begin again for ever."""
    checkpoint, failures = LocalSink.checkpoint, list[int]()

    def failing(sink: LocalSink, position: JsonValue = None) -> Any:
        if sink._settings.uid == "job" and failures:
            failures.append(1)
            raise OSError("deliberate")
        return checkpoint(sink, position)

    source = Dead(1000)
    dead = pf.FileSink(tmp_path / "dead", uid="dead", format="json")
    job = pf.Pipeline("job", interval_s=0.001, restart=pf.Restart(3, delay_s=0)).source(source, dead_letters=dead)
    job.sink(sink_in(tmp_path))
    source.ends = lambda at: failures.append(1) if at == 6 else None
    monkeypatch.setattr(LocalSink, "checkpoint", failing)
    with pytest.raises(OSError, match="deliberate"):
        job.run()
    assert 4 <= len(failures) <= 12


def test_a_position_that_the_program_changes_is_kept_as_it_was() -> None:
    """Though an item was looked at beyond the rows that were handed on."""
    position: dict[str, JsonValue] = {"at": 0}

    def items(_position: JsonValue) -> Iterator[Any]:
        position["at"] = 1
        yield {"id": 0}
        position["at"] = 2
        yield numbers(1, 2)

    source = pf.IterableSource(items, schema={"id": "int64"}, position=lambda _item: position)
    reader = source.open(None, "job", None)
    assert len(reader.read(1) or ()) == 1
    assert reader.position == {"at": 1}
    assert len(reader.read(1) or ()) == 1
    assert reader.position == {"at": 2}


def test_a_checkpoint_comes_before_too_many_dead_letters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their places are in its position, which has a limit."""
    monkeypatch.setattr("partfile.pipeline.dead_letters._MOST_AHEAD", 2)
    dead = pf.FileSink(tmp_path / "dead", uid="dead", format="json")
    told: list[pf.JobProgress] = []
    job = pf.Pipeline("job", interval_s=3600, on_progress=told.append)
    result = job.source(Dead(40), dead_letters=dead).sink(sink_in(tmp_path)).run()
    assert result.dead_letters == 20
    assert result.rows == 20
    assert len(told) >= 10
    assert [one.dead_letters for one in told[1:4]] == [2, 4, 6]


@pytest.mark.parametrize("items", [iter([numbers(0, 5)] * 4), (numbers(0, 5) for _ in range(4))])
def test_what_can_be_gone_through_once_is_not_begun_again(tmp_path: Path, items: Any) -> None:
    """Else a restart would go on in the middle, and report success."""
    calls: list[int] = []

    def fail_once(rows: pa.RecordBatch) -> pa.RecordBatch:
        calls.append(1)
        if len(calls) == 2:
            raise OSError("deliberate")
        return rows

    job = pf.Pipeline("job", restart=pf.Restart(3, delay_s=0)).source(pf.IterableSource(items))
    with pytest.raises(CheckpointMismatch, match="which can be gone through once"):
        job.map_batches(fail_once).sink(sink_in(tmp_path)).run()
    assert ids_in(tmp_path) == []


def test_dictionaries_are_taken_as_they_are(tmp_path: Path) -> None:
    """One that is used again, those before a batch, and another one in the place of the last."""

    def items(count: int, first: int = 0) -> Iterator[Any]:
        row: dict[str, int] = {}
        for number in range(first, first + count):
            row["id"] = number
            yield row
        yield numbers(100, 102)

    schema = {"id": "int64"}
    job_of(tmp_path, pf.IterableSource([*map(dict, items(5))][:0] + list(copied(items(5))), schema=schema)).run()
    assert ids_in(tmp_path) == [0, 1, 2, 3, 4, 100, 101]
    again = pf.IterableSource(list(copied(items(5, 7))), schema=schema)
    assert job_of(tmp_path, again).run().rows == 0  # The last item is a batch, of which no sum is kept.
    job_of(tmp_path / "b", pf.IterableSource([{"id": 1}, {"id": 2}], schema=schema)).run()
    with pytest.raises(CheckpointMismatch, match="yields another item 2 than the one that was read before"):
        job_of(tmp_path / "b", pf.IterableSource([{"id": 0}, {"id": 1}, {"id": 2}], schema=schema)).run()
    job_of(tmp_path / "c", pf.IterableSource(items(5), schema=schema)).run()
    assert ids_in(tmp_path / "c") == [0, 1, 2, 3, 4, 100, 101]


def copied(items: Iterator[Any]) -> Iterator[Any]:
    """Items whose dictionaries are their own."""
    return (dict(item) if isinstance(item, dict) else item for item in items)


def test_a_slow_iterable_has_checkpoints_and_stops(tmp_path: Path) -> None:
    """Rows do not wait until there are many."""

    def items(position: JsonValue) -> Iterator[dict[str, int]]:
        for number in range(int(str(position or 0)), 10_000):
            time.sleep(0.02)
            yield {"id": number}

    told: list[pf.JobProgress] = []
    source = pf.IterableSource(items, schema={"id": "int64"}, position=lambda row: row["id"] + 1)
    job = pf.Pipeline("job", interval_s=0.1, on_progress=told.append).source(source).sink(sink_in(tmp_path))
    Timer(1, job.stop).start()
    result = job.run()
    assert not result.is_ended
    assert 3 <= len(told) <= 20
    assert ids_in(tmp_path) == list(range(result.rows))
    assert 5 <= result.rows <= 100
    Timer(0.3, job.stop).start()
    again = job.run()
    assert ids_in(tmp_path) == list(range(result.rows + again.rows))


def test_a_listener_that_fails_harms_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged."""

    def listen(_done: pf.JobProgress) -> None:
        raise ValueError("deliberate")

    job = job_of(tmp_path, pf.IterableSource([numbers(0, 9)]), restart=pf.Restart(2, delay_s=0), on_progress=listen)
    assert job.run().restarts == 0
    assert ids_in(tmp_path) == list(range(9))
    assert "on_progress has failed; the job goes on" in caplog.text


def test_what_cannot_be_closed_does_not_hide_why_a_job_ends(tmp_path: Path) -> None:
    """Else an error that no restart mends would be tried again."""
    source = Flaky({1}, lambda: CheckpointMismatch("m"))

    def close(_reader: FlakyReader) -> None:
        source.closed += 1
        raise OSError("deliberate")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(FlakyReader, "close", close)
        with pytest.raises(CheckpointMismatch):
            pf.Pipeline("job", restart=pf.Restart(9, delay_s=0)).source(source).sink(sink_in(tmp_path)).run()
    assert len(source.opened) == source.closed == 1


@pytest.mark.parametrize(
    ("given", "told"),
    [(None, "type NoneType"), ([{"id": 1}], "type list"), (pa.array([1]), "type Int64Array"), (3, "type int")],
)
def test_a_function_gives_rows_with_columns(tmp_path: Path, given: Any, told: str) -> None:
    """Else nothing is written, and the error names it."""

    def function(_rows: object) -> Any:
        return given

    job = pf.Pipeline("job").source(pf.IterableSource([numbers(0, 1)])).map_batches(function).sink(sink_in(tmp_path))
    with pytest.raises(ConfigError, match=f"function gives rows of {told}, which has no columns with types"):
        job.run()


def test_functions_are_applied_in_their_order(tmp_path: Path) -> None:
    """Each to what the one before it has made; one may leave no row."""
    job = pf.Pipeline("job").source(pf.IterableSource([numbers(0, 10), numbers(10, 20)]))
    job.map_batches(lambda rows: rows.slice(5)).map_batches(lambda rows: rows.slice(0, 2))
    job.map_batches(lambda rows: rows if rows["id"][0].as_py() > 9 else rows.slice(0, 0))
    assert job.sink(sink_in(tmp_path)).run().rows == 2
    assert ids_in(tmp_path) == [15, 16]


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: pf.Pipeline("a", interval_s=0), "^interval_s is 0"),
        (lambda: pf.Pipeline("a", interval_s=None), "interval_s is None"),  # type: ignore[arg-type]
        (lambda: pf.Pipeline("a", restart=3), "restart=3 is no Restart"),  # type: ignore[arg-type]
        (lambda: pf.Pipeline("a", on_progress=3), "on_progress=3 is no function"),  # type: ignore[arg-type]
        (lambda: pf.Restart(-1), "attempts=-1"),
        (lambda: pf.Restart(1, delay_s="soon"), "delay_s='soon'"),
        (lambda: pf.Restart(1, delay_s=timedelta(days=2)), "is no time up to a day"),
        (lambda: pf.IterableSource("abc"), "items='abc' is no iterable of rows"),
        (lambda: pf.IterableSource({"id": 1}), "is no iterable of rows"),
        (lambda: pf.IterableSource([], position=len), "items is no function that begins behind one"),
        (lambda: pf.IterableSource(lambda _position: []), "nothing says where the input stands"),
        (lambda: pf.IterableSource([], rows_at_once=0), "rows_at_once=0"),
        (lambda: pf.IterableSource([], position=3), "position=3 is no function"),  # type: ignore[arg-type]
        (lambda: pf.Pipeline("a").source([]), "is no source"),  # type: ignore[arg-type]
        (lambda: pf.Pipeline("a").source(pf.IterableSource([])).source(pf.IterableSource([])), "a source already"),
        (lambda: pf.Pipeline("a").source(pf.IterableSource([]), dead_letters="x"), "dead_letters='x'"),  # type: ignore[arg-type]
        (lambda: pf.Pipeline("a").map_batches(3), "3 is no function"),  # type: ignore[arg-type]
        (lambda: pf.Pipeline("a").sink("x"), "'x' is no sink"),  # type: ignore[arg-type]
        (lambda: pf.Pipeline("a").source(pf.IterableSource([])).run(), "the job has no sink"),
    ],
)
def test_what_cannot_be_used_is_refused(make: Any, told: str) -> None:
    """By its name, with what to write instead."""
    with pytest.raises(ConfigError, match=told) as refused:
        make()
    assert refused.value.hint


PROGRAM = """
    import sys, time
    import pyarrow as pa
    import partfile as pf

    def items(position):
        at = position or 0
        while at < 4000:
            at += 10
            time.sleep(0.002)
            yield pa.record_batch({"id": pa.array(range(at - 10, at), pa.int64())})
            print(at, flush=True)

    sink = pf.FileSink(sys.argv[1] + "/out", uid="job", format="json")
    job = pf.Pipeline("job", interval_s=0.05)
    job.source(pf.IterableSource(items, position=lambda rows: rows["id"][-1].as_py() + 1)).sink(sink)
    print(job.run(), flush=True)
"""


def run_program(path: Path) -> subprocess.Popen[str]:
    """A process that runs a job of 4000 rows."""
    command = [sys.executable, "-c", dedent(PROGRAM), str(path)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_a_job_that_is_killed_loses_and_doubles_nothing(tmp_path: Path, rng: random.Random) -> None:
    """At any instant, several times; the last run goes to the end."""
    for _ in range(4):
        process = run_program(tmp_path)
        assert process.stdout is not None
        for _ in range(rng.randint(1, 60)):
            process.stdout.readline()
        process.kill()
        process.wait(PATIENCE_S)
        process.stdout.close()
        found = ids_in(tmp_path)
        assert found == sorted(set(found))
    process = run_program(tmp_path)
    told, _ = process.communicate(timeout=PATIENCE_S)
    assert "is_ended=True" in told
    assert ids_in(tmp_path) == list(range(4000))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_job_that_is_told_to_stop_publishes_everything(tmp_path: Path, number: signal.Signals) -> None:
    """And ends without an error; the next one goes on."""
    process = run_program(tmp_path)
    assert process.stdout is not None
    for _ in range(20):
        process.stdout.readline()
    process.send_signal(number)
    told, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert "is_ended=False" in told
    found = ids_in(tmp_path)
    assert found == list(range(len(found)))
    assert len(found) >= 200
    assert not [name for _, _, names in os.walk(tmp_path / "out") for name in names if "inprogress" in name]


def test_another_thread_stops_a_job(tmp_path: Path) -> None:
    """Signals are the main thread's; ``stop`` is for all."""
    job = job_of(tmp_path, pf.IterableSource(forever, position=lambda rows: rows["id"][0].as_py()))

    Timer(0.3, job.stop).start()
    result = job.run()
    assert not result.is_ended
    found = ids_in(tmp_path)
    assert found == list(range(len(found)))


def forever(position: JsonValue) -> Iterator[pa.RecordBatch]:
    """Rows without end."""
    at = -1 if position is None else int(str(position))
    while True:
        at += 1
        time.sleep(0.01)
        yield numbers(at, at + 1)
