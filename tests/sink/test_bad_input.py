"""Bad input and broken storage: an error that names the thing and what to do; nothing lost, nothing half-written."""

from __future__ import annotations

import dataclasses
import errno
import os
import re
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import partfile as pf
from partfile.errors import (
    BucketValueError,
    ConfigError,
    NotApplied,
    OutcomeUnknown,
    PartfileError,
    PartMissing,
    SnapshotCorrupt,
    SnapshotVersionError,
    StoreError,
    UnencodableState,
    UnsupportedTypeError,
)
from partfile.sink import rows as handed_over
from partfile.sink import settings
from partfile.sink.policies import Deduplicate, PartNaming, RollingPolicy
from partfile.sink.settings import SinkOptions, SinkSettings
from partfile.snapshot.documents import FORMAT_VERSION
from partfile.snapshot.storage import DriverMemoryStorageSettings, FileSystemStorageSettings, StorageOptions
from partfile.stores.hdfs.options import HdfsOptions
from partfile.stores.s3.options import S3Options
from partfile.testing.faults import FailAt, count_calls
from partfile.writers.registry import FORMATS
from support.files.disks import small_disk
from support.sinks.life_cycle import (
    LONG,
    assert_exactly_once,
    batch,
    everything,
    finished_files,
    make_sink,
    rows_done,
    rows_of,
    run_to_the_end,
    staged_files,
)
from support.state.tampered import newest_metadata

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


WRONG_VALUES = [
    *(None, True, -1, 1.5, 10**30, float("nan"), 3 + 1j),
    *("", "x", b"b", [], [1], ["x"], (), {}, {"a": 1}, object()),
]
"""Of each kind of value some that an option may not take."""


def each_option() -> Iterator[tuple[str, Callable[[Any], object]]]:
    """Every option that a user can pass, with what takes its value."""

    def of(make: Callable[..., object], name: str) -> tuple[str, Callable[[Any], object]]:
        return f"{getattr(make, '__name__', 'options')}.{name}", lambda value: make(**{name: value})

    sink = partial(pf.FileSink, "no-base")
    for name in ("format", "compression", "bucketer", "rolling", *SinkOptions.__annotations__):
        yield of(partial(sink, uid="x"), name)
    yield of(sink, "uid")
    yield "FileSink.base", lambda value: pf.FileSink(value, uid="x")
    for kind in FORMATS.values():
        yield from (of(kind, field.name) for field in dataclasses.fields(cast("Any", kind)))
    models = (
        *(RollingPolicy, PartNaming, Deduplicate),
        *(FileSystemStorageSettings, DriverMemoryStorageSettings, StorageOptions),
    )
    for model in models:
        yield from (of(model, name) for name in model.model_fields)
    for service in (HdfsOptions, S3Options):
        for name in service.model_fields:
            yield f"{service.__name__}.{name}", partial(pass_to_store, service, name)


def pass_to_store(service: type[HdfsOptions | S3Options], name: str, value: object) -> None:
    """Check one of the options of a store."""
    service.of({name: value})


