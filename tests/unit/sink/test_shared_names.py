"""The names of the files of one shared stage, and that each of its buckets gets its file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from life_cycle import LONG, finished_files
from shared_streams import BUCKETS, many, rolled, sharing_sink

from partfile.errors import NotApplied, PartfileError
from partfile.sink import encode
from partfile.sink.batches import BucketRuns
from partfile.sink.encode import encode_stage
from partfile.sink.encoded_files import PartlyEncoded
from partfile.sink.multi_bucket import clashing, own_name, unmarked
from partfile.sink.policies import PartNumber, number_in
from partfile.stores.local.store import LocalStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from partfile.sink.states import RolledStage
    from partfile.stores.base import PartHandle

NAME = "part-0a1b2c3d-3-17.parquet"


@pytest.mark.parametrize(
    "alike",
    [
        ("k=A", "k=a"),
        ("A/b", "a/B"),
        ("caf\u00e9", "cafe\u0301"),  # One letter, and two that make the same one.
        ("stra\u00dfe", "STRASSE"),
        ("\u212a", "k"),  # The sign of a unit.
        ("\u0131", "I"),  # As the table of upper case on a share has it.
        ("so\u00adft", "soft"),  # A hyphen that shows at the end of a line alone.
        ("end.", "end"),
        ("end /x", "end/x"),
    ],
)
def test_what_some_file_system_holds_for_one_clashes(alike: tuple[str, str]) -> None:
    """And nothing else does."""
    assert clashing([*alike, "k=b", "other", ""]) == set(alike)


def test_paths_of_their_own_do_not_clash() -> None:
    """Capital letters alone are no reason for another name."""
    assert not clashing(["dt=2026-01-01T05", "dt=2026-01-01T06", "a/b", "a", "b", ""])


@pytest.mark.parametrize("bucket", ["k=A", "", "dt=2026-01-01/k=\u00e9"])
@pytest.mark.parametrize("name", [NAME, "part-0a1b2c3d-0-1-2.5"])
def test_a_name_of_its_own_is_known_again(name: str, bucket: str) -> None:
    """It says the same number, and of which stage it is."""
    own = own_name(name, bucket)
    assert own != name
    assert unmarked(own) == unmarked(name) == name
    assert number_in(own, {"0a1b2c3d"}) == number_in(name, {"0a1b2c3d"})
    assert number_in(own_name(NAME, bucket), {"0a1b2c3d"}) == PartNumber("0a1b2c3d", 3, 17)


def stage_of(base: Path, buckets: list[str]) -> RolledStage:
    """A stage with two rows of each bucket."""
    rows = {"k": buckets * 2, "row": range(2 * len(buckets))}
    with sharing_sink(base, format="json", on_stop="keep", rolling=LONG, shared_stage_buckets=1).local() as out:
        out.write(pa.RecordBatch.from_pydict(rows))
    return rolled(base)


class Refusing(LocalStore):
    """A store that makes no file in some buckets, and counts what is asked."""

    def __init__(self, base: Path, refused: set[str]) -> None:
        super().__init__(str(base))
        self._refused = refused
        self.asked: list[str] = []

    def create(self, handle: PartHandle) -> Any:
        """Make it, or not."""
        self.asked.append(handle.bucket)
        if handle.bucket in self._refused:
            raise NotApplied("deliberate", path=handle.name)
        return super().create(handle)


def test_names_stay_the_same_when_a_part_of_them_is_made_later(tmp_path: Path) -> None:
    """What clashes is asked of all buckets, also of those that have their files."""
    stage = stage_of(tmp_path, ["A", "a", "b"])
    with Refusing(tmp_path, {"k=a"}) as store:
        with pytest.raises(PartlyEncoded) as partly:
            encode_stage(store, stage.part, stage.stage, stage.rows)
        done = {file.part.bucket: file.part for file in partly.value.files}
        assert done["k=b"].name == stage.part.name
        assert done["k=A"].name == own_name(stage.part.name, "k=A")
        assert done["k=A"].sidecar == f"_{done['k=A'].name}.valid-length"
    left = stage.stage.model_copy(update={"finished_buckets": ("k=A", "k=b")})
    with LocalStore(str(tmp_path)) as store:
        (late,) = encode_stage(store, stage.part, left, stage.rows)
    assert (late.part.bucket, late.part.name) == ("k=a", own_name(stage.part.name, "k=a"))


def test_verify_takes_names_of_their_own_for_files_of_their_stage(tmp_path: Path) -> None:
    """Which have one number in several buckets, as those of one name have."""
    from changing import broken_invariants  # noqa: PLC0415 - the command line is asked here alone.

    with sharing_sink(tmp_path, format="json", shared_stage_buckets=1).local() as out:
        out.write(pa.RecordBatch.from_pydict({"k": ["A", "a", "b", "c"], "row": range(4)}))
    names = {path.rpartition("/")[2] for path in finished_files(tmp_path)}
    assert len(names) == 3
    assert not broken_invariants(tmp_path)


def test_a_bucket_that_is_lost_on_the_way_is_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is said to be encoded, so that no stage counts as spent whose rows are not all in files."""
    stage, all_of = stage_of(tmp_path, ["a", "b", "c"]), BucketRuns.buckets

    def but_one(runs: BucketRuns) -> Iterator[Any]:
        return (one for one in all_of(runs) if one.bucket != "k=b")

    monkeypatch.setattr(BucketRuns, "buckets", but_one)
    with LocalStore(str(tmp_path)) as store, pytest.raises(PartfileError, match="3 buckets became 2 files"):
        encode_stage(store, stage.part, stage.stage, stage.rows)
    assert not list(tmp_path.rglob("*.pending"))


def test_buckets_that_fail_slowly_do_not_hold_up_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a minute of failures the rest is left for the next time, counted, and the stage keeps their rows."""
    seconds = iter(range(0, 10_000, 20))
    monkeypatch.setattr(encode, "stopwatch_ms", lambda: next(seconds) * 1000.0)
    with sharing_sink(tmp_path, format="json", on_stop="keep", rolling=LONG).local() as out:
        out.write(many(0, 2 * BUCKETS))
    stage = rolled(tmp_path)
    with Refusing(tmp_path, {f"k={number}" for number in range(1, BUCKETS)}) as store:
        with pytest.raises(PartlyEncoded) as partly:
            encode_stage(store, stage.part, stage.stage, stage.rows)
        # One more than there are threads: so many can be waiting for a store that is away for a moment.
        assert len(store.asked) == 1 + store.persist_threads + 1 < BUCKETS
    assert f"{BUCKETS - 1} buckets" in partly.value.message
    assert [file.part.bucket for file in partly.value.files] == ["k=0"]
