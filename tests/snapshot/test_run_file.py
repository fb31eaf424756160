"""Run files: what is written is read again, damage is refused, keys are found, runs are merged."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partfile.errors import SnapshotCorrupt, SnapshotVersionError
from partfile.snapshot import run_file
from partfile.snapshot.documents import encode_body
from partfile.snapshot.run_file import Run, decode_run, encode_run, merged, run_of

if TYPE_CHECKING:
    from pathlib import Path

Keys = dict[tuple[int, int], int]
WORDS = st.integers(0, 2**64 - 1)
KEYS = st.dictionaries(
    st.tuples(st.integers(0, 3) | WORDS, st.integers(0, 3) | WORDS), st.integers(0, 2**40), min_size=1
)
"""Times of keys, many of which share one of their words."""


def run_from(keys: Keys) -> Run:
    in_order = sorted(keys)
    return run_of(
        np.array([high for high, _ in in_order], np.uint64),
        np.array([low for _, low in in_order], np.uint64),
        np.array([keys[key] for key in in_order], np.int64),
    )


def keys_in(run: Run) -> Keys:
    pairs = zip(run.high.tolist(), run.low.tolist(), strict=True)
    return dict(zip(pairs, run.times(slice(None)).tolist(), strict=True))


def is_about(found: Keys, expected: Keys, unit_ms: int) -> bool:
    """Whether times are those, or later by less than a unit."""
    return found.keys() == expected.keys() and all(0 <= found[key] - expected[key] < unit_ms for key in expected)


@given(KEYS)
def test_a_run_comes_back(keys: Keys) -> None:
    """Keys, order and times; a time is never earlier than it was, and later by less than the unit of its ages."""
    run = run_from(keys)
    again = decode_run(encode_run(run), "x")
    assert is_about(keys_in(again), keys, max(1, run.unit_ms))
    assert (again.first_ms, again.last_ms) == (min(keys.values()), run.last_ms)
    assert run.last_ms == max(keys_in(run).values())


def test_times_of_49_days_are_exact() -> None:
    """Four bytes count milliseconds as far as they go."""
    keys = {(1, 1): 5, (2, 2): 5 + 2**32 - 1}
    assert run_from(keys).unit_ms == 1
    assert keys_in(run_from(keys)) == keys
    assert run_from({**keys, (3, 3): 5 + 2**32}).unit_ms == 2


def test_a_file_is_small_and_mapped_where_it_lies(tmp_path: Path) -> None:
    """16 bytes a key of one time, 20 of several; the columns lie at multiples of eight bytes."""
    words = np.sort(np.random.default_rng(1).integers(0, 2**63, 5000, np.uint64))
    for times, size in ((np.full(5000, 7, np.int64), 16), (np.arange(5000, dtype=np.int64), 20)):
        data = encode_run(run_of(words, words, times))
        assert len(data) < 5000 * size + 200
        path = tmp_path / f"{size}"
        path.write_bytes(data)
        with path.open("rb") as file:
            run = decode_run(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), "x")
        assert run.high.flags.aligned
        assert run.low.flags.aligned
        assert not run.high.flags.owndata
        assert (run.high == words).all()


def test_damage_of_any_byte_is_seen() -> None:
    """A flipped bit anywhere, a cut and a longer file."""
    data = encode_run(run_from({(1, 2): 3, (1, 3): 4, (9, 9): 5}))
    for at in range(len(data)):
        with pytest.raises((SnapshotCorrupt, SnapshotVersionError)):
            decode_run(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], "x")
    for wrong in (data[:-1], data + b"\n", b""):
        with pytest.raises(SnapshotCorrupt):
            decode_run(wrong, "x")


@pytest.mark.parametrize(
    ("index", "high", "ages", "says"),
    [
        ('{"hash_version":1,"keys":2,"first_ms":0,"last_ms":0,"unit_ms":0}', [2, 1], [], "not in order"),
        ('{"hash_version":1,"keys":2,"first_ms":0,"last_ms":0,"unit_ms":0}', [1, 1], [], "not in order"),
        ('{"hash_version":1,"keys":3,"first_ms":0,"last_ms":0,"unit_ms":0}', [1, 2], [], "not those of 3 keys"),
        ('{"hash_version":1,"keys":2,"first_ms":0,"last_ms":9,"unit_ms":0}', [1, 2], [], "its times"),
        ('{"hash_version":1,"keys":2,"first_ms":0,"last_ms":1,"unit_ms":1}', [1, 2], [0, 2], "its times"),
        ('{"hash_version":1,"keys":0,"first_ms":0,"last_ms":0,"unit_ms":0}', [], [], "greater than or equal to 1"),
        ('{"hash_version":1,"keys":2,"first_ms":0,"last_ms":0}', [1, 2], [], "unit_ms"),
        ("[]", [1, 2], [], "not a valid run"),
    ],
)
def test_a_hostile_run_is_refused(index: str, high: list[int], ages: list[int], says: str) -> None:
    """Its checksums hold, and it says what it does not keep."""
    columns = [np.array(high, "<u8"), np.ones(len(high), "<u8"), np.array(ages, "<u4")]
    body = b"".join([index.encode(), b"\n", *(column.tobytes() for column in columns)])
    with pytest.raises(SnapshotCorrupt, match=says):
        decode_run(encode_body("run", body), "x")


def test_a_run_of_keys_that_are_hashed_otherwise_is_no_damage() -> None:
    """Its error says which version it is, and how the sink goes on."""
    line = b'{"hash_version":2,"keys":1,"first_ms":0,"last_ms":0,"unit_ms":0}\n'
    with pytest.raises(SnapshotVersionError, match=r"hashed by version 2.* by version 1") as told:
        decode_run(encode_body("run", line + np.ones(2, "<u8").tobytes()), "x")
    assert "the version of partfile that wrote it" in told.value.hint


@given(KEYS, KEYS)
def test_keys_are_found(keys: Keys, others: Keys) -> None:
    """Each where it is, and no other, however many share 64 bits with it."""
    run, asked = run_from(keys), sorted({*keys, *others})
    places = run.find(*(np.array(words, np.uint64) for words in zip(*asked, strict=True)))
    for key, place in zip(asked, places.tolist(), strict=True):
        assert (place >= 0) == (key in keys)
        assert place < 0 or (int(run.high[place]), int(run.low[place])) == key


@given(st.lists(KEYS, min_size=2, max_size=4))
def test_a_merge_keeps_each_key_at_its_latest_time(runs: list[Keys]) -> None:
    """Whatever is in several of them."""
    latest: Keys = {}
    for keys in runs:
        for key, time_ms in keys.items():
            latest[key] = max(latest.get(key, 0), time_ms)
    (whole,) = merged([run_from(keys) for keys in runs])
    assert is_about(keys_in(whole), latest, 10 * max(1, whole.unit_ms))
    decode_run(encode_run(whole), "x")


def test_a_merge_by_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large runs are merged range by range: the same keys, in order over the seams."""
    monkeypatch.setattr(run_file, "_KEYS_AT_ONCE", 100)
    numbers = np.random.default_rng(2).integers(0, 2**64, 3000, np.uint64)
    runs = [run_from({(int(one), 1): at for one in some}) for at, some in enumerate((numbers[:2000], numbers[1000:]))]
    (whole,) = merged(runs)
    assert keys_in(whole) == {**keys_in(runs[0]), **keys_in(runs[1])}


