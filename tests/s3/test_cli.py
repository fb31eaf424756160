"""The command line on S3, also killed at requests."""

from __future__ import annotations

import json
import os
import signal
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

import partfile as pf
from partfile.recovery.clean import _named
from partfile.recovery.inspect.files import read_base
from partfile.recovery.inspect.places import Place
from partfile.recovery.ownership import open_stores
from partfile.snapshot.documents import METADATA
from partfile.stores.registry import open_store
from partfile.stores.s3.client import CHANGING_CALLS
from partfile.stores.s3.store import S3Store
from partfile.testing.faults import KillAt, Recorder
from support.crash.commands import clean_by_command, recover_by_command
from support.files.trees import flink_rows, write_utf
from support.processes.command_line import run, told, told_json, told_lines
from support.s3.life import A_SECOND_S, MIB, Stream, at, crashed, options_of, store_options
from support.s3.proxy import S3Proxy, error
from support.sinks.dead import orphan_of
from support.sinks.life_cycle import batch, continue_to, in_child
from support.sinks.recovery import NOW_MS
from support.sinks.staged_streams import STAGED, names

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

    from partfile.testing.faults import Call
    from support.crash.worlds import Process
    from support.s3.server import S3Server


# The verbs that read, on a real S3 server: parts that are not finished are no objects there.

HIDDEN = "hush-hush"


@pytest.mark.slow
@pytest.mark.parametrize("row_bytes", [10, 3 * MIB], ids=["side objects", "uploads"])
def test_parts_that_are_no_objects_are_told(moto: S3Server, tmp_path: Path, row_bytes: int) -> None:
    """Open parts are stuck, listed without a size, not missing and no error; only GET and HEAD are sent."""
    base = f"s3://{moto.bucket()}/base"
    stream = crashed(moto, base, row_bytes)
    with S3Proxy(moto) as proxy:
        place = at(proxy, base, tmp_path)
        (sink,) = told_json("status", *place, code=1)["sinks"]
        assert [part["valid_length"] for part in sink["stuck"]] == [2 * row_bytes] * 2
        listed = [part for part in told_lines("list", *place) if part["state"] == "in-progress"]
        assert [(part["size_bytes"], part["is_current"]) for part in listed] == [(None, True)] * 2
        assert told_json("verify", *place)["findings"] == []
        assert told_json("status", *place, "--scan", code=1)["scan"]["missing"] == []
        refused = run("cat", base, sink["stuck"][0]["path"], *place[1:])
        assert refused.exit_code == 1
        assert "in no file before it is published" in refused.stderr
        assert {each.request.method for each in proxy.exchanges} == {"GET", "HEAD"}
    stream.run_to_the_end()
    stream.assert_exactly_once()
    direct = at(moto, base, tmp_path)
    assert told_json("verify", *direct)["findings"] == []
    told("cat", base, min(stream.finished()), *direct[1:])


@pytest.mark.slow
def test_an_upload_that_was_aborted_is_missing(moto: S3Server, tmp_path: Path) -> None:
    """Side objects that another program deleted make their part missing, to the scan and to verify."""
    bucket = moto.bucket()
    crashed(moto, f"s3://{bucket}/base", 10)
    client = moto.filesystem()
    sides = client.find(f"{bucket}/base/_partfile/_sides")
    client.rm_file(sides[0])
    place = at(moto, f"s3://{bucket}/base", tmp_path)
    (missing,) = told_json("status", *place, "--scan", code=1)["scan"]["missing"]
    (finding,) = told_json("verify", *place, code=1)["findings"]
    assert (finding["code"], finding["path"]) == ("part-missing", missing)


