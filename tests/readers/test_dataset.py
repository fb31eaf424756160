"""``partfile.read``: beside a live sink, on odd trees, and with pending parts."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.dataset as ds
import pyarrow.orc
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import partfile as pf
from partfile.errors import ConfigError, NotApplied, NotFound, NotReady, PartDamaged, PartMissing, SnapshotCorrupt
from partfile.readers import cut_files, dataset
from partfile.readers.cut_files import CutFiles
from partfile.readers.filesystem import open_for_reading
from partfile.readers.streams import ReadableFile, with_pending
from partfile.sink.policies import PartNumber
from partfile.stores.local.store import LocalStore
from partfile.stores.parts import rewritten
from support.files.trees import finished_of, sidecars, write_tree
from support.processes.deadline import PATIENCE_S, wait_until
from support.sinks.life_cycle import batch, continue_to, long_sink, make_sink, seed_with_a_tail, start_child

if TYPE_CHECKING:
    from collections.abc import Iterable

    from partfile.stores.base import Cut, PartHandle


# ``partfile.read`` beside a sink that lives, on odd trees, and where something is wrong.

TEXT = pa.schema({"value": pa.string()})


def values(dataset: ds.Dataset, column: str = "value") -> list[Any]:
    return sorted(dataset.to_table()[column].to_pylist())


def numbered(numbers: Iterable[int]) -> list[str]:
    return [f"row-{number:04d}" for number in numbers]


def test_an_empty_base_needs_a_schema(tmp_path: Path) -> None:
    """Without a file the columns are unknown; with a schema there are no rows."""
    long_sink(tmp_path).local().open().close()
    with pytest.raises(ConfigError, match=f"(?s)'{tmp_path}' holds no finished file with rows.*schema="):
        pf.read(tmp_path)
    dataset = pf.read(tmp_path, schema=TEXT)
    assert dataset.schema == TEXT
    assert dataset.to_table().num_rows == 0
    (tmp_path / "part-0.txt").touch()
    assert pf.read(tmp_path, schema=TEXT).to_table().num_rows == 0


@pytest.mark.fault("T8")
def test_a_path_is_taken_literally(tmp_path: Path) -> None:
    """Brackets and stars in the base path are no pattern, and a percent sign is no escape."""
    base = tmp_path / "a [1] {b} *?" / "100%25 ü"
    continue_to(long_sink(base), 4)
    assert values(pf.read(base)) == values(pf.read(base.as_uri())) == numbered(range(4))


def test_a_path_that_is_not_there_is_named(tmp_path: Path) -> None:
    """Neither an absent path nor a file is an empty dataset."""
    with pytest.raises(NotFound, match=r"nowhere' is not there"):
        pf.read(tmp_path / "nowhere", schema=TEXT)
    (tmp_path / "part-0.txt").write_text("a\n")
    with pytest.raises(ConfigError, match=r"part-0.txt' is a file"):
        pf.read(tmp_path / "part-0.txt", schema=TEXT)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"format": "xml"}, "'xml' is not known"),
        ({"include": "open"}, "include='open' is not known"),
        ({"partitioning": "directory"}, "partitioning='directory' is not known"),
        ({"storage_options": {"key": "x"}}, "local files take no storage_options"),
        ({}, r"several formats: csv \('a.csv'\), json \('b.json'\)"),
        ({"format": "csv"}, r"several formats: csv \('a.csv'\), json \('b.json'\)"),
        ({"format": 5}, "format 5 is not known"),
    ],
)
def test_what_cannot_be_read_is_refused(options: dict[str, Any], words: str, tmp_path: Path) -> None:
    """Unknown options and mixed formats are refused by name."""
    (tmp_path / "a.csv").write_text("id\n1\n")
    (tmp_path / "b.json").write_text('{"id": 1}\n')
    with pytest.raises(ConfigError, match=words):
        pf.read(tmp_path, **options)


def test_a_directory_that_may_not_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows would be missing in silence. As root no directory is closed, so the system call is made to refuse."""
    with pf.FileSink(tmp_path, uid="u", bucketer=pf.HiveBucketer("day")).local() as out:
        out.write(pa.table({"id": [1, 2], "day": ["a", "b"]}))
    opened = os.open

    def refuse(path: Any, *arguments: Any, **options: Any) -> int:
        if str(path).endswith("day=b"):
            raise PermissionError(errno.EACCES, "Permission denied", "day=b")
        return opened(path, *arguments, **options)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(NotApplied, match=r"this user may not read: 'day=b'\nHint: .*ls -lR"):
        pf.read(tmp_path)