@given(st.lists(KEYS, min_size=1, max_size=4), st.integers(1, 8))
def test_a_merge_of_more_than_a_run_holds_makes_several(runs: list[Keys], most: int) -> None:
    """Each within the limit, one after the other by hashes, together with each key at its latest time.

    None has hashes of both halves of what all have.
    """
    latest: Keys = {}
    for keys in runs:
        for key, time_ms in keys.items():
            latest[key] = max(latest.get(key, 0), time_ms)
    sources = [run_from(keys) for keys in runs]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_file, "MAX_KEYS", most)
        made = list(merged(sources))
        for run in made:
            decode_run(encode_run(run), "x")
    assert all(0 < run.keys <= most for run in made)
    found = [keys_in(run) for run in made]
    together = {key: time_ms for one in found for key, time_ms in one.items()}
    assert list(together) == sorted(together)
    assert is_about(together, latest, 10 * max(1, *(run.unit_ms for run in (*sources, *made))))
    highs = [high for high, _ in together]
    if sum(run.keys for run in sources) > most and highs[0] < highs[-1]:
        bit = (highs[0] ^ highs[-1]).bit_length() - 1
        assert all(int(run.high[0]) >> bit == int(run.high[-1]) >> bit for run in made)
    else:
        assert len(made) == 1 or highs[0] == highs[-1]
