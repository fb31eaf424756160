"""State inside a checkpoint that was changed, checksums and all: refused before storage is asked (H1, M5)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import partfile as pf
from partfile.errors import PartfileError, PartMissing, SnapshotCorrupt
from partfile.stores.local.posix import CHANGING_CALLS
from partfile.testing.faults import Recorder
from support.command_line import run
from support.life_cycle import batch, everything, long_sink, make_sink
from support.tampered_state import newest_metadata, tamper

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


OPEN, POSITION = "assigned-parts", "stream-position"
OUTSIDE = ["../../x", "..", "/etc/x", "a/../../x", "file:///x", "s3://bucket/x", "a\x00b", "\ud800", "x" * 300, ""]
TREE_CALLS = CHANGING_CALLS - {"sync", "sync_directory"}
"""A start syncs the directories that it reads, since a crash may have left that out: no change of the tree."""
VERBS = ("recover", "recover --apply --fence", "clean", "clean --apply --fence", "status --scan", "verify")


def seed(base: Path) -> Path:
    """A sink that crashed with open parts; returns its newest checkpoint."""
    out = long_sink(base).local().open()
    out.write(batch(0, 8), position=8)
    out.checkpoint()
    out.close()
    return newest_metadata(base)


def part_with(**fields: object) -> Callable[[Any], Any]:
    """Changes names of an open part."""
    return lambda raw: {**raw, "open": {**raw["open"], "part": {**raw["open"]["part"], **fields}}}


def assert_refused(base: Path) -> None:
    """No start and no verb goes by the state or changes anything, and each tells what is wrong."""
    before, recorder = everything(base), Recorder(only=TREE_CALLS)
    with pytest.raises(SnapshotCorrupt):
        make_sink(base, interceptor=recorder).local().open()
    assert recorder.count == 0
    assert everything(base) == before
    for verb in VERBS:
        result = run(verb.split()[0], base, *verb.split()[1:])
        assert result.exit_code in {1, 2}, f"{verb}: {result.stdout}{result.stderr}"
        assert isinstance(result.exception, SystemExit)
    with pytest.raises(PartfileError):
        pf.read(base, format="text", include="pending")
    assert everything(base) == before


@pytest.mark.fault("H1")
@pytest.mark.parametrize("field", ["bucket", "name", "in_progress", "pending", "sidecar"])
def test_a_part_that_is_not_below_the_base_is_refused(tmp_path: Path, field: str) -> None:
    """Absolute paths, other schemes, ``..``, NUL: no file outside is touched, none below the base changes."""
    base = tmp_path / "base"
    metadata = seed(base)
    good, victim = metadata.read_bytes(), tmp_path / "x"
    victim.write_bytes(b"not ours")
    for name in OUTSIDE[:-1] if field == "bucket" else OUTSIDE:
        metadata.write_bytes(good)
        tamper(metadata, OPEN, part_with(**{field: name}))
        with pytest.raises(SnapshotCorrupt):
            make_sink(base).local().open()
    assert_refused(base)
    assert victim.read_bytes() == b"not ours"


@pytest.mark.fault("H1")
@pytest.mark.parametrize("chain", ["../../x", "a/b", "", "0123456", "012345678", "0123456G", "0123456\n"])
def test_a_chain_that_would_lead_elsewhere_is_refused(tmp_path: Path, chain: str) -> None:
    """It is in the name of every part that comes."""
    tamper(seed(tmp_path), POSITION, lambda raw: {**raw, "chain": chain})
    assert_refused(tmp_path)


def _in(raw: Any, name: str, text: str) -> bytes:
    """JSON with a field that ``json.dumps`` would not write."""
    return json.dumps({**raw, name: "?"}).replace('"?"', text).encode()


@pytest.mark.fault("M5")
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda raw: _in(raw, "user_position", "NaN"), id="NaN"),
        pytest.param(lambda raw: _in(raw, "user_position", "-Infinity"), id="infinity"),
        pytest.param(lambda raw: _in(raw, "user_position", "[1e999]"), id="overflow"),
        pytest.param(lambda raw: _in(raw, "user_position", "9" * 5000), id="endless number"),
        pytest.param(lambda raw: _in(raw, "user_position", "[" * 100_000 + "]" * 100_000), id="deep nesting"),
        pytest.param(lambda raw: _in(raw, "user_position", '{"a": 1, "a": 2}'), id="doubled name inside"),
        pytest.param(lambda raw: json.dumps(raw)[:-1].encode() + b', "kept": true}', id="doubled name"),
        pytest.param(lambda raw: {**raw, "more": 1}, id="extra name"),
        pytest.param(lambda raw: {**raw, "parallelism": -1}, id="negative"),
        pytest.param(lambda _raw: b"", id="nothing"),
        pytest.param(lambda _raw: b"\x80\x04N.", id="a pickle"),
    ],
)
def test_hostile_elements_are_refused(tmp_path: Path, change: Callable[[Any], Any]) -> None:
    """Whatever an element of state says: one error, in bounded time, and nothing is changed."""
    tamper(seed(tmp_path), POSITION, change)
    assert_refused(tmp_path)


@pytest.mark.fault("M5")
def test_what_was_only_written_otherwise_is_taken(tmp_path: Path) -> None:
    """Spaces and the order of fields are no damage: the check is about what is said."""
    tamper(seed(tmp_path), POSITION, lambda raw: dict(reversed(raw.items())))
    with make_sink(tmp_path).local() as out:
        assert out.position == 8


@pytest.mark.fault("F10", "H1")
def test_a_part_that_claims_more_bytes_than_it_has_is_not_published(tmp_path: Path) -> None:
    """A valid length beyond the file, as after losing acknowledged bytes: missing data is told, nothing is made up."""
    metadata = seed(tmp_path)
    tamper(metadata, OPEN, part_with(valid_length=10**15))
    with pytest.raises(PartMissing):
        make_sink(tmp_path).local().open()
    assert not [path for path in tmp_path.rglob("part-*") if path.is_file()]
