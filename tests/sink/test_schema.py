"""The schema of the rows is in each checkpoint; what a sink lets change is what ``on_schema_change`` says."""

from __future__ import annotations

import datetime as dt
import os
import signal
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import partfile as pf
from partfile.errors import CheckpointMismatch, ConfigError
from partfile.sink.schema import ChangeKind, merged, plain_rows, row_schema_after, schema_in, united, wider
from support.processes.command_line import told
from support.sinks.life_cycle import in_child

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic import JsonValue

    from partfile.sink.schema import OnSchemaChange
    from partfile.sink.states import RowSchema


# The rules.

HELD_BY = [
    (pa.int8(), pa.int64(), pa.int64()),
    (pa.uint8(), pa.int8(), pa.int16()),
    (pa.uint32(), pa.int8(), pa.int64()),
    (pa.uint64(), pa.int64(), None),
    (pa.int32(), pa.float64(), pa.float64()),
    (pa.int32(), pa.float32(), pa.float64()),
    (pa.int16(), pa.float32(), pa.float32()),
    (pa.int64(), pa.float64(), None),
    (pa.float32(), pa.float64(), pa.float64()),
    (pa.decimal128(10, 2), pa.decimal128(8, 4), pa.decimal128(12, 4)),
    (pa.decimal128(38, 0), pa.decimal128(10, 2), pa.decimal256(40, 2)),
    (pa.decimal256(76, 0), pa.decimal256(76, 1), None),
    (pa.binary(3), pa.binary(4), pa.binary()),
    (pa.null(), pa.date32(), pa.date32()),
    (pa.string(), pa.int64(), None),
    (pa.timestamp("us"), pa.timestamp("us", "UTC"), None),
    (pa.timestamp("us"), pa.timestamp("ns"), None),
    (pa.date32(), pa.timestamp("us"), None),
    (pa.bool_(), pa.int8(), None),
]


@pytest.mark.parametrize(("one", "other", "both"), HELD_BY, ids=str)
def test_the_wider_type_is_the_narrowest_that_holds_both(one: Any, other: Any, both: Any) -> None:
    """Whichever comes first."""
    assert wider(one, other) == wider(other, one) == both


INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
FRACTIONS = [pa.float16(), pa.float32(), pa.float64(), pa.decimal128(5, 2), pa.decimal128(38, 10)]
NUMBERS = st.sampled_from([*INTEGERS, *FRACTIONS])


def edges(kind: Any) -> list[Any]:
    if pa.types.is_integer(kind):
        signed = pa.types.is_signed_integer(kind)
        bits = kind.bit_width - signed
        return [-(2**bits) if signed else 0, 2**bits - 1]
    if pa.types.is_decimal(kind):
        return [Decimal(f"{sign}{10**kind.precision - 1}E-{kind.scale}") for sign in "+-"]
    return [65504.0, -0.5]


@given(one=NUMBERS, other=NUMBERS)
def test_no_value_changes_in_the_wider_type(one: Any, other: Any) -> None:
    """The least and the greatest value of either type are equal in it."""
    both = wider(one, other)
    if both is None:
        return
    for kind in (one, other):
        for value in edges(kind):
            assert pa.scalar(value, both).as_py() == value


COLUMNS = st.recursive(
    st.sampled_from([pa.int32(), pa.int64(), pa.string(), pa.date32(), pa.timestamp("us", "Europe/Berlin")]),
    lambda inner: st.one_of(
        inner.map(pa.list_),
        inner.map(lambda kind: pa.map_(pa.string(), kind)),
        st.dictionaries(st.sampled_from("xyz"), inner, min_size=1).map(lambda fields: pa.struct(list(fields.items()))),
    ),
    max_leaves=4,
)
SCHEMAS = st.dictionaries(st.sampled_from("abcd"), COLUMNS).map(
    lambda fields: plain_rows(pa.schema(list(fields.items())))
)


@given(known=SCHEMAS, new=SCHEMAS)
def test_what_reads_both_reads_each(known: pa.Schema, new: pa.Schema) -> None:
    """To merge one of them again changes nothing, unless a column has no type for both."""
    both, changes = merged(known, new)
    assert set(both.names) == {*known.names, *new.names}
    assert merged(known, known) == (known, ())
    if not any(change.kind is ChangeKind.OTHER for change in changes):
        again = {change.kind for one in (known, new) for change in merged(one, both)[1]}
        assert again <= {ChangeKind.ADDED, ChangeKind.WIDER}


def after(
    known: RowSchema | None,
    schema: Any,
    on_change: OnSchemaChange = "evolve",
    path_columns: tuple[str, ...] = (),
    format: dict[str, JsonValue] | None = None,
) -> RowSchema:
    rows = pa.schema(schema)
    return row_schema_after(known, rows, path_columns=path_columns, format=format or {}, on_change=on_change, uid="s")