def test_a_format_is_what_the_names_say(tmp_path: Path) -> None:
    """A reader of CSV would take a line of JSON for its header; a ``.txt`` says nothing, and case does not count."""
    (tmp_path / "b.json").write_text('{"id": 1}\n')
    with pytest.raises(ConfigError, match=r"format='csv', but the name of 'b.json' says 'json'"):
        pf.read(tmp_path, format="csv")
    (tmp_path / "b.json").rename(tmp_path / "b.txt")
    assert pf.read(tmp_path, format="JSON").to_table().to_pylist() == [{"id": 1}]


def test_a_name_without_a_format_is_refused(tmp_path: Path) -> None:
    """It is named, and reading goes on with ``format=``."""
    (tmp_path / "part-0.log").write_text("a\n")
    with pytest.raises(ConfigError, match=r"name of 'part-0.log' does not say its format"):
        pf.read(tmp_path)
    assert values(pf.read(tmp_path, format="text")) == ["a"]


@pytest.mark.parametrize("schema", ["id long", ["id"], {}, {"id": "nothing"}])
def test_what_is_no_schema_is_refused(schema: Any, tmp_path: Path) -> None:
    """Names with types are one."""
    (tmp_path / "part-0.json").write_text('{"id": 1}\n')
    with pytest.raises(ConfigError, match=r"(?s)is no schema.*schema=pa.schema"):
        pf.read(tmp_path, schema=schema)
    assert pf.read(tmp_path, schema={"id": "int64"}).to_table().to_pylist() == [{"id": 1}]


@pytest.mark.parametrize("content", [b"", b"\xff\xfe garbage"])
@pytest.mark.parametrize("format", ["parquet", "orc"])
def test_what_is_no_file_of_its_format_is_damaged(format: str, content: bytes, tmp_path: Path) -> None:
    """Of ORC pyarrow says it by an error of the operating system that has no number."""
    (tmp_path / f"part-0.{format}").write_bytes(content)
    with pytest.raises(PartDamaged, match=rf"part-0.{format}' is no whole file of its format"):
        pf.read(tmp_path)


def test_a_file_system_that_fails_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client of fsspec may raise an error of the operating system without a number: it arrives as it is."""

    class Away(MemoryFileSystem):  # type: ignore[misc]  # fsspec has no types.
        def _open(self, *_words: Any, **_options: Any) -> Any:
            raise OSError("the network is away")

    MemoryFileSystem().pipe(f"{tmp_path}/part-0.orc", b"ORC")
    monkeypatch.setattr(dataset, "open_for_reading", lambda *_place: (Away(), str(tmp_path)))
    with pytest.raises(OSError, match="the network is away"):
        pf.read(f"memory://{tmp_path}")


def test_csv_that_is_no_text_is_damaged(tmp_path: Path) -> None:
    """And no error of Python's."""
    (tmp_path / "part-0.csv").write_bytes(b"a,b\n\xff\xfe,1\n")
    with pytest.raises(PartDamaged, match=r"part-0.csv"):
        pf.read(tmp_path).to_table()


@pytest.mark.parametrize("format", ["csv", "text", "json"])
def test_rows_of_some_mib_are_read(format: str, tmp_path: Path) -> None:
    """By default pyarrow takes 1 MiB; of more than 8 MiB the error says what to pass."""
    rows = pa.table({"value": ["x" * (2 << 20), "y"]})
    with pf.FileSink(tmp_path, uid="long", format=format).local() as out:
        out.write(rows)
    assert pf.read(tmp_path).to_table().sort_by("value").equals(rows)
    with pf.FileSink(tmp_path / "longer", uid="long", format=format).local() as out:
        out.write(pa.table({"value": ["a", "z" * (20 << 20), "b"]}))
    with pytest.raises(ConfigError if format == "json" else pa.ArrowInvalid, match=r"straddling|block_size=33554432"):
        pf.read(tmp_path / "longer").to_table()


@pytest.mark.parametrize("format", ["parquet", "orc"])
def test_a_file_that_lost_its_end_is_damaged(format: str, tmp_path: Path) -> None:
    """It is named, where the columns are looked for."""
    path = tmp_path / f"part-0.{format}"
    table = pa.table({"id": [1, 2, 3]})
    pq.write_table(table, path) if format == "parquet" else pyarrow.orc.write_table(table, path)
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(PartDamaged, match=rf"part-0.{format}' is no whole file of its format"):
        pf.read(tmp_path)


