"""Rows that can never be encoded are not staged; and a stage whose recipe is refused all the same is no dead end."""

from __future__ import annotations

import logging
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from encrypted_parquet import encryption
from life_cycle import batch
from staged_streams import finished_rows, names, staged_sink, stages_in

import partfile as pf
from partfile.errors import ConfigError, NotReady, PartfileError, UnsupportedTypeError
from partfile.sink.coordinator import Runtime
from partfile.sink.encode import encode_stage
from partfile.writers import registry
from partfile.writers.parquet import ParquetFormat
from partfile.writers.registry import format_of

if TYPE_CHECKING:
    from pathlib import Path

    from partfile.writers.base import Format


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        ("parquet", {"row_group_bytes": 64e6}, ["row_group_bytes=64000000.0", "Write 64000000."]),
        ("parquet", {"row_group_rows": 1e6}, ["row_group_rows", "Write 1000000."]),
        ("parquet", {"sort_by": "n"}, ["sort_by='n'", "Write ('n',)."]),
        ("parquet", {"dictionary": "n"}, ["dictionary='n'", "Write ('n',). Or True or False,"]),
        ("parquet", {"compression_level": 5}, ["compression='snappy'", "compression_level=5"]),
        ("parquet", {"encryption": 7}, ["encryption has a wrong type"]),
        ("orc", {"stripe_bytes": 1e7}, ["stripe_bytes", "Write 10000000."]),
        ("orc", {"dictionary_threshold": "0.5"}, ["dictionary_threshold='0.5'", "Write 0.5."]),
        ("avro", {"block_bytes": 1e5}, ["block_bytes"]),
        ("csv", {"header": 1}, ["header=1", "Write True."]),
        ("json", {"non_finite": None}, ["non_finite=None"]),
        ("text", {"line_separator": b"\n"}, ["line_separator"]),
    ],
)
def test_an_option_of_a_wrong_type_makes_no_sink(
    tmp_path: Path, kind: str, options: dict[str, Any], words: list[str]
) -> None:
    """It would be in the recipe of each stage; the error says which option it is, and how to write it."""
    with pytest.raises(ConfigError) as refused:
        pf.FileSink(tmp_path, uid="life", format=kind, format_options=options)
    assert all(word in str(refused.value) for word in words), str(refused.value)


def test_a_level_of_another_type_makes_no_sink(tmp_path: Path) -> None:
    """Of lines, too, which many buckets stage."""
    with pytest.raises(ConfigError, match=r"level=1\.0"):
        pf.FileSink(tmp_path, uid="life", format="json", compression="gzip", format_options={"compression_level": 1.0})
    with pytest.raises(ConfigError, match="compression_level=100"):
        pf.FileSink(
            tmp_path, uid="life", format="parquet", compression="gzip", format_options={"compression_level": 100}
        )


def test_a_list_stands_for_a_tuple(tmp_path: Path) -> None:
    """And is one in the recipe, so that both are the same format."""
    sink = pf.FileSink(tmp_path, uid="life", format=ParquetFormat(sort_by=["n"]))  # type: ignore[arg-type]
    assert sink.settings.format == ParquetFormat(sort_by=("n",))


def test_a_recipe_that_does_not_come_back_makes_no_sink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the reason, the option is named before a row is staged."""
    form = ParquetFormat(row_group_rows=7)

    def forgetful(recipe: Any, sink_format: Format | None = None) -> Format:
        return format_of({name: value for name, value in recipe.items() if name != "row_group_rows"}, sink_format)

    monkeypatch.setattr(registry, "format_of", forgetful)
    with pytest.raises(ConfigError, match="option row_group_rows cannot be kept"):
        pf.FileSink(tmp_path, uid="life", format=form)


def _one(values: Any, kind: Any, *, nullable: bool = True) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(values, kind)], schema=pa.schema([pa.field("x", kind, nullable)]))


_INNER = pa.struct([pa.field("n", pa.int64(), nullable=False)])
_REFUSED: dict[str, tuple[pa.RecordBatch, dict[str, Any], type[Exception]]] = {
    "a null where none may be": (_one([1, None], pa.int64(), nullable=False), {}, ConfigError),
    "the same in a struct": (
        pa.record_batch(
            [pa.StructArray.from_arrays([pa.array([1, None])], fields=list(_INNER))],
            schema=pa.schema([pa.field("x", _INNER, nullable=False)]),
        ),
        {},
        ConfigError,
    ),
    "seconds beyond milliseconds": (_one([1, 2**61], pa.timestamp("s")), {}, ConfigError),
    "the same in a list": (_one([[2**61]], pa.list_(pa.timestamp("s"))), {}, ConfigError),
    "the same in a dictionary": (
        pa.record_batch({"x": pa.array([2**61], pa.timestamp("s")).dictionary_encode()}),
        {},
        ConfigError,
    ),
    "a filter of truth": (_one([True], pa.bool_()), {"bloom_filter_columns": ("x",)}, UnsupportedTypeError),
    "a filter of nothing": (
        _one([{"n": 1}], pa.struct({"n": pa.int64()})),
        {"bloom_filter_columns": ("x.y",)},
        ConfigError,
    ),
}


@pytest.mark.parametrize("columnar", ["staged", "per_checkpoint"])
@pytest.mark.parametrize("case", _REFUSED)
def test_rows_that_cannot_be_encoded_are_not_taken(tmp_path: Path, columnar: Any, case: str) -> None:
    """The batch that brings them fails, with the column's name, and no stage holds them."""
    rows, options, kind = _REFUSED[case]
    sink = pf.FileSink(tmp_path, uid="life", format=ParquetFormat(**options), columnar=columnar)
    out = sink.local().open()
    with pytest.raises(kind, match="'x"):
        out.write(rows)
    with sink.local():
        assert list(tmp_path.glob("part-*")) == []


