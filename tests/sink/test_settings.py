"""Options of a sink: credentials of storage, and where checkpoints go."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

import pyarrow as pa
import pytest

import partfile as pf
from partfile.errors import ConfigError
from partfile.sink import restore
from partfile.sink.policies import Options, ReplayRules
from partfile.sink.savepoints import reserved_savepoint
from partfile.sink.settings import SinkOptions, SinkSettings
from partfile.snapshot.storage import CheckpointStorage, DriverMemoryStorageSettings, FileSystemStorageSettings
from partfile.stores.hdfs.options import HdfsOptions
from partfile.stores.local.store import LocalStore
from partfile.stores.registry import options_of_tasks
from partfile.writers.json import JsonLinesFormat
from support.sinks.life_cycle import assert_exactly_once, batch, long_sink, make_sink, run_to_the_end

if TYPE_CHECKING:
    from collections.abc import Mapping

    from partfile.stores.base import Store


# A sink's credentials serve what lies beside the base, are sent nowhere else, and to tasks only as far as needed.


@pytest.mark.item("SP-14")
@pytest.mark.parametrize(("base", "passed"), [("s3://bucket/out", {"key": "k"}), ("s3://other/out", {}), ("/out", {})])
def test_a_savepoint_beside_the_base_is_opened_with_its_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, base: str, passed: dict[str, object]
) -> None:
    """The same scheme and authority: the sink's credentials serve; elsewhere they are not sent."""
    savepoint = Path(long_sink(tmp_path / "old").local().open().stop_with_savepoint(tmp_path / "savepoints"))
    seen: list[tuple[str, Mapping[str, object]]] = []

    def opener(url: str, options: Mapping[str, object], *, create_base: bool = True) -> Store:
        seen.append((url, options))
        return LocalStore(str(savepoint.parent), create_base=create_base)

    monkeypatch.setattr(restore, "open_store", opener)
    monkeypatch.setattr(restore, "is_same_place", lambda *_: False)
    settings = long_sink(tmp_path / "fresh").settings.model_copy(
        update={"base": base, "storage_options": {"key": "k"} if base != "/out" else {}}
    )
    location = f"s3://bucket/savepoints/{savepoint.name}"
    store = LocalStore(str(tmp_path / "none"))
    start = restore.Restore(settings, store, CheckpointStorage(store, "life"), restore.RestoreTerms())
    point = start.read_point(location)
    assert point.location == location
    assert seen == [("s3://bucket/savepoints", passed)]