def test_text_is_read_of_files_of_any_name(tmp_path: Path) -> None:
    """Each line is a value, whatever format the name says."""
    (tmp_path / "part-0.json").write_text('{"id": 1}\n')
    assert values(pf.read(tmp_path, format="text")) == ['{"id": 1}']


def test_unknown_schemes_are_refused() -> None:
    """The error of fsspec comes as one of ours."""
    with pytest.raises(ConfigError, match="nosuch://host/x"):
        pf.read("nosuch://host/x")


@pytest.mark.parametrize("format", ["parquet", "orc"])
def test_columnar_files_are_read(format: str, tmp_path: Path) -> None:
    """Parquet and ORC, by their names, with their Hive columns; a sidecar cuts them as well."""
    (tmp_path / "b=1").mkdir()
    path = tmp_path / "b=1" / f"part-0.{format}"
    table = pa.table({"id": [1, 2, 3]})
    pq.write_table(table, path) if format == "parquet" else pyarrow.orc.write_table(table, path)
    assert pf.read(tmp_path).to_table().to_pylist() == [{"id": number, "b": 1} for number in (1, 2, 3)]
    (tmp_path / "b=1" / f"_part-0.{format}.valid-length").write_text(str(path.stat().st_size))
    with path.open("ab") as file:
        file.write(b"garbage")
    assert values(pf.read(tmp_path), "id") == [1, 2, 3]


def test_columns_that_come_later_are_in_the_schema(tmp_path: Path) -> None:
    """Every file is looked into, so that no column is left out in silence; files that disagree are an error."""
    (tmp_path / "part-0.json").write_text('{"id": 1, "late": null}\n')
    (tmp_path / "part-1.json").write_text('{"id": 2, "late": "x", "more": 1.5}\n')
    assert pf.read(tmp_path).schema.names == ["id", "late", "more"]
    assert values(pf.read(tmp_path), "id") == [1, 2]
    (tmp_path / "part-2.json").write_text('{"id": "three"}\n')
    with pytest.raises(ConfigError, match=r"(?s)columns cannot be told from the files.*schema="):
        pf.read(tmp_path)


def test_a_schema_gives_the_types_of_partitions(tmp_path: Path) -> None:
    """``01`` stays text where the schema says so, and directories are no columns where none are wanted."""
    (tmp_path / "month=01").mkdir()
    (tmp_path / "month=01" / "part-0.json").write_text('{"id": 1}\n')
    schema = pa.schema({"id": pa.int64(), "month": pa.string()})
    assert pf.read(tmp_path, schema=schema).to_table().to_pylist() == [{"id": 1, "month": "01"}]
    assert pf.read(tmp_path).to_table().to_pylist() == [{"id": 1, "month": 1}]
    assert pf.read(tmp_path, partitioning=None).to_table().to_pylist() == [{"id": 1}]


def test_a_format_of_pyarrows_is_taken_with_its_options(tmp_path: Path) -> None:
    """Files that a sink wrote with other options are read by a format that says so, cut ones included."""
    write_tree(tmp_path, "csv", "zstd", format_options={"header": False, "separator": ";"})
    format = ds.CsvFileFormat(
        parse_options=pacsv.ParseOptions(delimiter=";", newlines_in_values=True),
        read_options=pacsv.ReadOptions(column_names=["id", "text"]),
    )
    assert sorted(pf.read(tmp_path, format=format).to_table()["id"].to_pylist()) == list(range(84))


def test_other_affixes_of_sidecars_have_to_be_told(tmp_path: Path) -> None:
    """With the sink's affixes the tail is cut; with the default ones no reader can know of the sidecar."""
    seed_with_a_tail(tmp_path, cut="valid-length", naming=pf.PartNaming(valid_length_suffix=".len"))
    continue_to(long_sink(tmp_path, cut="valid-length", naming=pf.PartNaming(valid_length_suffix=".len")), 12)
    told = pf.SidecarNaming(suffix=".len")
    assert values(pf.read(tmp_path, sidecars=told)) == numbered(range(12))
    assert values(pf.read(tmp_path)) != numbered(range(12))