def test_secrets_are_shown_nowhere(moto: S3Server, tmp_path: Path) -> None:
    """Whatever fails, what opens the store is in no output."""
    options = tmp_path / "options.json"
    options.write_text(json.dumps({**store_options(moto), "secret": HIDDEN, "token": HIDDEN}))
    for base in (f"s3://{moto.bucket()}/nothing", "s3://no-such-bucket-anywhere/base"):
        for verb in ("status", "list", "verify", "checkpoints"):
            result = run(verb, base, "--storage-options-file", options, "--debug")
            assert result.exit_code in {0, 2, 3}
            assert HIDDEN not in result.stdout + result.stderr


@pytest.mark.slow
def test_a_path_without_a_sink_names_the_nearest_one(moto: S3Server, tmp_path: Path) -> None:
    """The S3 bucket, the prefix above, one of the sink's directories, a slip: it ends with 2, and says where it is."""
    bucket = f"s3://{moto.bucket()}"
    crashed(moto, f"{bucket}/lake/base", 10)
    for path in ("", "/lake", "/lake/base/b=1", "/lake/base/_partfile", "/lake/bas"):
        result = run("status", *at(moto, f"{bucket}{path}", tmp_path))
        assert result.exit_code == 2, path
        assert f"Hint: Did you mean {bucket}/lake/base?" in result.stderr, path


# The verbs that change, on a real S3 server: unfinished parts are uploads, side objects and claims there.


@pytest.mark.slow
@pytest.mark.parametrize("row_bytes", [10, 3 * MIB], ids=["side objects", "uploads"])
def test_a_dead_sink_is_recovered_and_goes_on(moto: S3Server, tmp_path: Path, row_bytes: int) -> None:
    """The plan sends GET and HEAD alone; --apply publishes; the sink's next run ends with each row once."""
    stream = crashed(moto, f"s3://{moto.bucket()}/base", row_bytes)
    with S3Proxy(moto) as proxy:
        told("recover", *at(proxy, stream.base, tmp_path), code=1)
        assert {each.request.method for each in proxy.exchanges} == {"GET", "HEAD"}
    assert not stream.finished()
    place = at(moto, stream.base, tmp_path)
    assert run("recover", *place, "--apply").exit_code == 1, "it moved a moment ago"
    assert "2 parts published" in told("recover", *place, "--apply", "--fence")
    assert set(stream.rows_seen()) == {0, 1, 2, 3}
    assert "nothing to recover" in told("recover", *place)
    stream.run_to_the_end()
    stream.assert_exactly_once()


@pytest.mark.slow
def test_the_plan_names_a_part_whose_name_is_taken(moto: S3Server, tmp_path: Path) -> None:
    """By the object's length, since an upload cannot be read; the other part is published, this one is still owed."""
    stream = crashed(moto, f"s3://{moto.bucket()}/base", 10)
    place = at(moto, stream.base, tmp_path)
    (sink,) = told_json("status", *place, code=1)["sinks"]
    path = sink["stuck"][0]["path"]
    with stream.process().open_store(stream.base, None) as store:
        store.create_file(path, b"foreign")
        assert told("recover", *place, code=1).count("ANOTHER FILE HAS ITS NAME") == 1
        said = run("recover", *place, "--apply", "--fence")
        assert said.exit_code == 1
        assert "aws s3 mv" in said.stderr + said.stdout
        assert store.read_file(path, 99) == b"foreign"
        store.delete_file(path)
    told("recover", *place, "--apply", "--fence")
    assert set(stream.rows_seen()) == {0, 1, 2, 3}