@pytest.mark.parametrize(("name", "take"), [pytest.param(*each, id=each[0]) for each in each_option()])
def test_a_wrong_value_is_refused_in_our_own_words(name: str, take: Callable[[Any], object]) -> None:
    """It is taken, or it is a ConfigError without a word of the libraries that check it."""
    said = []
    for value in WRONG_VALUES:
        try:
            take(value)
        except ConfigError as error:
            said.append(str(error))
    assert [text for text in said if re.search(r"Input|a valid|unable to|pydantic|instance of|Extra", text)] == [], name


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"uid": "../x"}, "uid='../x'"),
        ({"uid": ""}, "uid=''"),
        ({"format": "jsn"}, "jsn"),
        ({"compression": "rar"}, "rar"),
        ({"bucketer": 7}, "bucketer=7"),
        ({"rollling": None}, "Did you mean rolling?"),
        ({"compresion": "gzip"}, "Did you mean compression?"),
        ({"rules": None}, "no option 'rules'"),
        ({"format_options": {"compression": "zstd"}}, "Pass compression='zstd' beside format_options."),
        ({"compression_level": 3}, "pass format_options={'compression_level': ...}"),
        ({"sort_by": ("n",)}, "pass format_options={'sort_by': ...}"),
        ({"distribution": "hashed"}, "distribution='hashed'"),
        ({"hash_partitions": 3}, "hash_partitions"),
        ({"on_stop": "discard"}, "on_stop='discard'"),
        ({"on_new_query": "adopt"}, "FileSink: on_new_query='adopt': it must be 'fail' or 'adopt:' and the id"),
        ({"on_gap": "skip"}, "FileSink: on_gap='skip': it must be 'fail' or 'accept'"),
        ({"on_bad_bucket": "../up"}, "on_bad_bucket='../up'"),
        ({"cut": "axe"}, "cut='axe'"),
        ({"retained_checkpoints": 0}, "retained_checkpoints=0"),
        ({"retained_checkpoints": -(10**5000)}, "retained_checkpoints=int of too many digits"),
        ({"checkpoint_dir": ""}, "checkpoint_dir=''"),
        ({"rolling": 5}, "FileSink: rolling=5: it must be a RollingPolicy"),
        ({"retained_checkpoints": "two"}, "FileSink: retained_checkpoints='two': it must be a whole number"),
        ({"on_stop": "stop"}, "FileSink: on_stop='stop': it must be 'publish' or 'keep'"),
        (
            {"partition_by": ["country"]},
            "Hint: Did you mean bucketer? Pass for instance bucketer=",
        ),
        ({"checkpointLocation": "spark"}, "Hint: Spark's checkpoint goes to start(..., checkpoint_location=...)."),
        ({"path": "out"}, "Hint: The path is the first argument, base."),
        ({"format": "csv", "format_options": {"separator": "\n"}}, "separator"),
    ],
)
def test_a_bad_option_is_named_when_the_sink_is_made(tmp_path: Path, options: dict[str, Any], named: str) -> None:
    """A mistyped option or value is a ConfigError that shows it; nothing is created on disk."""
    with pytest.raises(ConfigError) as caught:
        pf.FileSink(tmp_path / "out", **({"uid": "job", "format": "text"} | options))
    assert named in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["Parquet", "JSON", "cSv"])
def test_the_name_of_a_format_is_known_in_any_case(tmp_path: Path, name: str) -> None:
    """As Spark knows it."""
    one, other = (pf.FileSink(tmp_path / "out", uid="job", format=each).settings for each in (name, name.lower()))
    assert one.format == other.format