@pytest.mark.parametrize(
    ("content", "error", "words"),
    [(b"1x", SnapshotCorrupt, "says b'1x', which is not a length"), (b"99999", PartMissing, "99999 were committed")],
)
@pytest.mark.fault("M6")
def test_a_wrong_sidecar_stops_every_reader(content: bytes, error: type[Exception], words: str, tmp_path: Path) -> None:
    """It is named, instead of rows that are too many or too few."""
    write_tree(tmp_path, "json", None)
    sidecar = sidecars(tmp_path)[0]
    sidecar.write_bytes(content)
    shown = pf.valid_length_filesystem(tmp_path)
    file = str(finished_of(sidecar))
    for read in (lambda: pf.read(tmp_path), lambda: shown.cat_file(file), lambda: shown.exists(file)):
        with pytest.raises(error, match=words):
            read()
    with pytest.raises(error, match=words):
        shown.find(shown.base)


def test_a_directory_that_cannot_be_listed_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows would be missing in silence."""
    (tmp_path / "b=1").mkdir()
    (tmp_path / "b=1" / "part-0.txt").write_text("a\n")
    scandir = os.scandir

    def failing(path: int) -> Any:
        if Path(f"/proc/self/fd/{path}").readlink().name == "b=1":
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", failing)
    with pytest.raises(NotApplied, match=r"a directory that this user may not read"):
        pf.read(tmp_path, schema=TEXT)


def test_a_file_that_was_cut_meanwhile_is_named(tmp_path: Path) -> None:
    """Fewer bytes than the sidecar says are an error, also when they go after the file was listed."""
    write_tree(tmp_path, "csv", None)
    dataset = pf.read(tmp_path)
    sidecar = sidecars(tmp_path)[0]
    os.truncate(finished_of(sidecar), int(sidecar.read_text()) - 1)
    with pytest.raises(PartMissing, match="data is missing"):
        dataset.to_table()


def test_long_texts_keep_their_carriage_returns(tmp_path: Path) -> None:
    """Blocks of pyarrow's reader do not end inside a line."""
    lines = [f"{number:06d}\r" + "x\r" * 40 for number in range(40_000)]
    (tmp_path / "part-0.txt").write_bytes("\n".join(lines).encode() + b"\n")
    assert values(pf.read(tmp_path)) == lines


def test_a_file_that_was_moved_away_is_named(tmp_path: Path) -> None:
    """Finished files never vanish by themselves, so a scan that misses one is an error."""
    continue_to(long_sink(tmp_path), 4)
    dataset = pf.read(tmp_path)
    next(tmp_path.rglob("part-*")).unlink()
    with pytest.raises(PartMissing, match="is under none of its names"):
        dataset.to_table()


def test_reading_beside_a_live_sink_only_ever_sees_more(tmp_path: Path) -> None:
    """While a sink rolls and publishes, each look shows whole rows, none twice, and all that an earlier look showed."""
    rows, looks_enough = 100, tmp_path.with_name("looks-enough")

    def write() -> None:
        with make_sink(tmp_path).local() as out:
            for number in range(rows):
                if number == rows // 2:
                    # However much faster than the reader this process is.
                    wait_until(looks_enough.exists)
                out.write(batch(number, 1), position=number + 1)
                out.checkpoint()

    child = start_child(write)
    before: set[str] = set()
    looks = 0
    deadline = time.monotonic() + PATIENCE_S
    while len(before) < rows and time.monotonic() < deadline:
        try:
            found = values(pf.read(tmp_path, schema=TEXT))
        except NotFound:
            continue  # The sink has not made its base yet.
        assert len(found) == len(set(found))
        assert before <= set(found) <= set(numbered(range(rows)))
        before = set(found)
        looks += 1
        if looks > 3:
            looks_enough.touch()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert values(pf.read(tmp_path)) == numbered(range(rows))
    assert looks > 3


@pytest.mark.slow
def test_two_thousand_files_are_read(tmp_path: Path) -> None:
    """Many small files, every tenth with a tail that does not count."""
    for number in range(2000):
        data = f'{{"id": {number}}}\n'
        (tmp_path / f"part-{number}.json").write_text(data + ("garbage" if number % 10 == 0 else ""))
        if number % 10 == 0:
            (tmp_path / f"_part-{number}.json.valid-length").write_text(str(len(data)))
    dataset = pf.read(tmp_path, schema=pa.schema({"id": pa.int64()}))
    assert values(dataset, "id") == list(range(2000))
    assert len(dataset.files) == 2000