@pytest.mark.slow
def test_what_parts_have_left_goes_on_demand_alone(moto: S3Server, tmp_path: Path) -> None:
    """Uploads, side objects and claims of our chain that no checkpoint names: left without --delete, which takes them.

    Those that a checkpoint names stay, and so does every foreign upload.
    """
    bucket = moto.bucket()
    stream = crashed(moto, f"s3://{bucket}/base", 3 * MIB)
    place = at(moto, stream.base, tmp_path)
    (parts, _) = told_json("status", *place, code=1)["sinks"][0]["stuck"]
    chain = parts["path"].split("-")[1]
    with S3Store(stream.base, stream.options) as store:
        for number, data in ((90, b"few"), (91, b"many" * 2 * MIB)):
            first = store.create(orphan_of(chain, number))
            first.write(data)
            handle = first.persist()
            again = store.resume(handle)
            again.write(b"more")
            again.persist()
        foreign = store.create(orphan_of("deadbeef", 92))
        foreign.write(b"not ours" * MIB)
        foreign.persist()
        client = moto.filesystem()
        for key in ("some/backup.tar", f"some//part-{chain}-0-93.txt", f"../part-{chain}-0-94.txt"):
            client.call_s3("create_multipart_upload", Bucket=bucket, Key=f"base/{key}")
        time.sleep(A_SECOND_S)
        stream.sink().local().open().close()
        time.sleep(A_SECOND_S)
        clean = ("clean", *place, "--older-than", "0s")
        report = told_json(*clean, code=1)
        items = report["plan"]["items"]
        assert {(item["kind"], item["action"]) for item in items} == {
            ("upload", "leave"),
            ("side object", "leave"),
            ("claim", "leave"),
        }
        assert told_json(*clean, "--apply", "--fence", code=1)["cleaned"] is None
        assert told_json(*clean, "--delete", "--apply", "--fence")["cleaned"]["done"] == len(items)
        left = list(store.leftovers((), 1 << 50))
        assert {one.name.split("-")[1] for one in left if one.name.startswith("part-")} <= {"deadbeef", chain}
        assert {one.path for one in left if one.kind == "upload"} == {
            "some/backup.tar",
            "bucket=b0/part-deadbeef-0-92.txt",
        }
    stream.run_to_the_end()
    stream.assert_exactly_once()


@pytest.mark.slow
def test_open_parts_survive_a_clean(moto: S3Server, tmp_path: Path) -> None:
    """What a checkpoint names is no leftover, whatever its age: the sink goes on and publishes all of it."""
    stream = crashed(moto, f"s3://{moto.bucket()}/base", 3 * MIB)
    time.sleep(A_SECOND_S)
    place = at(moto, stream.base, tmp_path)
    told("clean", *place, "--older-than", "0s", "--delete", "--apply", "--fence")
    assert told_json("verify", *place)["findings"] == []
    stream.run_to_the_end()
    stream.assert_exactly_once()


@pytest.mark.slow
def test_credentials_that_may_only_read(moto: S3Server, tmp_path: Path) -> None:
    """H7: they get the plan; --apply ends with 3 and one message, and nothing is changed."""
    stream = crashed(moto, f"s3://{moto.bucket()}/base", 10)
    with S3Proxy(moto) as proxy:
        for method in ("PUT", "POST", "DELETE"):
            proxy.inject(error(403, "AccessDenied"), method=method, times=None)
        place = at(proxy, stream.base, tmp_path)
        told("recover", *place, code=1)
        refused = run("recover", *place, "--apply", "--fence")
        assert refused.exit_code == 3, refused.stdout + refused.stderr
        assert "Traceback" not in refused.stderr
    assert not stream.finished()
    stream.run_to_the_end()
    stream.assert_exactly_once()


# The command line over staged columnar parts on a real S3 server, where a staging file is no file but side objects.


@pytest.fixture
def stream(moto: S3Server) -> Stream:
    """A base of its own."""
    return Stream(f"s3://{moto.bucket()}/base", options_of(moto))


@pytest.fixture
def place(moto: S3Server, stream: Stream, tmp_path: Path) -> tuple[Any, ...]:
    """The words that name it and what opens it."""
    return at(moto, stream.base, tmp_path)


def crash(stream: Stream, *, checkpoints: int = 2) -> None:
    """Two open staging files of two rows a checkpoint, with a tail; the process has gone."""
    out = stream.sink(**STAGED).local().open()
    for number in range(checkpoints):
        out.write(batch(4 * number, 4), position=4 * (number + 1))
        out.checkpoint()
    out.write(batch(4 * checkpoints, 4), position=4 * (checkpoints + 1))
    for part in out._operator._active.values():
        part.persist()
    out.close()


