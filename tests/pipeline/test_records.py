"""Records as rows: what is read, what is none, and that one record is one row."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import partfile as pf
from partfile.errors import ConfigError
from partfile.pipeline.kafka import RawBytes
from partfile.pipeline.records import JsonRows

if TYPE_CHECKING:
    from collections.abc import Sequence

SCHEMA = {"id": "int64", "name": "string", "at": pa.timestamp("us", "UTC"), "more": pa.list_(pa.int32())}
ROWS = JsonRows(SCHEMA)


@dataclass
class Record:
    """A record, as the client has it."""

    data: bytes | None

    def value(self) -> bytes | None:
        """Its value."""
        return self.data

    def key(self) -> bytes | None:
        """Its key."""
        return b"k"

    def partition(self) -> int:
        """Where it is."""
        return 3

    def offset(self) -> int:
        """Where it is there."""
        return 1 << 40

    def timestamp(self) -> tuple[int, int]:
        """Kind and time."""
        return (0, -1) if self.data is None else (1, 1_700_000_000_123)


def parsed(values: Sequence[bytes | None], rows: Any = ROWS) -> Any:
    """What values are."""
    return rows.parse([Record(value) for value in values])


def test_objects_are_rows() -> None:
    """Fields that the schema lacks are left out, missing ones are null; white space and line feeds do not matter."""
    told = parsed(
        [
            b'{"id": 1, "name": "\xc3\xa9\\n", "at": "2026-01-02T03:04:05.000006Z", "more": [1, 2], "x": {"y": 1}}',
            b"{}",
            b'{"name": null}',
            b' {\n "id": 2\n}\n',
        ]
    )
    assert told.problems == {}
    assert told.rows.schema == pa.schema(list(SCHEMA.items()))
    assert told.rows["id"].to_pylist() == [1, None, None, 2]
    assert told.rows["name"].to_pylist() == ["é\n", None, None, None]
    assert told.rows["more"].to_pylist() == [[1, 2], None, None, None]
    assert str(told.rows["at"][0].as_py()) == "2026-01-02 03:04:05.000006+00:00"


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (None, "it has no value"),
        (b"", "it is no JSON"),
        (b"no json", "it is no JSON"),
        (b'{"id": 1', "it is no JSON"),
        (b'{"id": 1} {"id": 2}', "it is no JSON: Extra data"),
        (b"[1]", "it is JSON, and no object"),
        (b"3", "it is JSON, and no object"),
        (b"null", "it is JSON, and no object"),
        (b'{"name": "\xff"}', "it is no text in UTF-8"),
        (b'{"name": "a\nb"}', "it is no JSON"),
        (b'{"id": "1"}', "it does not fit the schema: JSON parse error: Column(/id) changed from number to string"),
        (b'{"id": 1.5}', "it does not fit the schema: "),
        (b'{"id": 9223372036854775808}', "it does not fit the schema: "),
        (b'{"name": 1}', "it does not fit the schema: "),
        (b'{"at": "tomorrow"}', "it does not fit the schema: "),
        (b'{"more": [1, "x"]}', "it does not fit the schema: "),
    ],
)
def test_what_is_no_row_is_told_with_its_place(value: bytes | None, problem: str) -> None:
    """And the records beside it are rows."""
    told = parsed([b'{"id": 1}', value, b'{"id": 2}', b'{\n"id": 3}'])
    assert list(told.problems) == [1]
    assert told.problems[1].startswith(problem)
    assert told.rows["id"].to_pylist() == [1, 2, 3]
    alone = parsed([value])
    assert list(alone.problems) == [0]
    assert alone.rows.num_rows == 0
    assert alone.rows.schema == told.rows.schema


def test_records_do_not_stand_in_for_each_other() -> None:
    """One that holds two objects, beside two that are one object together, is found: the count alone is not enough."""
    told = parsed([b'{"id": 1}{"id": 2}', b'{"more":', b"[]}"])
    assert sorted(told.problems) == [0, 1, 2]
    told = parsed([b'{}\n{"id": 1', b',"name": "x"}'])
    assert sorted(told.problems) == [0, 1]
    told = parsed([b'{"id": 1}{"id": 2}', b'{"name": "}', b'{"}'])
    assert sorted(told.problems) == [0, 1, 2]


@pytest.mark.parametrize("between", [b"", b"\n", b" \r\n\t"])
def test_many_and_large_records_are_rows(between: bytes) -> None:
    """Beyond the block that Arrow reads at once by default, with and without white space; bad ones are found."""
    values: list[bytes | None] = [
        between + json.dumps({"id": number, "name": "x" * 500}).encode() + between for number in range(5000)
    ]
    told = parsed(values)
    assert told.rows["id"].to_pylist() == list(range(5000))
    values[70], values[71], values[4999], values[3000] = b"bad", None, b'{"id": "x"}', b'{"id": 1}{"id": 2}'
    told = parsed(values)
    assert sorted(told.problems) == [70, 71, 3000, 4999]
    assert told.rows["id"].to_pylist() == [at for at in range(5000) if at not in told.problems]


VALUES = st.one_of(
    st.builds(lambda number: json.dumps({"id": number, "name": "x"}).encode(), st.integers(-(2**63), 2**63 - 1)),
    st.builds(lambda number: json.dumps({"id": number}, indent=1).encode(), st.integers(0, 9)),
    st.binary(max_size=8),
    st.text('{}[]":,1 \nid', max_size=12).map(str.encode),
    st.text('{}":,\n', max_size=8).map(lambda text: f"{{{text}}}".encode()),
    st.sampled_from(['{"id": NaN}', '{"id": 1e3}', '{"name": "\\ud800"}', '{"x": [1,]}', '{"x": 1, "x": 2}']).map(
        str.encode
    ),
    st.integers(0, 3000).map(lambda depth: b'{"x":' * depth + b"{}" + b"}" * depth),
    st.none(),
    st.sampled_from([b"\n{}", b"{}\n{}", b'{"id": 1\n}', b'{}\n{"id": 1', b',"id": 2}', b"\x0b{}", b"{}\r"]),
)


@given(st.lists(VALUES, max_size=30))
def test_each_record_is_a_row_or_has_a_problem(values: list[bytes | None]) -> None:
    """As each of them is alone, in the same order."""
    told = parsed(values)
    assert told.rows.num_rows + len(told.problems) == len(values)
    alone = [parsed([value]) for value in values]
    assert {at for at, one in enumerate(alone) if one.problems} == set(told.problems)
    assert told.rows["id"].to_pylist() == [one.rows["id"][0].as_py() for one in alone if one.rows.num_rows]


def test_records_as_they_are() -> None:
    """Also those without a value or a time."""
    told = parsed([b"\xff", None], RawBytes())
    assert told.problems == {}
    assert told.rows["value"].to_pylist() == [b"\xff", None]
    assert told.rows["key"].to_pylist() == [b"k", b"k"]
    assert told.rows["offset"].to_pylist() == [1 << 40, 1 << 40]
    assert [str(one) for one in told.rows["timestamp"].to_pylist()] == ["2023-11-14 22:13:20.123000+00:00", "None"]


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: JsonRows(None), "there is no schema"),
        (lambda: JsonRows({"id": "number"}), "no schema"),
        (lambda: JsonRows({"at": pa.month_day_nano_interval()}), "the column 'at' has a type that Arrow does not read"),
        (lambda: JsonRows(pa.schema([pa.field("a", pa.int64(), nullable=False)])), "the column 'a' is not nullable"),
        (
            lambda: JsonRows({"a": pa.list_(pa.field("item", pa.int64(), nullable=False))}),
            "the column 'a' is not nullable, or has a field that is not",
        ),
        (lambda: JsonRows(pa.schema([])), "no column"),
        (lambda: JsonRows(pa.schema([("a", "int64"), ("a", "int64")])), "two columns of one name"),
        (lambda: pf.KafkaSource("b:1", "t", options={"default.topic.config": {}}), "options are no names with texts"),  # type: ignore[dict-item]
        (lambda: pf.KafkaSource("b:1", "t", options={"default.topic.config": ""}), "'default.topic.config' is the"),
        (lambda: pf.KafkaSource("b:1", "t", options=None), "options are no names with texts"),  # type: ignore[arg-type]
        (lambda: pf.KafkaSource("", "t"), "KafkaSource: brokers=''"),
        (lambda: pf.KafkaSource("b:1", 3), "KafkaSource: topic=3"),  # type: ignore[arg-type]
        (lambda: pf.KafkaSource("b:1", "t", begin="now"), "KafkaSource: begin='now'"),  # type: ignore[arg-type]
        (lambda: pf.KafkaSource("b:1", "t", value=JsonRows), "makes no rows"),  # type: ignore[arg-type]
        (lambda: pf.KafkaSource("b:1", "t", discover_s=0), "discover_s=0"),
        (lambda: pf.KafkaSource("b:1", "t", options={"auto.offset.reset": "latest"}), "'auto.offset.reset' is the"),
        (lambda: pf.KafkaSource("b:1", "t", options={"no.such": 1}).open(None, "j", None), "refuses an option"),
    ],
)
def test_what_cannot_be_used_is_refused(make: Any, told: str) -> None:
    """By its name, with what to write instead."""
    with pytest.raises(ConfigError, match=told) as refused:
        make()
    assert refused.value.hint