KNOWN = [("a", pa.int32()), ("b", pa.struct([("x", pa.int32())])), ("c", pa.list_(pa.string()))]


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        (KNOWN[:2], "'c' (list<item: string>) is gone"),
        ([("a", pa.int16()), *KNOWN[1:]], "'a' was int32 and is int16"),
        ([("a", pa.string()), *KNOWN[1:]], "'a' was int32 and is string"),
        ([KNOWN[0], ("b", pa.struct([("y", pa.int32())])), KNOWN[2]], "'b.x' (int32) is gone"),
        ([*KNOWN[:2], ("c", pa.list_(pa.int8()))], "'c[]' was string and is int8"),
        ([*KNOWN[:2], ("c", pa.string())], "'c' was list<item: string> and is string"),
    ],
)
def test_what_does_not_evolve_is_refused_by_name(schema: Any, told: str) -> None:
    """Gone columns, narrower types, other types, nested ones too; each with a way out. To roll lets it pass."""
    known = after(None, KNOWN)
    with pytest.raises(CheckpointMismatch) as refused:
        after(known, schema)
    assert f"s: the columns are not those of the rows before: {told}" in str(refused.value)
    assert 'on_schema_change="roll"' in refused.value.hint
    assert set(schema_in(after(known, schema, "roll")).names) == {"a", "b", "c"}


def test_columns_are_added_and_types_widened() -> None:
    """At the top and nested; the same again is no change, and what has evolved does not go back."""
    known = after(None, KNOWN)
    wide = [("a", pa.int64()), ("b", pa.struct([("x", pa.int64()), ("y", pa.date32())])), KNOWN[2], ("d", pa.bool_())]
    evolved = after(known, wide)
    assert schema_in(evolved) == pa.schema(wide)
    assert after(evolved, wide) is evolved
    with pytest.raises(CheckpointMismatch, match="'a' was int64 and is int32"):
        after(evolved, KNOWN)


def test_what_no_reader_sees_is_no_change() -> None:
    """Order, metadata, whether a column may be null, the zone of instants, dictionaries and views."""
    zoned = pa.timestamp("us", "Europe/Berlin")
    columns = {"a": zoned, "b": pa.string(), "c": pa.list_(zoned), "d": pa.binary(), "e": pa.decimal128(5, 2)}
    known = after(None, list(columns.items()))
    fields = [
        pa.field("c", pa.large_list(pa.timestamp("us", "Asia/Tokyo"))),
        pa.field("b", pa.dictionary(pa.int8(), pa.large_string()), nullable=False),
        pa.field("a", pa.timestamp("us", "UTC"), metadata={"k": "v"}),
        pa.field("d", pa.binary_view()),
        pa.field("e", pa.null()),
    ]
    assert after(known, fields, "fail") is known


def test_fixed_lists_of_another_length_are_another_type() -> None:
    """A list of any length holds both, and is wider than either."""
    known = after(None, [("a", pa.list_(pa.int8(), 2))])
    with pytest.raises(CheckpointMismatch, match=r"'a' was fixed_size_list<.*>\[2\] and is fixed_size_list<.*>\[3\]"):
        after(known, [("a", pa.list_(pa.int8(), 3))])
    assert schema_in(after(known, [("a", pa.list_(pa.int8()))])).field("a").type == pa.list_(pa.int8())


@pytest.mark.parametrize("name", ["a.b", "a[]", "[]", ".", 'a`"b'])
def test_odd_names_are_marked_by_their_whole_name(name: str) -> None:
    """Also where the change is deep within them."""
    kind: Any = pa.list_(pa.list_(pa.int8()))
    other: Any = pa.list_(pa.list_(pa.string()))
    mixed = after(after(None, [(name, kind), ("a", kind)]), [(name, other), ("a", kind)], "roll")
    assert mixed.mixed == (name,)


def test_a_type_that_no_reader_gets_back_is_refused() -> None:
    """Before anything is created: a checkpoint must be readable."""
    kind: Any = pa.int8()
    for _ in range(63):
        kind = pa.list_(kind)
    held = after(None, [("deep", kind)])
    assert schema_in(held).field("deep").type == kind
    for levels in (1, 500):
        for _ in range(levels):
            kind = pa.list_(kind)
        with pytest.raises(pf.UnsupportedTypeError, match="'deep' is nested more than 64 levels deep"):
            after(held, [("deep", kind)], "roll")


@pytest.mark.parametrize("schema", [KNOWN[:2], [*KNOWN, ("d", pa.bool_())], [("a", pa.int64()), *KNOWN[1:]]])
def test_fail_refuses_every_change(schema: Any) -> None:
    """Also those that would evolve."""
    with pytest.raises(CheckpointMismatch, match=r'(?s)the columns are not those.*on_schema_change="evolve"'):
        after(after(None, KNOWN), schema, "fail")