@pytest.mark.parametrize("base", ["~", "~/landing", "~bob/landing", Path("~/landing")])
@pytest.mark.parametrize("option", ["base", "checkpoint_dir", "savepoint_dir"])
def test_a_tilde_makes_no_directory(
    tmp_path: Path, base: str | Path, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a shell makes it a home directory, and a user may delete the wrong one later; ``./~`` can be meant."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"(?s)begins with ~.*write os\.path\.expanduser\('~.*Write \./~"):
        pf.FileSink(**{"base": "out", "uid": "job", option: base})  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
    with pf.FileSink("./~/landing", uid="job").local():
        assert (tmp_path / "~" / "landing").is_dir()


def test_a_bucket_of_s3_that_cannot_be_is_told_by_its_name() -> None:
    """Not by its scheme: s3a:// is taken."""
    assert pf.FileSink("s3a://bucket/landing", uid="job").settings.base == "s3a://bucket/landing"
    with pytest.raises(ConfigError, match="names no S3 bucket: the name of one is 2 to 63 letters"):
        pf.FileSink("s3a://b/landing", uid="job")


def test_an_empty_base_is_refused() -> None:
    """A base path that names nothing is refused when the sink is made."""
    with pytest.raises(ConfigError, match="base"):
        pf.FileSink(" ", uid="job")


@pytest.mark.parametrize(
    ("inside", "is_refused"),
    [("state", True), ("a/b", True), (".", True), ("_state", False), ("a/.b", False), ("../out-state", False)],
)
def test_checkpoints_do_not_lie_visibly_below_the_base(tmp_path: Path, inside: str, *, is_refused: bool) -> None:
    """A reader would take them for data; a hidden directory, or one elsewhere, is fine."""
    base = f"file://{tmp_path}/out"
    if is_refused:
        with pytest.raises(ConfigError, match="lies visibly below the base"):
            pf.FileSink(base, format="json", checkpoint_dir=str(tmp_path / "out" / inside), uid="u")
    else:
        pf.FileSink(base, format="json", checkpoint_dir=str(tmp_path / "out" / inside), uid="u")


@pytest.mark.parametrize("inside", ["", "/flights", "/flights/deeper"])
@pytest.mark.parametrize(
    "spelling", ["{base}/_partfile{inside}", "file://{base}/_partfile{inside}", "{base}/link{inside}"]
)
def test_a_base_among_the_checkpoints_of_a_sink_is_refused(tmp_path: Path, spelling: str, inside: str) -> None:
    """However it is written; the error names it, and the base of that sink. Nothing is made."""
    make_sink(tmp_path).local().open().finish()
    (tmp_path / "link").symlink_to("_partfile")
    before = everything(tmp_path)
    base = spelling.format(base=tmp_path, inside=inside)
    with pytest.raises(ConfigError, match="in a directory called _partfile") as raised:
        pf.FileSink(base, uid="other", format="json")
    assert f"base={base!r}" in raised.value.message
    assert raised.value.hint.endswith(f"base={str(tmp_path)!r}")
    assert everything(tmp_path) == before


def test_where_a_base_may_not_lie_is_looked_for_by_whole_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On every store, and from a working directory; another directory with an underscore is one like any other."""
    for base in ("s3://bucket/x/_partfile/y", "hdfs://nn/x/_partfile/y", "memory://x/_partfile"):
        with pytest.raises(ConfigError, match="_partfile"):
            pf.FileSink(base, uid="u", format="json")
    (tmp_path / "_partfile").mkdir()
    monkeypatch.chdir(tmp_path / "_partfile")
    with pytest.raises(ConfigError, match="base='out' lies in"):
        pf.FileSink("out", uid="u", format="json")
    for base in ("x_partfile/y", "_partfiles/y", "_state/y"):
        pf.FileSink(tmp_path / base, uid="u", format="json")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no other file system here answers like /proc")
def test_a_base_that_cannot_be_made_is_told_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not as a rival's work, though the directory of the first checkpoint is never there."""
    monkeypatch.setattr(settings, "check_base", lambda _base: None)
    with pytest.raises(NotApplied, match="cannot make the base '/proc/partfile-test/_partfile'"):
        make_sink("/proc/partfile-test").local().open()


@pytest.mark.parametrize("base", ["/proc/events", "/sys/kernel/events", "file:///proc", "{link}/events"])
def test_a_base_of_the_kernel_is_refused(tmp_path: Path, base: str) -> None:
    """By name, with a word on where to go instead; a directory that is only called so is one like any other."""
    (tmp_path / "link").symlink_to("/proc")
    base = base.format(link=tmp_path / "link")
    with pytest.raises(ConfigError, match="where the kernel shows what it knows") as raised:
        pf.FileSink(base, uid="u", format="json")
    assert f"base={base!r}" in raised.value.message
    assert "a directory of a disk" in raised.value.hint
    for other in ("proc/events", "sys", "procs"):
        pf.FileSink(tmp_path / other, uid="u", format="json")
    pf.FileSink("/process/events", uid="u", format="json")
    pf.FileSink("s3://proc/sys", uid="u", format="json")


def test_a_base_that_is_a_file_is_refused(tmp_path: Path) -> None:
    """The error names the path and says that it is a file; once it is moved away the sink works."""
    base = tmp_path / "base"
    base.write_text("precious")
    with pytest.raises(ConfigError, match=r"(?s)base.*is a file"):
        make_sink(base).local().open()
    assert base.read_text() == "precious"
    base.rename(tmp_path / "moved")
    run_to_the_end(make_sink(base))
    assert_exactly_once(base)


def test_a_missing_directory_is_made_with_its_parents(tmp_path: Path) -> None:
    """A base path several levels below what exists is made, as any writer of files does it."""
    base = tmp_path / "a" / "b" / "c"
    run_to_the_end(make_sink(base))
    assert_exactly_once(base)


@pytest.mark.parametrize(
    ("options", "columns", "error", "named"),
    [
        ({"bucketer": pf.HiveBucketer("land")}, {"country": ["x"]}, ConfigError, "'land'.*country"),
        ({"bucketer": pf.DateTimeBucketer("t")}, {"t": ["2013"]}, ConfigError, "'t' is string"),
        ({"bucketer": pf.HiveBucketer("f")}, {"f": [1.5], "x": ["y"]}, ConfigError, "'f' of type double"),
        ({"bucketer": lambda batch: [None] * len(batch)}, {"row": ["x"]}, BucketValueError, "null"),
        ({"bucketer": lambda _batch: [1]}, {"row": ["x", "y"]}, ConfigError, "1 values of type int64 for 2 rows"),
        ({}, {"a": ["x"], "b": ["y"]}, UnsupportedTypeError, "a.*b"),
        ({"format": "csv"}, {"nested": [[1]]}, UnsupportedTypeError, "nested"),
    ],
)
def test_rows_that_do_not_fit_are_refused_by_column(
    tmp_path: Path, options: dict[str, Any], columns: dict[str, list[Any]], error: type[Exception], named: str
) -> None:
    """An unknown column, a wrong type, a value without a bucket: named; nothing is visible; good rows work after it."""
    fixed = {"uid": "job", "format": "text"} | options
    with pytest.raises(error, match=named), pf.FileSink(tmp_path, **fixed).local() as out:
        out.write(pa.RecordBatch.from_pydict(columns))
    assert finished_files(tmp_path) == {}
    with pf.FileSink(tmp_path, uid="job", format="text").local() as out:
        out.write(pa.RecordBatch.from_pydict({"row": ["good"]}))
    assert rows_of(finished_files(tmp_path)) == {"good": 1}


def test_bad_buckets_go_to_the_fallback(tmp_path: Path) -> None:
    """With on_bad_bucket set, rows whose bucket cannot be named are kept there instead of failing the stream."""
    sink = pf.FileSink(
        tmp_path, uid="job", format="text", bucketer=lambda _batch: [None, "ok"], on_bad_bucket="bad/rows"
    )
    with sink.local() as out:
        out.write(pa.RecordBatch.from_pydict({"row": ["x", "y"]}))
    assert {name.rsplit("/", 1)[0]: data for name, data in finished_files(tmp_path).items()} == {
        "bad/rows": b"x\n",
        "ok": b"y\n",
    }


@pytest.mark.fault("F3")
def test_a_full_disk_loses_nothing_and_goes_on_once_there_is_room(tmp_path: Path) -> None:
    """A real file system runs full in the middle of a stream: the error says so, and the stream resumes after it."""
    with small_disk(tmp_path / "disk", "192k") as base:
        hog = base / "_hog"
        sink = make_sink(base)

        def fill() -> None:
            with sink.local() as out:
                for number in range(1000):
                    out.write(batch(number, 1), position=number + 1)
                    out.checkpoint()
                    with hog.open("ab") as file:
                        file.write(b"x" * 8192)

        with pytest.raises(StoreError, match="No space left"):
            fill()
        seen = rows_of(finished_files(base))
        assert max(seen.values(), default=1) == 1
        hog.unlink()
        with make_sink(base).local() as out:
            done = rows_done(out)
            assert 0 < done < 1000
        assert_exactly_once(base, done)


@pytest.mark.slow
@pytest.mark.drawn(2)
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EIO])
def test_a_failing_call_anywhere_loses_and_doubles_nothing(tmp_path: Path, code: int) -> None:
    """Write, sync, create, link or rename fails once, at any place.

    An error that says why, and all rows in the end.
    """
    kinds = ["write", "sync", "sync_directory", "create", "link", "rename", "make_directory"]
    calls = count_calls(lambda recorder: run_to_the_end(make_sink(tmp_path / "c", interceptor=recorder), 6), kinds)
    for number in range(1, calls + 1):
        base = tmp_path / f"{number}"
        failing = FailAt(number, OSError(code, os.strerror(code)), only=kinds)
        with suppress(NotApplied, OutcomeUnknown):
            run_to_the_end(make_sink(base, interceptor=failing), 6)
        run_to_the_end(make_sink(base), 6)
        assert_exactly_once(base, 6)


