"""What goes wrong in a user's first hour, and what the error says: the cause, in the user's words, and what to type."""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pytest

import partfile as pf
from partfile.errors import PartfileError
from support.processes.command_line import run

if TYPE_CHECKING:
    from pathlib import Path

ROWS = pa.table({"id": [1, 2], "day": ["a", "b"]})
NO_DAY = pa.table({"id": [1], "day": pa.array([None], "string")})


def sink(base: Any, **options: Any) -> pf.FileSink:
    return pf.FileSink(base, **({"uid": "first", "format": "json"} | options))


def write(base: Path, rows: Any = ROWS, position: Any = None, interval_s: float | None = None, **options: Any) -> None:
    with sink(base, **options).local(checkpoint_interval_s=interval_s) as out:
        out.write(rows, position)


def two_writers(base: Path) -> None:
    with contextlib.ExitStack() as stack:
        first, second = sink(base).local().open(), sink(base).local().open()
        stack.callback(second.close)
        first.write(ROWS)
        first.checkpoint()


MISTAKES: dict[str, tuple[Any, str, str]] = {
    # What is done, then words of the message and of the hint.
    "uid with a slash": (lambda base: sink(base, uid="a/b"), "uid='a/b'", "uid='a_b'"),
    "another word for JSON lines": (lambda base: sink(base, format="jsonl"), "'jsonl' is not known", "mean json?"),
    "another word for gzip": (lambda base: sink(base, compression="gz"), "'gz' is not known", "compression='gzip'"),
    "a compression that the format lacks": (
        lambda base: sink(base, format="orc", compression="brotli"),
        "brotli",
        "compression='",
    ),
    "an unknown option": (lambda base: sink(base, rolling_size=3), "no option 'rolling_size'", "mean rolling?"),
    "Spark's word for buckets": (lambda base: sink(base, partition_by=["day"]), "'partition_by'", "HiveBucketer("),
    "an option of the format": (
        lambda base: sink(base, compression_level=9),
        "no option 'compression_level'",
        "format_options={'compression_level'",
    ),
    "a level that there is not": (
        lambda base: sink(base, compression="gzip", format_options={"compression_level": 99}),
        "99",
        "compression_level",
    ),
    "an unknown option of rolling": (lambda _base: pf.RollingPolicy(max_bytes=3), "max_bytes=3", "max_part_bytes?"),  # type: ignore[call-arg]
    "parts of no bytes": (lambda _base: pf.RollingPolicy(max_part_bytes=0), "max_part_bytes=0", "128 MiB"),
    "a size without a unit": (lambda _base: pf.RollingPolicy(max_part_bytes="many"), "'many'", "128 MiB"),
    "a time without a unit": (lambda _base: pf.RollingPolicy(rollover_interval_s="soon"), "'soon'", "15m"),
    "yes for a time": (lambda _base: pf.RollingPolicy(rollover_interval_s=True), "rollover_interval_s=True", "15m"),
    "a zone that there is not": (lambda _base: pf.DateTimeBucketer("at", time_zone="Europe/Berln"), "Berln", "Berlin"),
    "a pattern of Java": (lambda _base: pf.DateTimeBucketer("at", format="yyyy-MM-dd"), "yyyy-MM-dd", "%Y/%m/%d"),
    "a bucketer by its name": (lambda base: sink(base, bucketer="day"), "bucketer='day'", "HiveBucketer("),
    "a column that there is not": (lambda base: write(base, bucketer=pf.HiveBucketer("dya")), "'dya'", "'day'?"),
    "all columns in the path": (
        lambda base: write(base, ROWS.select(["day"]), bucketer=pf.HiveBucketer("day")),
        "no column for the file",
        "keep_columns=True",
    ),
    "wrong number of buckets": (lambda base: write(base, bucketer=lambda _batch: ["x"]), "1", "bucket"),
    "a text of two columns": (lambda base: write(base, format="text"), "exactly one string column", "df.select("),
    "structs in CSV": (lambda base: write(base, pa.table({"a": [{"b": 1}]}), format="csv"), "Column 'a'", "json"),
    "a null in a directory's name": (
        lambda base: write(base, pa.table({"id": [1], "day": [None]}), bucketer=pf.HiveBucketer("day")),
        "'day' of type null",
        "df.withColumn(",
    ),
    "a base that is a file": (lambda _base: sink(__file__).local().open(), "is a file", "ls -l"),
    "a home directory": (lambda _base: sink("~/x"), "begins with ~", "os.path.expanduser('~/x')"),
    "a path of Databricks": (lambda _base: sink("dbfs:/x"), "'dbfs:/x'", "abfss://"),
    "a URL of Databricks": (lambda _base: sink("dbfs://x/y"), "to dbfs://", "abfss://"),
    "a URL of Databricks to read": (lambda _base: pf.read("dbfs://x/y"), "'dbfs://x/y'", "'instance': "),
    "S3 without a bucket": (lambda _base: sink("s3a:///x"), "names no S3 bucket", "s3://bucket/prefix"),
    "a client that is not installed": (
        lambda _base: sink("gs://bucket/x").local().open(),
        "gcsfs",
        "pip install gcsfs",
    ),
    "not opened": (lambda base: sink(base).local().write(ROWS), "not open", "with block"),
    "dictionaries without a schema": (
        lambda base: write(base, [{"id": 1}]),
        "not known",
        'local(schema={"id": "int64"})',
    ),
    "dictionaries of which the first has no value": (
        lambda base: write(base, [{"id": 1, "a": None}]),
        "not known",
        'local(schema={"id": "int64", "a": "string"})',
    ),
    "one dictionary": (lambda base: write(base, {"id": 1}), "one dictionary", "write([row])"),
    "a position that is no JSON": (lambda base: write(base, position=object()), "position holds", "int(value)"),
    "an interval without a position": (lambda base: write(base, interval_s=1), "needs a position", "checkpoint()"),
    "two writers": (two_writers, "taken over", ""),
    "a base that is not there": (lambda base: pf.read(base / "x"), "is not there", "partfile.read(BASE)"),
    "a file for a path of a schema": (
        lambda _base: pf.read_schema(__file__),
        "test_first_mistakes.py' is a file",
        "ls",
    ),
    "no path": (lambda _base: pf.read(None), "path=None", "partfile.read('landing/events')"),  # type: ignore[arg-type]
    "no path of a schema": (lambda _base: pf.read_schema(7), "path=7", "partfile.read("),  # type: ignore[arg-type]
    "options of a client that are no mapping": (
        lambda base: pf.read(base, storage_options=5),  # type: ignore[arg-type]
        "storage_options must be a mapping",
        'storage_options={"region"',
    ),
    "options of a sink's client that are no mapping": (
        lambda base: sink(base, storage_options=5),
        "storage_options: it must be a mapping",
        'storage_options={"region"',
    ),
    "affixes by a word": (lambda base: pf.read(base, sidecars="_"), "sidecars='_'", "sidecars=partfile.SidecarNaming("),  # type: ignore[arg-type]
    "no directory of checkpoints": (
        lambda base: pf.read(base, checkpoint_dir=5),  # type: ignore[arg-type]
        "checkpoint_dir=5",
        "checkpoint_dir='checkpoints'",
    ),
    "no threads": (lambda base: sink(base, publish_threads=0), "publish_threads=0", "publish_threads=8"),
    "rolling by a word": (lambda base: sink(base, rolling="15m"), "rolling='15m'", "partfile.RollingPolicy(max_part"),
    "naming by a word": (lambda base: sink(base, naming="x"), "naming='x'", "partfile.PartNaming(part_prefix="),
    "a number for a clock": (lambda base: sink(base, clock=5), "clock=5", "time.time_ns()"),
    "an option like no other": (lambda _base: pf.RollingPolicy(foo=3), "foo=3", "Leave foo out"),  # type: ignore[call-arg]
    "a frame of mixed values": (lambda base: write(base, pd.DataFrame({"a": [1, "x"]})), "column a", "astype("),
    "a frame with one name twice": (
        lambda base: write(base, pd.DataFrame([[1, 2]], columns=["a", "a"])),
        "Duplicate column names",
        "a name of its own",
    ),
    "no base": (lambda _base: sink(None), "base=None", "base='landing/events'"),
    "no uid": (lambda base: sink(base, uid=None), "uid=None", "uid='events'"),
    "no format": (lambda base: sink(base, format=None), "format None", "format='json'"),
    "a base without a file": (pf.read, "no finished file", "schema=pa.schema("),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_and_says_what_to_type(mistake: str, tmp_path: Path) -> None:
    """An error of ours, in two lines: the first names what is wrong as the user wrote it, the second mends it."""
    make, message, hint = MISTAKES[mistake]
    with pytest.raises(PartfileError) as caught:
        make(tmp_path)
    said = caught.value
    assert message in said.message
    assert hint in said.hint
    assert "pydantic" not in str(said)
    assert str(said).count("\n") == 1


@pytest.mark.parametrize(
    "write_it",
    [
        lambda base: sink(base, format="Parquet"),
        lambda _base: sink("s3a://bucket/x"),
        lambda _base: pf.RollingPolicy(max_part_bytes="128MB"),
        lambda _base: pf.RollingPolicy(max_part_bytes="128 MiB", rollover_interval_s="15m"),
        lambda _base: pf.RollingPolicy(rollover_interval_s=timedelta(minutes=15)),
        lambda base: write(base, ROWS.to_pandas()),
        lambda base: write(base, pd.DataFrame({"id": [1]})),
        lambda base: write(base, NO_DAY, bucketer=pf.HiveBucketer("day")),
    ],
)
def test_what_users_mean_is_taken(write_it: Any, tmp_path: Path) -> None:
    """What was refused once, and can mean but one thing."""
    write_it(tmp_path)


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (("stauts", "."), "stauts", "status"),
        (("status", "nowhere"), "is not there", "Check"),
        (("status", "."), "no sink has checkpoints", "--checkpoint-dir"),
        (("recover", ".", "--uid", "x"), "no sink", "--checkpoint-dir"),
        (("cat", ".", "x"), "x", "partfile"),
        (("status", ".", "--jsn"), "--jsn", "--json"),
    ],
)
def test_a_mistake_on_the_command_line_is_usage(
    words: tuple[str, ...], message: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends with 2, and names what is wrong and what was meant."""
    monkeypatch.chdir(tmp_path)
    done = run(*words)
    assert done.exit_code == 2
    assert message in done.stderr
    assert hint in done.stderr