def test_a_column_of_several_types_is_marked_for_good() -> None:
    """A reader must know that one type does not read it, also after the old type has come back."""
    known = after(None, [("a", pa.int32()), ("b", pa.int32())])
    mixed = after(known, [("a", pa.string()), ("b", pa.int64())], "roll")
    assert (schema_in(mixed).field("a").type, mixed.mixed) == (pa.string(), ("a",))
    assert after(mixed, [("a", pa.int32()), ("b", pa.int64())], "roll").mixed == ("a",)


@pytest.mark.parametrize("header", [True, False])
def test_csv_tells_columns_by_their_place(header: bool) -> None:
    """Another order is a change, and a new column in front of others is one; readers are told that it happened."""
    form: dict[str, JsonValue] = {"format": "csv", "header": header, "separator": ",", "null_value": ""}
    known = after(None, KNOWN, format=form)
    for schema in (KNOWN[::-1], [("d", pa.int8()), *KNOWN]):
        with pytest.raises(CheckpointMismatch, match="stands at another place"):
            after(known, schema, format=form)
        assert after(known, schema, "roll", format=form).is_shifted
        assert not after(after(None, KNOWN), schema, "roll").is_shifted
    added = after(known, [*KNOWN, ("d", pa.int8())], format=form)
    # Without names a line of fewer values is no line of all columns.
    assert (schema_in(added).names, added.is_shifted) == (["a", "b", "c", "d"], not header)
    day = ("day", pa.date32())
    moved = after(after(None, [day, *KNOWN], path_columns=("day",), format=form), [*KNOWN, day], "fail", ("day",), form)
    assert not moved.is_shifted
    assert united([known, after(None, KNOWN[::-1], format=form)]) == after(known, KNOWN[::-1], "roll", format=form)


def test_options_that_change_how_files_are_read_are_remembered() -> None:
    """Of CSV of several kinds nothing is known but that; JSON in quotes is read in either form."""
    form: dict[str, JsonValue] = {"format": "csv", "header": True, "separator": ",", "null_value": ""}
    known = after(None, KNOWN, format=form)
    changed: list[dict[str, JsonValue]] = [{"header": False}, {"separator": ";"}, {"null_value": "-"}]
    for option in changed:
        other = after(known, KNOWN, "fail", format={**form, **option})
        assert other.format == after(other, KNOWN, format=form).format == {"format": "csv"}
    assert after(known, KNOWN, format={**form, "compression": "gzip"}).format == {**form, "compression": "gzip"}
    literal: dict[str, JsonValue] = {"format": "json", "non_finite": "literal"}
    quoted: dict[str, JsonValue] = {"format": "json", "non_finite": "string"}
    for one, two in ((literal, quoted), (quoted, literal)):
        assert after(after(None, KNOWN, format=one), KNOWN, format=two).format == quoted


def test_several_writers_have_one_schema() -> None:
    """That of all their columns; a column of two types is marked."""
    one = after(None, [("a", pa.int32()), ("b", pa.string())], path_columns=("b",))
    other = after(None, [("a", pa.int64()), ("b", pa.date32())])
    both = united([one, other])
    assert both is not None
    assert (schema_in(both).field("a").type, both.path_columns, both.mixed) == (pa.int64(), ("b",), ("b",))
    assert united([]) is None


# In a sink.


def sink(base: os.PathLike[str], on_schema_change: OnSchemaChange = "roll", **options: Any) -> pf.FileSink:
    return pf.FileSink(base, uid="rows", on_schema_change=on_schema_change, **options)


def rows(**columns: Any) -> pa.Table:
    return pa.table(columns)


def schema_of(base: Path) -> dict[str, str]:
    return {field.name: str(field.type) for field in pf.read_schema(base)}


INTS, LONGS = pa.array([1], pa.int32()), pa.array([2], pa.int64())


def test_the_checkpoint_has_the_schema_of_its_rows(tmp_path: Path) -> None:
    """From the first one on; rows without a checkpoint, and rows of no number, leave nothing."""
    with sink(tmp_path / "base").local() as out:
        out.checkpoint()
        with pytest.raises(pf.NotFound, match=r"no checkpoint at .* has the schema"):
            pf.read_schema(tmp_path / "base")
        out.write(rows(a=INTS, never=INTS)[:0])
        out.write(rows(a=INTS))
        out.checkpoint()
        assert schema_of(tmp_path / "base") == {"a": "int32"}
        out.write(rows(a=LONGS, b=INTS))
        assert schema_of(tmp_path / "base") == {"a": "int32"}
    assert schema_of(tmp_path / "base") == {"a": "int64", "b": "int32"}