def test_a_damaged_checkpoint_is_refused_and_works_again_once_repaired(tmp_path: Path) -> None:
    """Cut short, flipped, of a newer version: refused by name without a change; put back, the stream goes on."""
    run_to_the_end(make_sink(tmp_path), 6)
    newest = newest_metadata(tmp_path)
    good = newest.read_bytes()
    newer = good.replace(b"checkpoint %d " % FORMAT_VERSION, b"checkpoint %d " % (FORMAT_VERSION + 1), 1)
    damaged = [b"", good[: len(good) // 2], good[:-2] + b"x\n", newer]
    for data in damaged:
        newest.write_bytes(data)
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        with pytest.raises((SnapshotCorrupt, SnapshotVersionError), match=r"chk-\d+/_metadata"):
            run_to_the_end(make_sink(tmp_path))
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    newest.write_bytes(good)
    run_to_the_end(make_sink(tmp_path))
    assert_exactly_once(tmp_path)


def nested(depth: int) -> Any:
    """A number inside so many lists."""
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("inline_threshold_bytes", [0, 20 << 10], ids=["in a file", "inline"])
@pytest.mark.parametrize("position", [nested(250), 10**4999], ids=["deep", "long"])
def test_a_checkpoint_that_no_start_could_read_is_not_created(
    tmp_path: Path, position: Any, inline_threshold_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R1: whatever a check overlooks, the checkpoint before it is in force; only the rows since then come again."""
    monkeypatch.setattr(handed_over, "_check_position", lambda _: None)
    sink = make_sink(tmp_path, inline_threshold_bytes=inline_threshold_bytes, rolling=LONG)
    out = sink.local().open()
    out.write(batch(0, 2), position=2)
    out.checkpoint()
    out.write(batch(2, 2))
    checkpoints = sorted(tmp_path.rglob("_metadata"))
    with pytest.raises(UnencodableState, match=r"(?s)checkpoint 3 .*was not created.*no start could read it"):
        out.checkpoint(position)
    assert sorted(tmp_path.rglob("_metadata")) == checkpoints
    with sink.local() as again:
        assert again.position == 2
        again.write(batch(2, 2), position=4)
    assert_exactly_once(tmp_path, 4)


def test_a_time_that_no_start_could_read_enters_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R1: whatever a check overlooks, the entry of the log is not created."""
    monkeypatch.setattr(SinkSettings, "now_ms", lambda _: 10**19)
    with pytest.raises(UnencodableState, match="clock"):
        make_sink(tmp_path).local().open()
    assert not list(tmp_path.rglob("_metadata"))


@pytest.mark.parametrize(
    ("position", "named"),
    [
        (nested(101), "100 lists or dictionaries deep"),
        ({"a": {"b": 10**4299}}, "integer of"),
        (["\udcff"], "no Unicode text"),
        ({"\udcff": 1}, "no Unicode text"),
        ({1: 2}, "keys are text"),
        (float("nan"), "nan"),
        (b"offset", "bytes"),
        ((1, 2), "tuple"),
    ],
    ids=["deep", "long", "text", "key", "number as key", "nan", "bytes", "tuple"],
)
def test_a_position_that_would_not_come_back_is_refused(tmp_path: Path, position: Any, named: str) -> None:
    """The error says why, and the sink goes on as if it had not been asked."""
    with make_sink(tmp_path).local() as out:
        for verb in (partial(out.write, batch(0, 2)), out.checkpoint):
            with pytest.raises(ConfigError, match=named):
                verb(position=position)
        out.write(batch(0, 4), position=[nested(99), 10**3900, {"": "\u20ac"}])
    with make_sink(tmp_path).local() as again:
        assert again.position == [nested(99), 10**3900, {"": "\u20ac"}]
    assert_exactly_once(tmp_path, 4)


@pytest.mark.parametrize(
    ("position", "size"),
    [
        ("x" * (1 << 20), (1 << 20) + 2),
        ("\u20ac" * 400_000, 1_200_002),
        ({"rows": ["\u20ac"] * 300_000}, 1_800_010),
        ([10**3000] * 400, 1_200_801),
    ],
    ids=["text", "beyond ASCII", "rows", "integers"],
)
def test_a_position_that_is_too_large_is_refused_by_the_call(tmp_path: Path, position: Any, size: int) -> None:
    """With its size, the most that is taken, and what to keep instead; the sink goes on. One just as large is kept."""
    most = "y" * ((1 << 20) - 2)
    with make_sink(tmp_path).local() as out:
        for verb in (partial(out.write, batch(0, 2)), out.checkpoint):
            with pytest.raises(ConfigError, match=f"takes {size} bytes as JSON, .* at most {1 << 20}") as raised:
                verb(position=position)
            assert "position=17" in raised.value.hint
        out.write(batch(0, 4), position=most)
    with make_sink(tmp_path).local() as again:
        assert again.position == most
    assert_exactly_once(tmp_path, 4)


@pytest.mark.parametrize("told", [10**15, 10**19, 1.5, None, True, "1"], ids=repr)
def test_a_clock_that_tells_no_milliseconds_begins_no_sink(tmp_path: Path, told: Any) -> None:
    """It is named with what it should return; with a right clock the sink begins."""
    with pytest.raises(ConfigError, match=r"(?s)the clock tells .*milliseconds"):
        make_sink(tmp_path, clock=lambda: told).local().open()
    assert not list(tmp_path.rglob("_metadata"))
    run_to_the_end(make_sink(tmp_path), 6)
    assert_exactly_once(tmp_path, 6)


def test_a_clock_that_goes_wrong_ends_the_run_before_its_checkpoint(tmp_path: Path) -> None:
    """Also of a sink that has begun; a later run goes on from the checkpoint before."""
    now_ms = [1_000_000]
    sink = make_sink(tmp_path, clock=lambda: now_ms[0], rolling=LONG)
    out = sink.local().open()
    out.write(batch(0, 2), position=2)
    out.checkpoint()
    now_ms[0] = 10**19
    with pytest.raises(ConfigError, match="the clock tells"):
        out.checkpoint()
    now_ms[0] = 2_000_000
    with sink.local() as again:
        again.write(batch(2, 2), position=4)
    assert_exactly_once(tmp_path, 4)


def outcome_of(deed: Callable[[], object]) -> str:
    """The message of the ConfigError that it ends in; empty if it does not."""
    try:
        deed()
    except ConfigError as error:
        return str(error)
    return ""


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.integers(), inner, max_size=3),
)


@given(position=JSON_VALUES)
def test_whatever_is_a_position_comes_back_or_is_refused(position: Any) -> None:
    """The first refusal names the position; a later start never meets one that it cannot read."""
    with TemporaryDirectory() as base:
        out = make_sink(Path(base)).local().open()
        told = outcome_of(lambda: out.checkpoint(position))
        if told:
            assert "position" in told
            position = "another"
            out.checkpoint(position)
        out.finish()
        with make_sink(Path(base)).local() as again:
            assert again.position == position


OPTION_VALUES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=3)
    | st.lists(st.text(max_size=3), max_size=2)
    | st.dictionaries(st.text(max_size=3), st.integers(), max_size=2)
)
OPTIONS = sorted({*SinkSettings.model_fields, *RollingPolicy.model_fields, *PartNaming.model_fields} - {"base"})