def rows_read(stream: Stream, moto: S3Server) -> dict[str, int]:
    """How often each row is in a finished file."""
    found = pf.read(stream.base, storage_options=store_options(moto)).to_table(columns=["row"])["row"].to_pylist()
    return {row: found.count(row) for row in found}


def side_objects(stream: Stream) -> set[str]:
    """The paths of all side objects."""
    with S3Store(stream.base, stream.options) as store:
        return {one.path for one in store.leftovers((), 1 << 50) if one.kind == "side object"}


@pytest.mark.slow
def test_staging_files_are_seen_and_read_up_to_their_valid_length(stream: Stream, place: tuple[Any, ...]) -> None:
    """Status, list and verify know them by their handles alone; cat prints the rows that count."""
    crash(stream)
    (sink,) = told_json("status", *place, "--quiet-after", "0s", code=1)["sinks"]
    assert sink["parts"]["staging-file"]["count"] == 2
    listed = told_lines("list", *place, "--state", "staging-file")
    assert [(one["rows"], one["size_bytes"]) for one in listed] == [(4, None)] * 2
    assert told_json("verify", *place)["findings"] == []
    lines = [json.loads(line)["row"] for line in told(*cat_of(place, listed[0]["path"])).splitlines()]
    assert lines == ["row-0000", "row-0002", "row-0004", "row-0006"]
    assert run(*cat_of(place, listed[0]["path"]), "--raw").exit_code == 0


def cat_of(place: tuple[Any, ...], path: str) -> tuple[Any, ...]:
    """The words that print a part."""
    return "cat", place[0], path, *place[1:]


@pytest.mark.slow
def test_a_dead_sink_with_staging_files_is_recovered_and_goes_on(
    stream: Stream, place: tuple[Any, ...], moto: S3Server
) -> None:
    """Staging files are encoded at their valid length; the tail counts nowhere, and each row comes once."""
    crash(stream)
    assert told("recover", *place, code=1).count("of a staging file (4 rows) and publish") == 2
    assert "2 parts published" in told("recover", *place, "--apply", "--fence")
    assert rows_read(stream, moto) == names(0, 8)
    assert continue_to(stream.sink(**STAGED), 12) == 8
    assert rows_read(stream, moto) == names(0, 12)
    assert told_json("verify", *place)["findings"] == []