@pytest.mark.parametrize("format", ["json", "parquet"])
def test_a_sink_remembers_over_a_kill(format: str, tmp_path: Path) -> None:
    """What a killed process has checkpointed decides; what it has not does not."""
    base = tmp_path / "base"

    def work() -> None:
        out = sink(base, "evolve", format=format).local().open()
        out.write(rows(a=LONGS))
        out.checkpoint()
        out.write(rows(a=LONGS, b=INTS))
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(work) == -signal.SIGKILL
    out = sink(base, "evolve", format=format).local().open()
    with pytest.raises(CheckpointMismatch, match="'a' was int64 and is int32"):
        out.write(rows(a=INTS))
    with sink(base, "evolve", format=format).local() as out:
        out.write(rows(a=LONGS, b=pa.array(["text"])))
    assert schema_of(base) == {"a": "int64", "b": "string"}
    assert sorted(pf.read(base).to_table()["b"].to_pylist(), key=str) == [None, "text"]


def test_refused_rows_are_in_no_part(tmp_path: Path) -> None:
    """The sink is closed, as by every refusal of rows; the next one goes on behind its last checkpoint."""
    out = sink(tmp_path / "base", "fail").local().open()
    out.write(rows(a=INTS), position=1)
    out.checkpoint()
    with pytest.raises(
        CheckpointMismatch, match=r"rows: the columns are not those of the rows before: 'b' \(int32\) is new"
    ):
        out.write(rows(a=INTS, b=INTS), position=2)
    with sink(tmp_path / "base", "fail").local() as out:
        assert out.position == 1
        out.write(rows(a=INTS), position=2)
    assert pf.read(tmp_path / "base").to_table().to_pylist() == [{"a": 1}] * 2


def test_dictionaries_have_the_schema_of_their_writer(tmp_path: Path) -> None:
    """``write_all`` checks them likewise, and names the item."""
    with sink(tmp_path / "base", "evolve").local(schema={"a": "int64"}) as out:
        out.write_all([{"a": 1}], position=lambda _item: 6)
    out = sink(tmp_path / "base", "evolve").local(schema={"a": "string"}).open()
    with pytest.raises(CheckpointMismatch, match=r"'a' was int64 and is string \(of the rows up to position 7"):
        out.write_all([{"a": "x"}], position=lambda _item: 7)


def test_each_writer_has_its_own(tmp_path: Path) -> None:
    """Independent writers of one uid; a reader sees the columns of all, or those of one."""
    with sink(tmp_path / "base").local() as one, sink(tmp_path / "base").local(subtask_index=1) as other:
        one.write(rows(a=INTS))
        other.write(rows(b=INTS))
    assert schema_of(tmp_path / "base") == {"a": "int32", "b": "int32"}
    assert pf.read_schema(tmp_path / "base", uid="rows~1").names == ["b"]


def test_a_savepoint_carries_it(tmp_path: Path) -> None:
    """A sink that begins with a savepoint refuses what the old one would have."""
    with sink(tmp_path / "old").local() as out:
        out.write(rows(a=LONGS))
        location = out.savepoint(tmp_path / "savepoints")
    out = sink(tmp_path / "new", "evolve", restore_from=location).local().open()
    with pytest.raises(CheckpointMismatch, match="'a' was int64 and is int32"):
        out.write(rows(a=INTS))


def test_going_back_keeps_the_columns_of_later_files(tmp_path: Path) -> None:
    """They stay, and their rows have to be read."""
    base = tmp_path / "base"
    with sink(base).local() as out:
        out.write(rows(a=INTS))
        location = out.savepoint(tmp_path / "savepoints")
        out.write(rows(a=pa.array([2**40]), b=INTS))
    words = ("recover", base, "--restore-from", location, "--accept-newer", "--idle-for", "0s", "--apply")
    told(*words)
    assert schema_of(base) == {"a": "int64", "b": "int32"}
    with sink(base, "evolve").local() as out:
        out.write(rows(a=LONGS, b=INTS))
    found = pf.read(base, schema=pf.read_schema(base)).to_table()["a"].to_pylist()
    assert sorted(found) == [1, 2, 2**40]


def test_the_option_is_checked(tmp_path: Path) -> None:
    """A typo is no mode."""
    with pytest.raises(ConfigError, match="on_schema_change='evolv': it must be 'roll', 'fail' or 'evolve'"):
        sink(tmp_path, "evolv")  # type: ignore[arg-type]


def test_columns_of_paths_are_told_apart(tmp_path: Path) -> None:
    """They are in the schema, for readers have them as columns."""
    day = pa.array([dt.date(2024, 1, 1)])
    with sink(tmp_path / "base", bucketer=pf.HiveBucketer("day")).local() as out:
        out.write(rows(a=INTS, day=day))
    assert schema_of(tmp_path / "base") == {"a": "int32", "day": "date32[day]"}