# Pending parts are read where a checkpoint vouches for them, and nowhere else.


class Unpublishing(LocalStore):
    """A store that cannot publish for now."""

    def publish(self, handle: PartHandle, cut: Cut) -> None:
        """Refuse."""
        raise NotApplied(f"not now: {handle.name}, {cut}")


def unpublishing(url: str, _options: Any) -> LocalStore:
    return Unpublishing(url)


def test_pending_parts_count_as_the_newest_checkpoint_says(tmp_path: Path) -> None:
    """Parts of a dead run are read at their valid length, by names that change meanwhile; open parts are not."""
    seed_with_a_tail(tmp_path)
    out = long_sink(tmp_path, open_store=unpublishing).local().open()
    out.write(batch(4, 2), position=6)
    out.checkpoint()
    assert values(pf.read(tmp_path, schema=TEXT)) == []
    pending = pf.read(tmp_path, include="pending")
    assert values(pending) == numbered(range(4))
    out.close()
    continue_to(long_sink(tmp_path), 12)
    assert values(pending) == numbered(range(4))
    assert values(pf.read(tmp_path, include="pending")) == values(pf.read(tmp_path)) == numbered(range(12))


def test_what_no_checkpoint_names_is_not_pending(tmp_path: Path) -> None:
    """A pending file of an attempt that was given up does not count: its rows come again."""
    continue_to(long_sink(tmp_path), 4)
    token = "ab" * 16
    (tmp_path / "bucket=b0" / f"_part-00000000-0-9.txt.{token}.pending").write_text("row-0004\n")
    assert values(pf.read(tmp_path, include="pending")) == numbered(range(4))


def test_a_part_that_is_finished_by_now_is_read_once() -> None:
    """A checkpoint goes on naming a part until all of its parts are published."""
    part = pf.PartNaming().handle("b", PartNumber("0" * 8, 0, 0), suffix=".txt", token="0" * 32).at(4)
    whole = ReadableFile("b/part-00000000-0-0.txt", 4, ("b/part-00000000-0-0.txt",), is_whole=True)
    other = ReadableFile("a/part", 1, ("a/part",), is_whole=True)
    assert with_pending([other, whole], [part]) == [other, whole]
    (added,) = with_pending([], [part, part])
    assert (added.path, added.valid_length, added.is_whole) == (whole.path, 4, False)
    names = (part.in_progress, part.pending, rewritten(part).pending, part.name)
    assert added.names == tuple(map(part.path_of, names))


def test_pending_parts_need_checkpoints(tmp_path: Path) -> None:
    """Where they are not found the error says so; where the sink keeps them elsewhere, the reader is told."""
    (tmp_path / "part-0.txt").write_text("a\n")
    with pytest.raises(NotFound, match=r"(?s)no checkpoints at '.*_partfile'.*checkpoint_dir="):
        pf.read(tmp_path, include="pending")
    base, elsewhere = tmp_path / "base", tmp_path / "checkpoints"
    with pytest.raises(NotReady, match="2 parts not published"):
        continue_to(long_sink(base, checkpoint_dir=elsewhere, open_store=unpublishing), 4)
    assert values(pf.read(base, include="pending", checkpoint_dir=elsewhere)) == numbered(range(4))


# What an executor does with the files that it is told to cut.


def test_a_task_opens_the_base_once_for_all_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client of a remote store costs more than a small file; each file is cut at its own length."""
    opened = []

    def counting(url: str, options: dict[str, object]) -> object:
        opened.append(url)
        return open_for_reading(url, options)

    monkeypatch.setattr(cut_files, "open_for_reading", counting)
    (tmp_path / "day=1").mkdir()
    for name in ("a", "b", "day=1/c"):
        (tmp_path / name).write_text(f"{name} whole\nbroken")
    files = CutFiles(str(tmp_path), {}, "text", (), is_header=False)
    names = ["path", "valid_length"]
    batches = [
        pa.RecordBatch.from_pydict(dict(zip(names, columns, strict=True)))
        for columns in ((["a", "b"], [8, 8]), (["day=1/c"], [14]))
    ]
    found = [batch.to_pylist() for batch in files.read(iter(batches))]
    assert found == [
        [{"record": "a whole"}],
        [{"record": "b whole"}],
        [{"record": "day=1/c whole", "partition_0": "1"}],
    ]
    assert opened == [str(tmp_path)]