@pytest.mark.slow
def test_a_staging_file_whose_object_is_gone_is_missing(stream: Stream, place: tuple[Any, ...]) -> None:
    """Recover refuses before it takes the sink over."""
    crash(stream, checkpoints=1)
    with S3Store(stream.base, stream.options) as store:
        for path in side_objects(stream):
            store.remove(path, None)
    assert {one["code"] for one in told_json("verify", *place, code=1)["findings"]} == {"part-missing"}
    assert run("recover", *place, "--apply", "--fence").exit_code == 1
    (sink,) = told_json("status", *place, "--quiet-after", "0s", code=1)["sinks"]
    assert sink["parts"]["staging-file"]["count"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("has_recovered", [False, True], ids=["open", "spent"])
def test_what_a_checkpoint_names_is_no_leftover(
    stream: Stream, place: tuple[Any, ...], moto: S3Server, *, has_recovered: bool
) -> None:
    """Side objects of open and of encoded staging files stay, whatever their age.

    Those of an orphan staging file go.
    """
    out = stream.sink(**STAGED).local().open()
    out.write(batch(0, 4), position=4)
    for part in out._operator._active.values():
        part.persist()
    out.close()
    orphans = side_objects(stream)
    crash(stream)
    if has_recovered:
        told("recover", *place, "--apply", "--fence")
    kept = side_objects(stream) - orphans
    assert orphans
    assert kept
    time.sleep(A_SECOND_S)
    clean = ("clean", *place, "--older-than", "0s", "--delete")
    planned = {item["path"] for item in told_json(*clean, code=1)["plan"]["items"] if item["kind"] == "side object"}
    assert orphans <= planned
    assert not planned & named(stream)
    told(*clean, "--apply", "--fence")
    assert named(stream) <= side_objects(stream)
    assert not orphans & side_objects(stream)
    assert continue_to(stream.sink(**STAGED), 12) == 8
    assert rows_read(stream, moto) == names(0, 12)


def named(stream: Stream) -> set[str]:
    """The side objects of every staging file that a retained checkpoint names, however many objects it is."""
    place = Place(stream.base, opener=stream.process().open_store)
    with stream.process().open_store(f"{stream.base}/_partfile", {}) as checkpoints:
        handles = _named(read_base(place, checkpoints), {})
    with S3Store(stream.base, stream.options) as store:
        others = {one.path for one in store.leftovers(handles, 1 << 50) if one.kind == "side object"}
    return side_objects(stream) - others


@pytest.mark.slow
@pytest.mark.fault("F18")
def test_a_changed_bit_of_an_object_is_found(stream: Stream, place: tuple[Any, ...]) -> None:
    """By the object's own checksum; without the option no object is read. Finished files are read as well."""
    crash(stream)
    assert told_json("verify", *place, "--checksums")["checksums_compared"] == 2
    with S3Store(stream.base, stream.options) as store:
        before = {path: store.read_file(path, 1 << 20) for path in side_objects(stream)}
        for path, data in before.items():
            store.delete_file(path)
            store.create_file(path, data[:-1] + bytes([data[-1] ^ 1]))
        assert told_json("verify", *place)["findings"] == []
        report = told_json("verify", *place, "--checksums", code=1)
        assert [finding["code"] for finding in report["findings"]] == ["checksum-differs"] * 2
        assert all("is not what was written" in finding["message"] for finding in report["findings"])
        for path, data in before.items():
            store.delete_file(path)
            store.create_file(path, data)
    told("recover", *place, "--apply", "--fence")
    assert told_json("verify", *place, "--checksums")["checksums_compared"] == 2


# ``recover --adopt-layout`` on S3: it looks and tells, and leaves what could only be copied.


def test_verdicts_are_told_and_nothing_is_changed(moto: S3Server, tmp_path: Path) -> None:
    """Both layouts: what would be cut, published or moved is left with the reason, with --apply too."""
    place = at(moto, f"s3://{moto.bucket()}/base", tmp_path)
    name = "part-00001-e54e316f-8d8f-4e0a-9556-b37b0aa330c2.c000.json"
    files = {
        "d/part-0-1": flink_rows(0, 10) + b"tail",
        "d/_part-0-1.valid-length": write_utf("50"),
        "d/_part-0-2.in-progress": flink_rows(10, 11),
        f"d/{name}": b"{}",
        "_spark_metadata/0": b"v1",
    }
    with open_store(place[0], store_options(moto)) as store:
        for path, data in files.items():
            store.create_file(path, data)
        for layout, paths in (
            (("flink", "--quarantine-in-progress"), {"d/part-0-1", "d/_part-0-2.in-progress"}),
            (("spark",), {f"d/{name}"}),
        ):
            command = ("recover", *place, "--adopt-layout", *layout)
            items = told_json(*command, code=1)["plan"]["items"]
            assert {item["path"]: item["action"] for item in items} == dict.fromkeys(paths, "leave")
            assert all("this store cannot" in item["why"] for item in items)
            told(*command, "--apply", "--fence", code=1)
        assert {file.path: store.read_file(file.path, 1000) for file in store.list()} == files


# SIGKILL before and after requests of recover and of clean; run again; then the sink goes on.
#
# On moto in every run; with ``--long`` on each server, at every request.


FEW = 1
ROW_BYTES = {"side objects": 10, "uploads": 3 * MIB}
COMMANDS: dict[str, Callable[[Process], object]] = {
    "recover": recover_by_command,
    "clean": partial(clean_by_command, delete=True),
}


class KillBeforeTheCommit:
    """Kills its own process when a checkpoint is about to be complete."""

    def __init__(self) -> None:
        self.is_armed = False

    def around(self, call: Call, proceed: Callable[[], object]) -> object:
        """SIGKILL instead of creating a checkpoint."""
        if self.is_armed and any(str(one).endswith(f"/{METADATA}") for one in call.arguments):
            os.kill(os.getpid(), signal.SIGKILL)
        return proceed()


def die_early(stream: Stream) -> None:
    """Leave parts that no checkpoint names."""
    killer = KillBeforeTheCommit()
    out = stream.sink(killer).local().open()
    out.write(stream.batch(0, 4), position=4)
    killer.is_armed = True
    out.checkpoint()


def die_late(stream: Stream) -> None:
    """Leave parts that a checkpoint vouches for."""
    out = stream.sink().local().open()
    out.write(stream.batch(0, 4), position=4)
    out.checkpoint()
    os._exit(0)


def messes(server: S3Server, count: int, row_bytes: int) -> list[Stream]:
    """Bases with both."""
    streams = [Stream(f"s3://{server.bucket()}/base", options_of(server), row_bytes=row_bytes) for _ in range(count)]
    for stream in streams:
        assert in_child(partial(die_early, stream)) == -signal.SIGKILL
    time.sleep(A_SECOND_S)
    for stream in streams:
        assert in_child(partial(die_late, stream)) == 0
    return streams


def leftovers(stream: Stream) -> list[str]:
    """Uploads, side objects and claims of parts, named by a checkpoint or not."""
    with open_stores(Place(stream.base, opener=stream.process().open_store)) as stores:
        return sorted(one.path for one in stores.base.leftovers((), NOW_MS) if one.name.startswith("part-"))


@pytest.mark.slow
@pytest.mark.drawn(1)
@pytest.mark.parametrize("kind", ROW_BYTES)
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.fault("K16", "H6")
def test_a_kill_at_a_request_of_a_command(
    command: str, kind: str, request: pytest.FixtureRequest, rng: random.Random, chosen: Callable[[int, int], list[int]]
) -> None:
    """A clean is killed a second time; a last run ends it: orphans are gone, what a checkpoint vouches for is not."""
    for name in ("moto", "rclone", "radosgw") if request.config.getoption("--long") else ("moto",):
        server: S3Server = request.getfixturevalue(name)
        (counted,) = messes(server, 1, ROW_BYTES[kind])
        recorder = Recorder(CHANGING_CALLS)
        COMMANDS[command](counted.process(recorder))
        calls = len(recorder.calls)
        numbers = chosen(calls, FEW)
        for stream, number in zip(messes(server, len(numbers), ROW_BYTES[kind]), numbers, strict=True):
            kills = [number] + [rng.randint(1, calls)] * (command == "clean")
            before = leftovers(stream)
            for kill in kills:
                killer = KillAt(kill, rng.choice(["before", "after"]), only=CHANGING_CALLS)
                # Which has less to do than that the second time ends well.
                assert in_child(partial(COMMANDS[command], stream.process(killer))) in {-signal.SIGKILL, 0}
            assert in_child(partial(COMMANDS[command], stream.process())) == 0, f"{kills} of {calls} on {name}"
            assert in_child(stream.run_to_the_end) == 0
            stream.assert_exactly_once()
            if command == "recover":
                # It takes no orphans away, nor, killed behind its last publish, what that part was made of.
                assert 0 < len(leftovers(stream)) <= len(before), f"{kills} of {calls} on {name}"
                assert in_child(partial(COMMANDS["clean"], stream.process())) == 0
            assert leftovers(stream) == [], f"{kills} of {calls} on {name}"
