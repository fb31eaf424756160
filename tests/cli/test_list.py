"""``partfile list``: every part and file with what is known of it, filtered, streamed and in pages."""

from __future__ import annotations

import os
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest

from partfile.recovery.inspect.files import KnownChain, PartIndex, SeenBase
from partfile.recovery.inspect.places import Job
from partfile.recovery.inspect.tree import Filters, listed, page
from partfile.stores.base import StoredFile
from partfile.stores.local.store import LocalStore
from support.command_line import run, told, told_lines
from support.dead_sinks import crash_when_promised
from support.life_cycle import batch, make_sink, run_to_the_end, seed_with_a_tail
from support.trees import sidecars, write_tree

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def by_state(base: Path, *words: str) -> dict[str, list[dict[str, Any]]]:
    """The listed files by their states."""
    found: dict[str, list[dict[str, Any]]] = {}
    for part in told_lines("list", base, *words):
        found.setdefault(part["state"], []).append(part)
    return found


def test_each_part_has_its_facts(tmp_path: Path) -> None:
    """Open parts show the size they have, the length that counts, bucket, checkpoint, subtask and sink."""
    seed_with_a_tail(tmp_path)
    (first, second) = sorted(by_state(tmp_path)["in-progress"], key=lambda part: str(part["path"]))
    assert (first["bucket"], first["valid_length"], first["size_bytes"]) == ("bucket=b0", 18, 36)
    assert (second["bucket"], second["valid_length"], second["size_bytes"]) == ("bucket=b1", 18, 27)
    for part in (first, second):
        assert (part["checkpoint_id"], part["subtask"], part["job"], part["is_current"]) == (2, 0, "life", True)
        assert part["age_s"] < 3600


def test_every_file_is_listed_once_in_its_state(tmp_path: Path) -> None:
    """Finished, pending, orphan and foreign files are told apart, and the states can be chosen."""
    crash_when_promised(tmp_path)
    with make_sink(tmp_path, uid="other").local() as out:
        out.write(batch(0, 4), position=4)
    pending = next(path for path in (tmp_path / "bucket=b1").glob("_part-*"))
    pending.with_name(pending.name.replace(pending.name.split(".")[2], "e" * 32)).write_bytes(b"lost")
    (tmp_path / "notes.txt").write_text("mine")
    found = by_state(tmp_path)
    on_disk = [path for path in tmp_path.rglob("*") if path.is_file() and "_partfile" not in path.parts]
    assert sum(map(len, found.values())) == len(on_disk)
    assert {state: len(parts) for state, parts in found.items() if state in {"orphan", "foreign"}} == {
        "orphan": 1,
        "foreign": 1,
    }
    assert {part["job"] for part in found["finished"]} == {"other"}
    assert {part["job"] for part in found["pending"]} == {"life"}
    assert set(by_state(tmp_path, "--state", "orphan", "--state", "finished")) == {"orphan", "finished"}
    assert set(by_state(tmp_path, "--uid", "other")) == {"finished"}


def test_filters_take_what_they_say(tmp_path: Path) -> None:
    """A bucket, a size and an age leave the others out."""
    seed_with_a_tail(tmp_path)
    assert {part["bucket"] for part in told_lines("list", tmp_path, "--bucket", "bucket=b1")} == {"bucket=b1"}
    assert {part["size_bytes"] for part in told_lines("list", tmp_path, "--min-bytes", "30")} == {36}
    old = next((tmp_path / "bucket=b0").glob("_part-*"))
    os.utime(old, (1, 1))
    (part,) = told_lines("list", tmp_path, "--older-than", "24h")
    assert part["path"] == f"bucket=b0/{old.name}"
    assert told("list", tmp_path, "--bucket", "no/such").startswith("no file")


def test_pages_cover_everything_once(tmp_path: Path) -> None:
    """The last path of a page begins the next; together they are the whole list, by path."""
    run_to_the_end(make_sink(tmp_path), rows=40)
    everything = sorted(str(part["path"]) for part in told_lines("list", tmp_path))
    seen: list[str] = []
    while lines := told_lines("list", tmp_path, "--limit", "4", "--after", seen[-1] if seen else ""):
        assert len(lines) <= 4
        seen += [str(part["path"]) for part in lines]
    assert seen == everything
    assert len(everything) > 8


def test_sidecars_show_their_length_and_whether_they_are_alone(tmp_path: Path) -> None:
    """A sidecar is listed with the length in it; one whose part is gone is told apart."""
    write_tree(tmp_path, "text", None)
    lengths = {str(path.relative_to(tmp_path)): int(path.read_text()) for path in sidecars(tmp_path)}
    found = {str(part["path"]): part["valid_length"] for part in by_state(tmp_path)["sidecar"]}
    assert found == lengths
    first = sidecars(tmp_path)[0]
    first.with_name(first.name.removeprefix("_").removesuffix(".valid-length")).unlink()
    (alone,) = by_state(tmp_path)["lone-sidecar"]
    assert alone["path"] == str(first.relative_to(tmp_path))


def test_a_part_that_is_gone_is_listed_as_missing(tmp_path: Path) -> None:
    """What the newest checkpoint vouches for and is not found is listed by its final path, without a size."""
    seed_with_a_tail(tmp_path)
    next((tmp_path / "bucket=b0").glob("_part-*")).unlink()
    (missing,) = by_state(tmp_path)["missing"]
    assert (missing["bucket"], missing["size_bytes"], missing["valid_length"]) == ("bucket=b0", None, 18)


@pytest.mark.parametrize("words", [("--state", "stuck"), ("--bucket", "../x"), ("--limit", "0"), ("--min-bytes", "x")])
def test_a_filter_that_cannot_be_meant_is_usage(tmp_path: Path, words: tuple[str, str]) -> None:
    """An unknown state, a bucket outside the base or a bad number ends with 2."""
    assert run("list", tmp_path, *words).exit_code == 2


class HugeStore(LocalStore):
    """A tree of many finished files that are nowhere."""

    files = 50_000

    def list(self, directory: str = "") -> Iterator[StoredFile]:
        """One after the other, in no order."""
        for number in range(self.files):
            path = f"{directory}day={number % 365}/part-0a1b2c3d-0-{number * 7919 % self.files}.json"
            yield StoredFile(path=path, size=1, modified_at_ms=0)


def test_memory_does_not_grow_with_the_number_of_files(tmp_path: Path) -> None:
    """A stream and a page hold a bounded number of files, however many there are."""
    seen = SeenBase((), PartIndex(chains={"0a1b2c3d": KnownChain(Job("huge"), HugeStore.files)}))
    with LocalStore(str(tmp_path)) as store:
        huge = HugeStore(store.base)

        def files() -> Iterator[Any]:
            return listed(seen, huge, None, Filters(), now_ms=0, step=lambda _steps: None, unread=[])

        tracemalloc.start()
        assert sum(1 for _ in files()) == HugeStore.files
        first = page(files(), "", 100)
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
        tracemalloc.stop()
    assert [part.path for part in first] == sorted(part.path for part in first)
    assert len(first) == 100