@pytest.mark.item("SP-06")
@pytest.mark.parametrize(("directory", "passed"), [("s3://bucket/saved", {"key": "k"}), ("s3://backup/saved", {})])
def test_a_directory_beside_the_base_is_opened_with_its_options(
    tmp_path: Path, directory: str, passed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So is the place where savepoints are made."""
    seen: list[tuple[str, Any]] = []

    def opener(url: str, options: Any) -> Any:
        seen.append((url, options))
        return LocalStore(str(tmp_path))

    monkeypatch.setattr("partfile.sink.savepoints.check_directory", lambda *_: None)
    monkeypatch.setattr("partfile.sink.savepoints.path_inside", lambda *_: None)
    settings = long_sink(tmp_path / "out", open_store=opener).settings.model_copy(
        update={"base": "s3://bucket/out", "storage_options": {"key": "k"}}
    )
    with reserved_savepoint(settings, "life", directory) as reserved:
        assert reserved.location.startswith(f"{directory}/savepoint-life-")
    assert seen == [(directory, passed)]


OPTIONS = {"user": "u", "http_address": "nn:9870", "delegation_token": "t", "replication": 2}


@pytest.mark.parametrize(
    ("checkpoint_dir", "opened_with"),
    [(None, OPTIONS), ("hdfs://NN:8020/checkpoints", OPTIONS), ("hdfs://other/checkpoints", {}), ("/disk", {})],
)
def test_checkpoints_beside_the_base_are_opened_with_its_options(
    tmp_path: Path, checkpoint_dir: str | None, opened_with: dict[str, object]
) -> None:
    """Another name of the same HDFS gets them; another HDFS and the local disk do not."""
    seen: dict[str, Any] = {}

    def opener(url: str, options: Any) -> Any:
        seen[url] = dict(options)
        return LocalStore(str(tmp_path / url.replace("/", "-")))

    sink = pf.FileSink(
        "hdfs://nn/out", uid="u", checkpoint_dir=checkpoint_dir, storage_options=OPTIONS, open_store=opener
    )
    with sink.local() as out:
        out.write(pa.RecordBatch.from_pydict({"id": [1]}))
    assert seen == {"hdfs://nn/out": OPTIONS, checkpoint_dir or "hdfs://nn/out/_partfile": opened_with}


def test_tasks_get_what_writing_needs_alone() -> None:
    """What only cutting needs stays with the driver; the rest is still a set of options that HDFS takes."""
    for_tasks = options_of_tasks("hdfs://nn/out", {**OPTIONS, "ca_file": "c"})
    assert for_tasks == {"user": "u", "replication": 2}
    assert HdfsOptions.of(for_tasks).http_address is None
    assert options_of_tasks("s3://bucket/out", OPTIONS) == OPTIONS


def test_a_relative_directory_beside_a_remote_base_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Started from elsewhere the sink would not find its checkpoints, and begin anew; a local base may."""
    monkeypatch.chdir(tmp_path)
    for name in ("checkpoint_dir", "savepoint_dir"):
        relative: dict[str, Any] = {name: "ck"}
        with pytest.raises(ConfigError, match=f"{name}='ck' is relative"):
            pf.FileSink("hdfs://nn/out", uid="u", **relative)
        pf.FileSink("out", uid="u", **relative)
        pf.FileSink(f"file://{tmp_path}/out", uid="u", **relative)
    settings = pf.FileSink("hdfs://nn/out", uid="u").settings
    with pytest.raises(ConfigError, match="is relative"), reserved_savepoint(settings, "life", "ck"):
        pass


def test_a_savepoint_that_no_hdfs_serves_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message is about the configuration, whatever lies at the path; a file at a local path is called one."""
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    sink = long_sink(tmp_path / "out", restore_from="hdfs:///sv/sps/savepoint-x")
    with pytest.raises(ConfigError, match=r"(?s)restore_from=.*fs\.defaultFS, which is ''"), sink.local():
        pass
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "core-site.xml").write_text("<<<")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path / "conf"))
    with pytest.raises(ConfigError, match=r"(?s)restore_from=.*core-site\.xml' cannot be read"), sink.local():
        pass
    (tmp_path / "file").write_text("")
    sink = long_sink(tmp_path / "out", restore_from=str(tmp_path / "file" / "savepoint-x"))
    with pytest.raises(ConfigError, match=r"file' is a file"), sink.local():
        pass


# A sink's checkpoint storage is the one that the snapshot core selects and opens for its options.


@pytest.mark.item("ST-01", "ST-11", "DL-09")
def test_a_sink_stores_its_checkpoints_on_a_file_system(tmp_path: Path) -> None:
    """With or without a checkpoint directory they are files, below a directory for each writer."""
    base, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    hidden = FileSystemStorageSettings(url=f"{base}/_partfile")
    assert make_sink(base).settings.checkpoints == hidden
    chosen = make_sink(base, checkpoint_dir=elsewhere, inline_threshold_bytes=7).settings.checkpoints
    assert chosen == FileSystemStorageSettings(url=str(elsewhere), inline_threshold_bytes=7)
    for subtask in range(2):
        with make_sink(base, checkpoint_dir=elsewhere).local(subtask_index=subtask) as out:
            out.write(batch(0, 1))
    assert sorted(path.name for path in elsewhere.iterdir()) == ["life", "life~1"]


@pytest.mark.item("ST-08", "ST-09", "ST-10")
def test_state_above_the_inline_threshold_lies_in_a_file(tmp_path: Path) -> None:
    """The option reaches the streams of the checkpoints; a run with another threshold reads what the last one left."""
    for threshold, has_files in ((0, True), (1 << 20, False)):
        base = tmp_path / str(threshold)
        out = long_sink(base, inline_threshold_bytes=threshold).local().open()
        out.write(batch(0, 4), position=4)
        out.checkpoint()
        assert bool(list((base / "_partfile" / "life").glob("chk-*/*.state"))) is has_files
        out.close()
        run_to_the_end(make_sink(base, inline_threshold_bytes=(1 << 20) - threshold))
        assert_exactly_once(base)


@pytest.mark.item("ST-09")
@pytest.mark.parametrize("size", [-1, (1 << 20) + 1])
def test_a_threshold_that_metadata_cannot_bear_is_refused(tmp_path: Path, size: int) -> None:
    """The error names option and value, when the sink is made."""
    with pytest.raises(ConfigError, match=f"inline_threshold_bytes={size}"):
        make_sink(tmp_path, inline_threshold_bytes=size)


def test_every_option_is_a_typed_keyword() -> None:
    """An editor completes it, and a type checker takes what the sink takes; paths may be path objects as well."""
    checked = {**SinkSettings.model_fields, **ReplayRules.model_fields}
    own = {"base", "uid", "format", "bucketer", "rolling", "rules"}
    typed = get_type_hints(SinkOptions)
    assert {*typed} == {*checked, "format_options"} - own
    paths = {"checkpoint_dir", "savepoint_dir", "restore_from"}
    assert {typed[name] for name in paths} == {str | os.PathLike[str] | None}
    others = {name: kind for name, kind in typed.items() if name not in {*paths, "format_options"}}
    assert others == {name: checked[name].annotation for name in others}


@pytest.mark.parametrize("model", [SinkSettings, pf.RollingPolicy, pf.PartNaming, ReplayRules])
def test_every_option_has_a_hint_for_a_wrong_value(model: type[Options]) -> None:
    """One that says what to type, whatever the option is."""
    needed = {"base": "out", "uid": "u", "format": JsonLinesFormat()} if model is SinkSettings else {}
    for name in model.model_fields:
        with pytest.raises(ConfigError) as caught:
            model(**{**needed, name: object()})
        assert name in caught.value.message
        assert name in caught.value.hint, caught.value


@pytest.mark.parametrize(
    ("affixes", "hint"),
    [
        ({"part_prefix": "_x"}, "part_prefix='part'"),
        ({"part_prefix": ""}, "part_prefix='part'"),
        ({"part_prefix": "a/b"}, "part_prefix"),
        ({"part_suffix": "\0"}, "part_suffix"),
        ({"pending_prefix": "p"}, "pending_prefix='_'"),
        ({"pending_suffix": ".in-progress"}, "pending_suffix='.pending'"),
    ],
)
def test_affixes_that_cannot_be_say_what_to_write(affixes: dict[str, str], hint: str) -> None:
    """One line of what is wrong, and nothing of the names that are made of them."""
    with pytest.raises(ConfigError) as caught:
        pf.PartNaming(**affixes)
    assert hint in caught.value.hint
    assert "sidecar" not in caught.value.message


def test_a_typo_is_an_error_for_type_checkers_and_at_run_time(tmp_path: Path) -> None:
    """Each comment here is an error of mypy where its error is gone."""
    with pytest.raises(ConfigError, match=r"Did you mean on_stop\?"):
        pf.FileSink(tmp_path, uid="typed", on_stoop="keep")  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="max_part_bytes"):
        pf.RollingPolicy(max_part_bytes=[1])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"Did you mean max_part_bytes\?"):
        pf.RollingPolicy(max_part_byte=1)  # type: ignore[call-arg]
    assert pf.RollingPolicy(max_part_bytes="1 KiB", rollover_interval_s="15m").max_part_bytes == 1 << 10
    with pytest.raises(ConfigError, match="it must be 'publish' or 'keep'"):
        pf.FileSink(tmp_path, uid="typed", on_stop="hold")  # type: ignore[arg-type]


@pytest.mark.item("ST-13")
def test_a_sink_refuses_checkpoints_in_memory(tmp_path: Path) -> None:
    """They would be lost with the driver: a restart could not tell which staged parts count."""
    memory: Any = DriverMemoryStorageSettings()
    with pytest.raises(ConfigError, match="checkpoint_dir"):
        pf.FileSink(tmp_path / "out", uid="job", checkpoint_dir=memory)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"on_stop": "Keep"}, r"Write on_stop='keep'\."),
        ({"cut": "truncat"}, r"Write cut='truncate'\."),
        ({"retained_checkpoints": 0}, r"Write for instance retained_checkpoints=2\."),
        ({"on_stoop": "keep"}, r"Did you mean on_stop\?$"),
        ({"format": "jsno"}, r"Did you mean json\?"),
        ({"compression": "gz"}, r"Did you mean gzip\?"),
        (
            {"compression": "gzip", "format_options": {"compression_level": 99}},
            r"Write for instance compression_level=",
        ),
        ({"rolling": {"max_part_bites": 1}}, ""),
    ],
)
def test_a_wrong_option_is_told_with_the_right_one(tmp_path: Path, options: dict[str, Any], hint: str) -> None:
    """The hint is what to write instead, and it is the second line."""
    given: dict[str, Any] = {"uid": "u", "format": "json", **options}
    with pytest.raises(ConfigError) as raised:
        pf.FileSink(tmp_path, **given)
    assert re.search(hint, raised.value.hint)
    assert "\nHint: " in str(raised.value) or not hint


def test_a_sink_for_spark_without_pyspark_names_the_command() -> None:
    """The error is ours; a package that Spark itself misses is told as it is."""
    program = (
        "import sys, partfile as pf\n"
        "sys.modules['pyspark'] = None\n"
        "try:\n"
        "    pf.FileSink('/tmp/never', uid='u', format='json').start(None, checkpoint_location='c')\n"
        "except pf.ConfigError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "start and foreach_batch need PySpark, which is not installed",
        "Hint: pip install 'partfile[spark]'",
    ]
