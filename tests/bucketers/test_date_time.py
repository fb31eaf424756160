"""Time buckets: T-A11, T-A23 and T2; any zone, any century, the same text on every machine."""

from __future__ import annotations

import os
import time
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import partfile as pf
from partfile.errors import BucketValueError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
CONTEXT = pf.BucketContext(batch_time_ms=1533363082011)
WITH_FALLBACK = pf.BucketContext(batch_time_ms=0, on_bad_bucket="bad")
ZONES = [
    "Europe/Dublin",
    "Pacific/Apia",
    "Australia/Lord_Howe",
    "America/New_York",
    "Africa/Monrovia",
    "Asia/Kathmandu",
]
DIRECTIVES = "YymBbhdejAauwGgVWUHIpMSFTRDC%"


def rows(times: pa.Array[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([times], ["t"])


def of(bucketer: pf.Bucketer, times: pa.Array[Any], context: pf.BucketContext = CONTEXT) -> list[str]:
    return [str(path) for path in bucketer.bucket_of(rows(times), context).to_pylist()]


def instants(seconds: list[int], unit: str = "s") -> pa.Array[Any]:
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    return pa.array([second * per_second for second in seconds], pa.int64()).cast(pa.timestamp(unit, "UTC"))


def test_t_a11_time_buckets_follow_the_batch_time() -> None:
    """Batches at seconds 0, 5, 10 and 15 go to buckets 00, 05, 10 and 15, all their rows together."""
    batch = rows(instants([0] * 5))
    found = [
        pf.DateTimeBucketer(format="%S").bucket_of(batch, pf.BucketContext(batch_time_ms=ms)).to_pylist()
        for ms in (0, 5000, 10_000, 15_000)
    ]
    assert found == [["00"] * 5, ["05"] * 5, ["10"] * 5, ["15"] * 5]


@pytest.mark.fault("T2")
def test_a_batch_time_before_1970_is_rounded_down() -> None:
    """A millisecond before the epoch belongs to the second before it."""
    context = pf.BucketContext(batch_time_ms=-1)
    assert of(pf.DateTimeBucketer(format="%Y %S"), instants([0]), context) == ["1969 59"]


@given(st.lists(st.integers(-62_135_400_000, 253_402_100_000), max_size=20), st.sampled_from(ZONES))
def test_wall_times_are_those_of_pythons_zones(seconds: list[int], zone: str) -> None:
    """To the second, from year 1 to 9999: local mean times, half-hour savings, and rules after 2038."""
    bucketer = pf.DateTimeBucketer("t", "%Y-%m-%d %H.%M.%S", zone)
    wall = [(EPOCH + timedelta(seconds=second)).astimezone(ZoneInfo(zone)) for second in seconds]
    assert of(bucketer, instants(seconds)) == [f"{w:%Y-%m-%d %H.%M.%S}".rjust(19, "0") for w in wall]


@pytest.mark.parametrize(
    ("zone", "change"),
    [
        ("America/New_York", 1362898800),  # 2013-03-10, forward
        ("America/New_York", 1383458400),  # 2013-11-03, back
        ("America/New_York", -2717650800),  # 1883-11-18, from local mean time
        ("Europe/Berlin", 2174346000),  # 2038-11-25, in winter: nothing may jump
        ("Pacific/Apia", 1325239200),  # 2011-12-30 was left out
        ("Africa/Monrovia", 63593070),  # 1972-01-07, by 44 minutes 30 seconds, at no whole minute
    ],
)
@pytest.mark.fault("T2")
def test_the_second_of_a_change_of_offset_is_exact(zone: str, change: int) -> None:
    """The last second before and the first second after a change are shown as Python shows them."""
    seconds = [change + delta for delta in (-86_400, -3601, -3600, -2, -1, 0, 1, 3599, 3600, 86_400)]
    wanted = [
        (EPOCH + timedelta(seconds=second)).astimezone(ZoneInfo(zone)).strftime("%Y%m%d %H%M%S") for second in seconds
    ]
    assert of(pf.DateTimeBucketer("t", "%Y%m%d %H%M%S", zone), instants(seconds)) == wanted


def test_summer_time_goes_on_after_2038() -> None:
    """Noon in July 2050 is 14 h in Berlin; Arrow's own conversion says 13."""
    noon = int(datetime(2050, 7, 1, 12, tzinfo=UTC).timestamp())
    assert of(pf.DateTimeBucketer("t", "%H", "Europe/Berlin"), instants([noon])) == ["14"]


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/New_York"])
def test_the_ends_of_nanosecond_time_do_not_run_over(zone: str) -> None:
    """The first and the last nanosecond stay in 1677 and 2262 in every zone."""
    ends = pa.array([-(2**63), 2**63 - 1], pa.int64()).cast(pa.timestamp("ns", "UTC"))
    assert of(pf.DateTimeBucketer("t", "%Y", zone), ends) == ["1677", "2262"]


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/New_York"])
@pytest.mark.parametrize("unit", ["s", "ms", "us"])
@pytest.mark.fault("T2")
def test_no_instant_is_too_extreme(unit: str, zone: str) -> None:
    """The extremes of each unit are bad values, not crashes or other years."""
    extremes = pa.array([-(2**63), 2**63 - 1, 0], pa.int64()).cast(pa.timestamp(unit, "UTC"))
    assert of(pf.DateTimeBucketer("t", "%j", zone), extremes, WITH_FALLBACK)[:2] == ["bad", "bad"]


@pytest.mark.fault("T2")
def test_years_1_to_9999_have_buckets_and_no_others() -> None:
    """The first and last day are named, with four digits; a day more is a bad value (T2)."""
    days = pa.array([date(1, 1, 1), date(9999, 12, 31)])
    numbers = days.cast(pa.int32()).to_pylist()
    beyond = pa.array([numbers[0] - 1, numbers[1] + 1, 2**31 - 1], pa.int32()).cast(pa.date32())
    bucketer = pf.DateTimeBucketer("t", "%Y-%m-%d")
    assert of(bucketer, days) == ["0001-01-01", "9999-12-31"]
    assert of(bucketer, beyond, WITH_FALLBACK) == ["bad"] * 3
    with pytest.raises(BucketValueError, match="'t' holds a time outside the years 1 to 9999"):
        of(bucketer, beyond)


def test_midnight_in_the_zone_may_lie_in_another_millennium() -> None:
    """The range of years is that of the wall clock: 9999 ends earlier in Tokyo."""
    end = int((datetime(9999, 12, 31, 23, tzinfo=UTC) - EPOCH).total_seconds())
    times = instants([end, end - 86_400, -62_135_596_800])
    assert of(pf.DateTimeBucketer("t", "%F %H"), times) == ["9999-12-31 23", "9999-12-30 23", "0001-01-01 00"]
    tokyo = of(pf.DateTimeBucketer("t", "%F %H", "Asia/Tokyo"), times, WITH_FALLBACK)
    assert tokyo == ["bad", "9999-12-31 08", "0001-01-01 09"]
    new_york = of(pf.DateTimeBucketer("t", "%F %H", "America/New_York"), times, WITH_FALLBACK)
    assert new_york == ["9999-12-31 18", "9999-12-30 18", "bad"]


@pytest.mark.parametrize("letter", DIRECTIVES)
@given(st.datetimes(min_value=datetime(1000, 1, 1), max_value=datetime(9999, 12, 31)))  # noqa: DTZ001 - wall time
def test_directives_mean_what_they_mean_to_strftime(letter: str, wall: datetime) -> None:
    """Each directive gives what Python's strftime gives in the C locale."""
    wanted = wall.strftime(f"%Y %{letter}")
    shown = of(pf.DateTimeBucketer("t", f"%Y %{letter}"), pa.array([wall], pa.timestamp("us")))
    assert shown == [wanted.replace("%", "%25").replace(":", "%3A")]


@pytest.fixture
def machine_in_tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(os.environ, "TZ", "Asia/Tokyo")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("machine_in_tokyo")
def test_the_machines_own_zone_does_not_matter() -> None:
    """Workers in another zone than the driver give the same buckets."""
    bucketer = pf.DateTimeBucketer("t", "%Y-%m-%d %H")
    assert of(bucketer, instants([0])) == ["1970-01-01 00"]
    assert of(bucketer, pa.array([0], pa.timestamp("s"))) == ["1970-01-01 00"]
    assert of(pf.DateTimeBucketer(format="%H"), instants([0])) == ["06"]


@pytest.mark.parametrize(
    "format", ["%s", "%c", "%x", "%X", "%r", "%Z", "%z", "%f", "%-d", "%E", "%Y%", "no time", "%%"]
)
def test_directives_that_depend_on_the_machine_are_refused(format: str) -> None:
    """Epoch seconds of the machine's zone, the locale's own forms, glibc's flags: not the same everywhere."""
    with pytest.raises(ConfigError, match=r"has an unknown directive|shows no time"):
        pf.DateTimeBucketer("t", format)


@pytest.mark.parametrize("format", ["%Y//%m", "/%Y", "%Y/", "x" * 300 + "%Y"])
def test_a_format_that_gives_no_path_is_refused_when_made(format: str) -> None:
    """An empty or over-long directory is found at once, not with the first row."""
    with pytest.raises(ConfigError, match="gives no path"):
        pf.DateTimeBucketer("t", format)


@pytest.mark.parametrize("zone", ["", "America", "../../etc/passwd", "Mars/Base", None])
def test_a_zone_that_is_none_is_refused_when_made(zone: Any) -> None:
    """Only IANA names; the message shows what was given and an example."""
    with pytest.raises(ConfigError, match=r"(?s)unknown time zone .*Europe/Berlin"):
        pf.DateTimeBucketer("t", time_zone=zone)


@pytest.mark.parametrize("column", ["", 3, ["t"]])
def test_a_column_that_is_no_name_is_refused_when_made(column: Any) -> None:
    """One name, or None."""
    with pytest.raises(ConfigError, match="one column"):
        pf.DateTimeBucketer(column)


def test_hidden_names_in_a_format_are_escaped_and_slashes_nest() -> None:
    """A format cannot hide its directories either."""
    assert of(pf.DateTimeBucketer("t", "_%Y/.%m/%d"), instants([0])) == ["%5F1970/%2E01/01"]


@pytest.mark.parametrize(
    ("format", "unit"),
    [
        ("%Y", "year"),
        ("%Y/%m", "month"),
        ("%B %Y", "month"),
        ("%Y-%j", "day"),
        ("%F", "day"),
        ("%d.%m.%Y %H", "hour"),
        ("%F--%R", "minute"),
        ("%F %T", "second"),
        ("%H", None),
        ("%S", None),
        ("%Y-%d", None),
        ("%m-%d", None),
        ("%F %I", None),
        ("%G-W%V", None),
        ("%Y %A", None),
        ("%y-%m", None),
    ],
)
def test_only_formats_that_tell_all_times_apart_have_a_hash_key(format: str, unit: str | None) -> None:
    """A key is shared by all rows of its bucket; %H shows one bucket for an hour of every day."""
    key = pf.DateTimeBucketer("t", format, "Asia/Tokyo").hash_key
    assert (key and key.truncate_to) == unit


@pytest.mark.parametrize(
    "times",
    [
        pa.array([0, 86_400, 0], pa.timestamp("s", "UTC")),
        pa.array([9, 0, 86_400, 0], pa.timestamp("s", "UTC")).slice(1),
        pa.array([0, 86_400, 0], pa.timestamp("ns", "UTC"))
        .dictionary_encode()
        .cast(pa.dictionary(pa.int32(), pa.timestamp("ns", "UTC"))),
        pa.array([0, 1, 0], pa.int32()).cast(pa.date32()),
        pa.array([0, 86_400_000, 0], pa.int64()).cast(pa.date64()),
    ],
    ids=lambda times: str(times.type),
)
def test_every_kind_of_time_column_works(times: pa.Array[Any]) -> None:
    """Slices, dictionaries, and both kinds of dates."""
    bucketer = pf.DateTimeBucketer("t", "%d")
    bucketer.check(rows(times).schema)
    wanted = ["01", "01", "01"] if str(times.type).startswith("dictionary") else ["01", "02", "01"]
    assert of(bucketer, times) == wanted
    assert of(bucketer, times.slice(1)) == wanted[1:]


def test_a_missing_or_wrong_column_is_named_even_without_a_check() -> None:
    """Code that buckets before checking, such as the shuffle, gets the same message."""
    batch = pa.RecordBatch.from_pydict({"n": [1], "m": ["x"]})
    with pytest.raises(ConfigError, match=r"(?s)needs column 't', .*columns are n, m"):
        pf.DateTimeBucketer("t").bucket_of(batch, CONTEXT)
    with pytest.raises(ConfigError, match=r"'n' is int64; the columns are n, m"):
        pf.DateTimeBucketer("n").bucket_of(batch, CONTEXT)