def test_rows_that_look_dangerous_and_are_not_are_taken(tmp_path: Path) -> None:
    """Columns without nulls, seconds of our time, and nulls where they may be."""
    rows = pa.record_batch(
        [
            pa.array([1, 2]),
            pa.array([0, None], pa.timestamp("s")),
            pa.array([{"n": 1}, {"n": 2}], _INNER),
            pa.array([Decimal(1), None], pa.decimal128(5, 2)),
            pa.array([[("k", None)], None], pa.map_(pa.string(), pa.timestamp("s"))),
        ],
        schema=pa.schema(
            [
                pa.field("a", pa.int64(), nullable=False),
                pa.field("b", pa.timestamp("s")),
                pa.field("c", _INNER, nullable=False),
                pa.field("d", pa.decimal128(5, 2)),
                pa.field("e", pa.map_(pa.string(), pa.timestamp("s"))),
            ]
        ),
    )
    with pf.FileSink(tmp_path, uid="life", format="parquet").local() as out:
        out.write(rows)
    (path,) = tmp_path.glob("part-*")
    assert pq.read_table(path)["a"].to_pylist() == [1, 2]


BAD: dict[str, Any] = {"compression": "snappy", "compression_level": 5}


def leave_stages_of_a_refused_recipe(base: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    """Four rows in two stages that were begun before Parquet's levels were asked for when a sink is made."""
    with monkeypatch.context() as patch:
        patch.setattr("partfile.writers.parquet.check_level", lambda *_: None)
        patch.setattr("partfile.writers.parquet.check_columns", lambda *_: None)
        out = staged_sink(base, format=ParquetFormat(**BAD, **options)).local().open()
        out.write(batch(0, 4))
        out.checkpoint()
        out.close()


def test_a_start_with_options_that_work_gets_past_a_refused_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The sink's own format of the same kind stands in, and says so."""
    leave_stages_of_a_refused_recipe(tmp_path, monkeypatch)
    with caplog.at_level(logging.WARNING, "partfile"), staged_sink(tmp_path).local():
        assert finished_rows(tmp_path) == names(0, 4)
    assert "the sink's own format takes the place" in caplog.text


def test_what_arrow_refuses_while_it_writes_is_got_past_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recipe is one, but no file comes of it: an error with the stage, a reason and a way out; then the way out."""
    leave_stages_of_a_refused_recipe(tmp_path, monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr("partfile.writers.parquet.check_level", lambda *_: None)
        for other in (ParquetFormat(**BAD), "orc"):
            with pytest.raises(PartfileError, match="cannot be encoded: ArrowInvalid") as failed:
                staged_sink(tmp_path, format=other).local().open()
            assert "sink 'life' at" in failed.value.message
            assert failed.value.path is not None
            assert failed.value.path.endswith(".in-progress")
            assert "Start the sink with format='parquet' and options that work" in failed.value.hint
        with staged_sink(tmp_path).local():
            assert finished_rows(tmp_path) == names(0, 4)


def test_no_plain_format_stands_in_for_encryption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was to be encrypted is not written in the clear because another option is wrong."""
    leave_stages_of_a_refused_recipe(tmp_path, monkeypatch, encryption=encryption)
    with pytest.raises(ConfigError, match="cannot be encoded"):
        staged_sink(tmp_path).local().open()
    assert finished_rows(tmp_path) == {}
    assert len(stages_in(tmp_path)) == 2


@pytest.mark.parametrize(
    ("where", "what", "trouble"),
    [
        (ParquetFormat, "encode", MemoryError("too much")),
        (ParquetFormat, "encode", OSError(24, "Too many open files")),
        (pa.ipc, "open_stream", pa.ArrowMemoryError("malloc of size 268435456 failed")),
    ],
    ids=["memory", "files", "memory while it is read"],
)
def test_trouble_of_the_host_is_worth_another_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: Any, what: str, trouble: Exception
) -> None:
    """It says nothing of the stage, which stays rolled until a process has what it needs."""
    out = staged_sink(tmp_path).local().open()
    out.write(batch(0, 4))
    out.checkpoint()
    out.close()

    def fail(*_arguments: object, **_options: object) -> int:
        raise trouble

    with monkeypatch.context() as patch:
        patch.setattr(where, what, fail)
        runtime = Runtime(staged_sink(tmp_path).settings, "life")
        runtime.coordinator.start(lambda _position: None, 10**12)
        (stage, _other) = runtime.coordinator.state.rolled
        with pytest.raises(NotReady, match="is not encoded"):
            encode_stage(runtime.store, stage.part, stage.stage, stage.rows)
        runtime.close()
    with staged_sink(tmp_path).local():
        assert finished_rows(tmp_path) == names(0, 4)
