"""Multi-bucket staging files, on real S3 servers: kills of lives and of starts, and the command line."""

from __future__ import annotations

import signal
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from partfile.stores.s3.client import CHANGING_CALLS
from partfile.stores.s3.store import S3Store
from partfile.testing.faults import KillAt, SimulatedCrash, count_calls
from support.processes.command_line import told, told_json
from support.s3.life import A_SECOND_S, Stream, at, options_of
from support.sinks.life_cycle import in_child
from support.sinks.shared_streams import (
    BUCKETS,
    HELD,
    Seen,
    check_commands,
    continue_sharing,
    counted,
    die_sharing,
    rows_of_files,
    sharing_sink,
)

if TYPE_CHECKING:
    import random
    from collections import Counter
    from collections.abc import Callable
    from pathlib import Path

    from partfile.sink.file_sink import FileSink
    from partfile.testing.faults import Interceptor, When
    from support.s3.server import S3Server


pytestmark = pytest.mark.slow

ROWS = 4 * BUCKETS
SAMPLES = {"moto": 3, "radosgw": 1}
EACH_FORMAT = pytest.mark.parametrize("format", ["parquet", "json"])


@pytest.fixture(params=["moto", "radosgw"])
def s3_server(request: pytest.FixtureRequest) -> S3Server:
    """The servers on which parts stay open."""
    server: S3Server = request.getfixturevalue(request.param)
    return server


def new_stream(server: S3Server) -> Stream:
    """A bucket of its own."""
    return Stream(f"s3://{server.bucket()}/base", options_of(server))


def sink_of(stream: Stream, format: str, interceptor: Interceptor | None = None) -> FileSink:
    """A sink of twelve buckets that share a staging file; consumers may take its files."""
    opener = stream.process(interceptor).open_store
    return sharing_sink(stream.base, format=format, open_store=opener, consumers_take_files=True)


def live(stream: Stream, format: str, interceptor: Interceptor | None = None, notes: Path | None = None) -> None:
    """Write what is missing and end."""
    continue_sharing(sink_of(stream, format, interceptor), ROWS, notes)


def restore(stream: Stream, format: str, interceptor: Interceptor | None = None) -> None:
    """Start, which encodes what is owed and publishes it, and be gone."""
    sink_of(stream, format, interceptor).local().open().close()


def rows_in(stream: Stream, format: str) -> Counter[tuple[str, int]]:
    """How often each row is in a visible object of each bucket."""
    with S3Store(stream.base, stream.options) as store:
        files = {file.path: store.read_file(file.path, file.size) for file in store.list()}
    return rows_of_files({path: data for path, data in files.items() if path.startswith("k=")}, format)


def seen_in(stream: Stream, format: str, *, is_taken: bool) -> Seen:
    """What readers see, or consumers take."""

    def take() -> None:
        with S3Store(stream.base, stream.options) as store:
            for path in [file.path for file in store.list() if file.path.startswith("k=")]:
                store.delete_file(path)

    return Seen(lambda: rows_in(stream, format), take if is_taken else None)


EACH_READER = pytest.mark.parametrize("is_taken", [False, True], ids=["files stay", "files are taken"])


@pytest.mark.drawn(2)
@EACH_FORMAT
@EACH_READER
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.fault("D14", "K1")
def test_a_kill_at_a_request_loses_and_doubles_nothing(  # noqa: PLR0917 - fixtures.
    s3_server: S3Server,
    tmp_path: Path,
    format: str,
    when: When,
    chosen: Callable[[int, int], list[int]],
    is_taken: bool,
) -> None:
    """SIGKILL at request n of a life whose buckets share a staging file.

    A restart ends with each row once, in its bucket; also where a consumer takes every file between the two.
    """
    calls = count_calls(partial(live, new_stream(s3_server), format), CHANGING_CALLS)
    for number in chosen(calls, SAMPLES[s3_server.name]):
        stream, notes = new_stream(s3_server), tmp_path / f"{number}.told"
        killer = KillAt(number, when, only=CHANGING_CALLS)
        code = in_child(partial(live, stream, format, killer, notes))
        # Side objects of several threads may go by one request or by two.
        assert code == -signal.SIGKILL or number > calls - BUCKETS, f"request {number} of {calls}"
        seen = seen_in(stream, format, is_taken=is_taken)
        assert seen() <= counted(0, ROWS)
        assert in_child(partial(live, stream, format, None, notes)) == 0, f"request {number} of {calls}"
        assert seen() == counted(0, ROWS)