@given(name=st.sampled_from(OPTIONS), value=OPTION_VALUES)
def test_whatever_is_an_option_is_taken_or_refused_by_its_name(name: str, value: Any) -> None:
    """No option ends in another error than ConfigError, and the message names it."""
    with TemporaryDirectory() as base:
        options: dict[str, Any] = {"uid": "u", "format": "text", name: value}
        told = outcome_of(lambda: pf.FileSink(base, **options))
        assert not told or name in told


@given(prefix=st.text(max_size=6), suffix=st.text(max_size=6), bucket=st.text(max_size=12))
def test_whatever_is_in_a_name_is_found_again_or_refused(prefix: str, suffix: str, bucket: str) -> None:
    """A part of any name that is taken is published where its rows belong, and read back."""
    with TemporaryDirectory() as base:
        rows = pa.record_batch({"text": ["row"]})
        try:
            naming = pf.PartNaming(part_prefix=prefix, part_suffix=suffix)
            with make_sink(Path(base), naming=naming, bucketer=lambda _: [bucket]).local() as out:
                out.write(rows)
        except (ConfigError, BucketValueError):
            return
        (data,) = finished_files(Path(base)).values()
        assert data == b"row\n"


@pytest.mark.parametrize("deed", ["delete", "shorten"])
@pytest.mark.fault("F7")
def test_a_part_that_a_checkpoint_vouches_for_is_gone(tmp_path: Path, deed: str) -> None:
    """Acknowledged rows that vanished are an error that names the part, never a silent skip; put back, all is well."""
    sink = make_sink(tmp_path, rolling=pf.RollingPolicy(rollover_interval_s=1e6, inactivity_interval_s=1e6))
    out = sink.local().open()
    out.write(batch(0, 2), position=2)
    out.checkpoint()
    out.close()
    (staged, _other) = [tmp_path / name for name in staged_files(tmp_path)]
    good = staged.read_bytes()
    if deed == "delete":
        staged.unlink()
    else:
        staged.write_bytes(good[:-1])
    with pytest.raises(PartMissing, match=r"part-[0-9a-f]{8}-0-"):
        run_to_the_end(make_sink(tmp_path), 2)
    staged.write_bytes(good)
    run_to_the_end(make_sink(tmp_path), 2)
    assert_exactly_once(tmp_path, 2)


def test_a_sink_that_is_not_open_says_so(tmp_path: Path) -> None:
    """Writing before open or after close names the way out."""
    out = make_sink(tmp_path).local()
    with pytest.raises(PartfileError, match="with block"):
        out.write(batch(0, 1))
