"""Multi-bucket staging files, on a real HDFS: kills at calls, starts that are killed too, the command line."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import pytest

from support.hdfs.life import finished_files, opener
from support.hdfs.shared_life import ROWS
from support.processes.command_line import told_json
from support.programs.clean_forks import CleanForks
from support.sinks.shared_streams import BUCKETS, HELD, Seen, check_commands, counted, rows_of_files

if TYPE_CHECKING:
    import random
    from collections import Counter
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from support.hdfs.cluster import HdfsCluster


SAMPLES = 2
EACH_FORMAT = pytest.mark.parametrize("format", ["parquet", "json"])
EACH_READER = pytest.mark.parametrize("is_taken", [False, True], ids=["files stay", "files are taken"])


class Lives:
    """Lives of sinks in directories of their own, each in a process of its own.

    Args:
        hdfs: The cluster.
        directory: Where all of them are.
        forks: Runs them.
        format: What they write.
    """

    def __init__(self, hdfs: HdfsCluster, directory: str, forks: CleanForks, format: str) -> None:
        self._hdfs = hdfs
        self._directory = directory
        self._forks = forks
        self._format = format
        self.name = ""
        """The directory of the present one."""

    @property
    def url(self) -> str:
        """The base of the present one."""
        return f"{self._hdfs.url}{self._directory}/{self.name}"

    def run(self, function: str, **arguments: object) -> int:
        """Run one of ``support.hdfs.shared_life`` and return its exit code."""
        place = {"url": self.url, "http_address": self._hdfs.http_address, "format": self._format}
        return self._forks.run(function, **place, **arguments)

    def rows(self) -> Counter[tuple[str, int]]:
        """How often each row is in a finished file of each bucket."""
        with opener(self._hdfs.http_address)(self.url, None) as store:
            return rows_of_files(finished_files(store), self._format)

    def take(self) -> None:
        """Delete the finished files, as a consumer does that has read them."""
        with opener(self._hdfs.http_address)(self.url, None) as store:
            for path in finished_files(store):
                store.delete_file(path)

    def seen(self, *, is_taken: bool) -> Seen:
        """What readers see of the present one, or consumers take."""
        return Seen(self.rows, self.take if is_taken else None)

    def calls(self, notes: Path, *, is_restore: bool) -> list[str]:
        """The changing calls of one of which nothing is killed."""
        assert self.run("count", to=str(notes), is_restore=is_restore) == 0
        names: list[str] = json.loads(notes.read_text())
        return names


@pytest.fixture
def lives(request: pytest.FixtureRequest, hdfs: HdfsCluster, hdfs_directory: str) -> Iterator[Lives]:
    """Of the format that the test is of."""
    with CleanForks("support.hdfs.shared_life") as forks:
        yield Lives(hdfs, hdfs_directory, forks, request.getfixturevalue("format"))


@pytest.mark.drawn(1)
@EACH_FORMAT
@EACH_READER
@pytest.mark.fault("D14", "K1")
def test_a_kill_at_a_call_loses_and_doubles_nothing(  # noqa: PLR0917 - fixtures.
    lives: Lives,
    tmp_path: Path,
    rng: random.Random,
    chosen: Callable[[int, int], list[int]],
    format: str,
    is_taken: bool,
) -> None:
    """SIGKILL at call n of a life whose buckets share a staging file.

    A restart ends with each row once, in its bucket; also where a consumer takes every file between the two.
    """
    lives.name = "counted"
    calls = lives.calls(tmp_path / "calls.json", is_restore=False)
    for number in chosen(len(calls), SAMPLES):
        lives.name = f"{number}"
        shown = f"{format}: call {number} of {len(calls)}, {calls[number - 1]}"
        code = lives.run("die", number=number, when=rng.choice(["before", "after"]), is_restore=False)
        # Leases are asked about until they are free, which takes fewer calls now and more then.
        assert code == -signal.SIGKILL or number > len(calls) - BUCKETS, shown
        seen = lives.seen(is_taken=is_taken)
        assert seen() <= counted(0, ROWS), shown
        assert lives.run("live") == 0, shown
        assert seen() == counted(0, ROWS), shown


@pytest.mark.drawn(1)
@EACH_FORMAT
@EACH_READER
@pytest.mark.fault("K16", "K1")
def test_two_kills_of_starts_that_encode_a_multi_bucket_staging_file(  # noqa: PLR0917 - fixtures.
    lives: Lives,
    tmp_path: Path,
    rng: random.Random,
    chosen: Callable[[int, int], list[int]],
    format: str,
    is_taken: bool,
) -> None:
    """Of its files none is seen, or all are published in the end, whichever starts died while they were made."""
    lives.name = "counted"
    assert lives.run("seed") == 0
    calls = lives.calls(tmp_path / "calls.json", is_restore=True)
    assert len(calls) > BUCKETS
    for number in chosen(len(calls), SAMPLES):
        lives.name = f"{number}"
        assert lives.run("seed") == 0
        seen = lives.seen(is_taken=is_taken)
        for call in (number, rng.randint(1, len(calls))):
            assert lives.run("die", number=call, when="after", is_restore=True) in {-signal.SIGKILL, 0}
            assert seen() <= counted(0, HELD), f"{format}: call {call} after {number} of {len(calls)}"
        assert lives.run("live") == 0
        assert seen() == counted(0, ROWS), f"{format}: call {number} of {len(calls)}"


@EACH_FORMAT
def test_the_command_line_knows_multi_bucket_staging_files(lives: Lives, hdfs: HdfsCluster, format: str) -> None:
    """How many buckets share, and the rows; recover publishes in each; then nothing is wrong, and the sink goes on."""
    lives.name = "out"
    assert lives.run("seed") == 0
    place: tuple[Any, ...] = (lives.url, "--storage-option", f"http_address={hdfs.http_address}")
    check_commands(place, lives.rows)
    assert lives.run("live") == 0
    assert lives.rows() == counted(0, ROWS), format
    assert told_json("verify", *place)["findings"] == []