@pytest.mark.drawn(1)
@EACH_FORMAT
@EACH_READER
@pytest.mark.fault("K16", "K1")
def test_two_kills_of_starts_that_encode_a_multi_bucket_staging_file(
    s3_server: S3Server, format: str, rng: random.Random, chosen: Callable[[int, int], list[int]], is_taken: bool
) -> None:
    """Of its files none is seen, or all are published in the end, whichever starts died while they were made."""

    def dead() -> Stream:
        stream = new_stream(s3_server)
        die_sharing(sink_of(stream, format))
        assert rows_in(stream, format).total() == 0
        return stream

    calls = count_calls(partial(restore, dead(), format), CHANGING_CALLS)
    assert calls > BUCKETS
    for number in chosen(calls, SAMPLES[s3_server.name]):
        stream = dead()
        seen = seen_in(stream, format, is_taken=is_taken)
        for call in (number, rng.randint(1, calls)):
            killer = KillAt(call, "after", only=CHANGING_CALLS)
            assert in_child(partial(restore, stream, format, killer)) in {-signal.SIGKILL, 0}
            assert seen() <= counted(0, HELD), f"request {call} after {number} of {calls}"
        assert in_child(partial(restore, stream, format)) == 0
        assert seen() == counted(0, HELD), f"request {number} of {calls}"
        live(stream, format)
        assert seen() == counted(0, ROWS)


@pytest.mark.drawn(1)
@EACH_FORMAT
def test_the_command_line_knows_multi_bucket_staging_files(s3_server: S3Server, tmp_path: Path, format: str) -> None:
    """How many buckets share, and the rows; recover publishes in each; then nothing is wrong, and the sink goes on."""
    stream = new_stream(s3_server)
    die_sharing(sink_of(stream, format))
    place = at(s3_server, stream.base, tmp_path)
    check_commands(place, lambda: rows_in(stream, format))
    live(stream, format)
    assert rows_in(stream, format) == counted(0, ROWS)
    assert told_json("verify", *place)["findings"] == []


def test_what_a_dead_encode_has_left_is_cleaned(s3_server: S3Server, tmp_path: Path) -> None:
    """Objects of files in every bucket that no checkpoint came to name.

    The staging file's own stay, and it is encoded.
    """
    stream = new_stream(s3_server)
    die_sharing(sink_of(stream, "parquet"))
    named = leftovers(stream)
    dying: Any = sink_of(stream, "parquet").local()
    dying._runtime.coordinator._checkpoint_of_its_own = _die
    with pytest.raises(SimulatedCrash):
        dying.open()
    dying.close()
    made = leftovers(stream) - named
    assert len(made) >= BUCKETS
    time.sleep(A_SECOND_S)
    clean = ("clean", *at(s3_server, stream.base, tmp_path), "--older-than", "0s", "--delete")
    told(*clean, "--apply", "--fence")
    assert not made & leftovers(stream)
    assert named <= leftovers(stream)
    live(stream, "parquet")
    assert rows_in(stream, "parquet") == counted(0, ROWS)


def _die(*_arguments: object) -> None:
    raise SimulatedCrash("before a checkpoint names the files")


def leftovers(stream: Stream) -> set[str]:
    """Every object of a part that is not finished, of staging files as well."""
    with S3Store(stream.base, stream.options) as store:
        return {one.path for one in store.leftovers((), 1 << 50)}
