"""``recover --set-aside``: a part of which no file can be made keeps no other one waiting, and its rows stay."""

from __future__ import annotations

import shlex
import shutil
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from partfile.errors import CommitConflict, PartfileError, PartMissing, RecoveryRefused
from partfile.sink import encode
from partfile.sink.encode import set_aside
from partfile.stores.local.posix import CHANGING_CALLS
from partfile.stores.local.store import LocalStore
from partfile.testing.faults import CrashAt, SimulatedCrash
from partfile.writers.parquet import ParquetFormat
from support.processes.command_line import run, told, told_json
from support.sinks.life_cycle import batch, everything
from support.sinks.recovery import broken_invariants, clean_all, planned_recovery, recover_all
from support.sinks.shared_streams import closed, die_sharing, sharing_sink
from support.sinks.staged_streams import (
    finished_rows,
    leave_staging_files_of_a_refused_spec,
    names,
    staged_sink,
    staging_files_in,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


BAD_ROWS = Counter({"row-0001": 1, "row-0003": 1})


def arrow_files(base: Path) -> list[Path]:
    """The files with rows that were set aside."""
    return sorted((base / "_partfile" / "_set-aside").glob("**/*.arrow"))


def rows_aside(base: Path) -> Counter[str]:
    """How often each row is in one of them."""
    found: Counter[str] = Counter()
    for path in arrow_files(base):
        found.update(pa.ipc.open_file(path).read_all()["row"].to_pylist())
    return found


def refuse(monkeypatch: pytest.MonkeyPatch, refused: str) -> None:
    """Let no Parquet file be made of a staging file with this row."""
    encode_all = ParquetFormat.encode

    def encode_others(form: ParquetFormat, batches: Iterable[pa.RecordBatch], schema: pa.Schema, stream: Any) -> int:
        held = list(batches)
        if any(refused in batch["row"].to_pylist() for batch in held):
            raise pa.ArrowInvalid(f"{refused} is refused")
        return encode_all(form, held, schema, stream)

    monkeypatch.setattr(ParquetFormat, "encode", encode_others)


def leave_a_bad_part_beside_a_good_one(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows 0 and 2 in a finished file; 1 and 3 in a staging file that nothing can encode, which ended a start."""
    out = staged_sink(base).local().open()
    out.write(batch(0, 4))
    out.checkpoint()
    out.close()
    # Not before, since a first batch is tried out before it is staged.
    refuse(monkeypatch, "row-0001")
    with pytest.raises(PartfileError, match="cannot be encoded"):
        staged_sink(base).local().open()


def bad_parts(base: Path) -> list[str]:
    """Final paths of the parts that wait to be encoded."""
    return [part.path for job in planned_recovery(base).jobs for part in job.parts if part.is_staged]


def test_the_command_of_the_error_lets_the_sink_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Good parts are finished at once; the start is refused until the bad part is set aside, as the error says."""
    base = tmp_path / "out"
    leave_a_bad_part_beside_a_good_one(base, monkeypatch)
    assert finished_rows(base) == {"row-0000": 1, "row-0002": 1}
    with pytest.raises(PartfileError, match="cannot be encoded") as refused:
        staged_sink(base).local().open()
    words = shlex.split(refused.value.hint.rpartition(": ")[2])
    assert words[:2] == ["partfile", "recover"]
    plan = told(*words[1:], code=1)
    assert "set aside: keep" in plan
    assert "(2 rows) as Arrow files" in plan
    digest = told_json(*words[1:], code=1)["digest"]
    done = told(*words[1:], "--apply", "--plan", digest, "--idle-for", "0s")
    assert "rows set aside, as Arrow files" in done
    for first in range(4, 8):
        with staged_sink(base).local() as out:
            out.write(batch(first, 1))
    assert finished_rows(base) == {"row-0000": 1, "row-0002": 1} | names(4, 8)
    assert not list(base.glob("bucket=b1/_part-*-0-1.parquet.*")), "deleted once no retained checkpoint names it"
    assert rows_aside(base) == BAD_ROWS
    assert not broken_invariants(base)
    report = told_json("status", base, code=1)
    assert len(report["set_aside"]) == 1
    text = told("status", base, code=1)
    assert "SET ASIDE: 1 part," in text
    assert str(arrow_files(base)[0].parent) in text
    assert clean_all(base, older_than_s=0, delete=True) is None, "no cleaner takes rows for garbage"
    shutil.rmtree(base / "_partfile" / "_set-aside")
    assert told_json("status", base)["set_aside"] == []


def test_other_tools_read_what_was_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uncompressed Arrow files: polars and pyarrow read them, and DuckDB by way of either."""
    leave_staging_files_of_a_refused_spec(tmp_path, monkeypatch)
    (done,) = recover_all(tmp_path, set_aside=tuple(bad_parts(tmp_path)))
    assert len(done.set_aside) == 2
    assert (done.published, done.owed, done.closed_staging_files) == (0, 0, 0)
    rows = pl.concat(pl.read_ipc(path) for path in arrow_files(tmp_path))
    assert dict(Counter(rows["row"].to_list())) == names(0, 4)
    aside = pa.concat_tables([pa.ipc.open_file(path).read_all() for path in arrow_files(tmp_path)])
    assert duckdb.from_arrow(aside).count("row").fetchall() == [(4,)]


def test_rows_set_aside_go_back_into_the_sink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way that the runbook names. Columns that only the path held come back from there."""
    leave_staging_files_of_a_refused_spec(tmp_path, monkeypatch)
    recover_all(tmp_path, set_aside=tuple(bad_parts(tmp_path)))
    with staged_sink(tmp_path).local() as out:
        aside = ds.dataset(
            tmp_path / "_partfile" / "_set-aside", format="arrow", partitioning="hive", exclude_invalid_files=False
        )
        for rows in aside.to_batches():
            out.write(rows)
    assert finished_rows(tmp_path) == names(0, 4)


def test_a_kill_at_any_call_loses_and_doubles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Either the part still waits, and the command can be repeated; or its rows are set aside, once."""
    seed = tmp_path / "seed"
    leave_a_bad_part_beside_a_good_one(seed, monkeypatch)
    (bad,), moments = bad_parts(seed), 0
    while True:
        base = tmp_path / f"out{moments}"
        shutil.copytree(seed, base)
        killer = CrashAt(moments + 1, "after", only=CHANGING_CALLS)
        with suppress(SimulatedCrash):
            recover_all(base, killer, set_aside=(bad,))
        still = bad_parts(base)
        assert still or rows_aside(base) == BAD_ROWS
        if still:
            recover_all(base, set_aside=(bad,))
        with staged_sink(base).local() as out:
            out.write(batch(4, 1))
        assert rows_aside(base) == BAD_ROWS
        assert finished_rows(base) == {"row-0000": 1, "row-0002": 1, "row-0004": 1}
        shutil.rmtree(base)
        if not killer.has_crashed:
            break
        moments += 1
    assert moments > 20


def test_only_what_waits_to_be_encoded_can_be_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong name, one given twice, or one of an open part that is no staging file: nothing is changed."""
    leave_staging_files_of_a_refused_spec(tmp_path, monkeypatch)
    first, second = bad_parts(tmp_path)
    before = everything(tmp_path)
    for wrong in (("no-such-part",), (first, first), (first, second, "no-such-part")):
        with pytest.raises(RecoveryRefused, match="named to be set aside") as refused:
            planned_recovery(tmp_path, set_aside=wrong)
        assert first in refused.value.hint
    assert everything(tmp_path) == before
    (tmp_path / "no-sink").mkdir()
    assert "no sink has checkpoints" in run("recover", tmp_path / "no-sink", "--set-aside", first).stderr


def test_the_name_of_the_staging_file_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors print it, and lists."""
    leave_staging_files_of_a_refused_spec(tmp_path, monkeypatch)
    staged = [str(path.relative_to(tmp_path)) for path in staging_files_in(tmp_path)]
    (done,) = recover_all(tmp_path, set_aside=tuple(staged))
    assert len(done.set_aside) == 2


def test_a_missing_staging_file_is_not_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows are gone; the word for that is another one."""
    leave_staging_files_of_a_refused_spec(tmp_path, monkeypatch)
    first, second = bad_parts(tmp_path)
    staging_files_in(tmp_path)[0].unlink()
    with pytest.raises(PartMissing, match="under none of their names"):
        recover_all(tmp_path, set_aside=(first, second))
    assert not arrow_files(tmp_path)
    (done,) = recover_all(tmp_path, set_aside=(first, second), accept_missing=True)
    assert (done.given_up, len(done.set_aside)) == (1, 1)


def test_of_a_multi_bucket_staging_file_only_rows_without_a_file_are_set_aside(tmp_path: Path) -> None:
    """With the bucket of each in the last column."""
    die_sharing(sharing_sink(tmp_path))
    staging_file = closed(tmp_path)
    what = staging_file.staging_file.model_copy(update={"finished_buckets": ("k=1", "k=2")})
    with LocalStore(str(tmp_path)) as store:
        directory = set_aside(store, store, staging_file.model_copy(update={"staging_file": what}))
    (path,) = (tmp_path / directory).iterdir()
    buckets = set(pa.ipc.open_file(path).read_all()["bucket"].to_pylist())
    assert buckets == {f"k={number}" for number in range(12)} - {"k=1", "k=2"}


def test_a_repeated_try_keeps_what_is_there_and_refuses_other_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of an earlier try that was killed are compared; memory bounds each of them."""
    die_sharing(sharing_sink(tmp_path))
    staging_file = closed(tmp_path)
    monkeypatch.setattr(encode, "MOST_HELD_BYTES", 1)
    with LocalStore(str(tmp_path)) as store:
        directory = tmp_path / set_aside(store, store, staging_file)
        files = everything(directory)
        assert len(files) > 1
        sum_of = sum(pa.ipc.open_file(path).read_all().num_rows for path in files)
        assert sum_of == staging_file.rows
        max(files).unlink()
        set_aside(store, store, staging_file)
        assert everything(directory) == files
        for content in (b"not arrow", sorted(files)[1].read_bytes()):
            min(files).write_bytes(content)
            with pytest.raises(CommitConflict, match="does not hold the rows"):
                set_aside(store, store, staging_file)
