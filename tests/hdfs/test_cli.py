"""The command line on a real HDFS, also killed at every call."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from partfile.stores.registry import open_store
from support.files.trees import flink_rows, write_utf
from support.hdfs.commands import COMMANDS, killed
from support.hdfs.life import assert_exactly_once, finished_files, live, opener
from support.processes.command_line import run, told, told_json, told_lines
from support.programs.clean_forks import CleanForks
from support.sinks.dead import orphan_of
from support.sinks.life_cycle import STAGED_ENDS, batch, long_sink, rows_of

if TYPE_CHECKING:
    import random
    from pathlib import Path

    from support.hdfs.cluster import HdfsCluster


# The verbs that read, on a real HDFS on which a sink was killed or lives.

CHANGING = {"create", "append", "rename", "rename2", "delete", "truncate", "mkdirs", "recoverLease", "addBlock"}
VALID_BYTES = 2 * len("row-0000\n")


def test_a_killed_sink_is_told_and_nothing_is_changed(hdfs: HdfsCluster, hdfs_directory: str) -> None:
    """Open parts are stuck, listed with what counts of them, no error to verify; a look asks for no change."""
    url = hdfs.url + hdfs_directory
    killed(hdfs, url)
    before = hdfs.operations()
    (sink,) = told_json("status", url, code=1)["sinks"]
    assert [part["valid_length"] for part in sink["stuck"]] == [VALID_BYTES] * 2
    assert sink["is_running"] is None
    parts = [part for part in told_lines("list", url) if part["state"] == "in-progress"]
    assert [(part["valid_length"], part["is_current"]) for part in parts] == [(VALID_BYTES, True)] * 2
    assert told_json("verify", url)["findings"] == []
    assert told_json("status", url, "--scan", code=1)["scan"]["missing"] == []
    assert told_json("checkpoints", url)["logs"][0]["checkpoints"][-1]["open_parts"] == 2
    after = hdfs.operations()
    asked = {name for name, count in after.items() if count != before.get(name, 0)}
    assert "getListing" in asked
    assert not asked & CHANGING
    live(url, hdfs.http_address, "auto", kind=[True])
    assert told_json("status", url)["sinks"][0]["stuck"] == []
    assert told_json("verify", url)["findings"] == []


def test_valid_bytes_are_printed_once_no_writer_holds_them(hdfs: HdfsCluster, hdfs_directory: str) -> None:
    """A finished part is printed by its path; one that is not there ends with 2."""
    url = hdfs.url + hdfs_directory
    with long_sink(url, open_store=opener(hdfs.http_address)).local() as out:  # type: ignore[arg-type]
        out.write(batch(0, 4), position=4)
    (first, second) = sorted(str(part["path"]) for part in told_lines("list", url))
    assert told("cat", url, first) + told("cat", url, f"{url}/{second}") == "row-0000\nrow-0002\nrow-0001\nrow-0003\n"
    assert run("cat", url, "no/such").exit_code == 2


def test_a_sink_that_lives_never_looks_broken(hdfs: HdfsCluster, hdfs_directory: str) -> None:
    """While parts are held open, their lengths are no finding: HDFS tells them late."""
    url = hdfs.url + hdfs_directory
    with long_sink(url, open_store=opener(hdfs.http_address)).local() as out:  # type: ignore[arg-type]
        for number in range(4):
            out.write(batch(2 * number, 2), position=2 * number + 2)
            out.checkpoint()
            assert told_json("verify", url)["findings"] == []
            out.write(batch(2 * number, 2), position=2 * number + 2)
            assert told_json("verify", url)["findings"] == []


def test_a_name_node_that_is_away_is_told_apart() -> None:
    """Nothing answers: 3, within the deadline that was given."""
    result = run("status", "hdfs://127.0.0.1:9/base", "--storage-option", "call_timeout_s=2")
    assert result.exit_code == 3
    assert "Traceback" not in result.stderr


# The verbs that change, on a real HDFS on which a sink was killed.


def at(hdfs: HdfsCluster, url: str) -> tuple[str, ...]:
    """The words that name a base and the way to cut a file in place."""
    return url, "--storage-option", f"http_address={hdfs.http_address}"


def test_a_killed_sink_is_recovered_and_goes_on(hdfs: HdfsCluster, hdfs_directory: str) -> None:
    """A plan changes nothing; --apply fences, cuts and publishes; the sink's next run ends with each row once."""
    url = hdfs.url + hdfs_directory
    place = at(hdfs, url)
    killed(hdfs, url)
    with opener(hdfs.http_address)(url, None) as store:
        before = {file.path for file in store.list()}
        assert "cut to 18 B" in told("recover", *place, code=1)
        assert {file.path for file in store.list()} == before
        assert run("recover", *place, "--apply").exit_code == 1, "it moved a moment ago"
        assert "2 parts published" in told("recover", *place, "--apply", "--fence")
        assert rows_of(finished_files(store)) == Counter(f"row-{number:04d}" for number in range(4))
        assert "nothing to recover" in told("recover", *place)
        live(url, hdfs.http_address, "auto", kind=[True])
        assert_exactly_once(store)
    assert told_json("verify", url)["findings"] == []
    for wrong in ("/_partfile", "/no-bucket"):
        result = run("status", url + wrong)
        assert result.exit_code == 2
        assert f"Hint: Did you mean {url}?" in result.stderr


def test_an_orphan_goes_to_the_quarantine_unless_it_is_open(hdfs: HdfsCluster, hdfs_directory: str) -> None:
    """What no checkpoint names is moved once it is closed; what one names stays; then it is deleted on demand."""
    url = hdfs.url + hdfs_directory
    place = at(hdfs, url)
    killed(hdfs, url)
    with opener(hdfs.http_address)(url, None) as store:
        (part, _) = sorted(file.path for file in store.list())
        chain = part.split("-")[1]
        orphans = [orphan_of(chain, number) for number in (90, 91)]
        stream = store.create(orphans[0])
        stream.write(b"no sink's")
        stream.close_for_commit()
        writing = store.create(orphans[1])
        writing.write(b"a writer's")
        writing.persist()
        time.sleep(0.1)
        told("recover", *place, "--apply", "--fence")
        clean = ("clean", *place, "--older-than", "0s", "--apply")
        free, busy = orphans[0].path_of(orphans[0].pending), orphans[1].path_of(orphans[1].in_progress)
        whole = told_json(*clean, code=1)
        report, items = whole["cleaned"], whole["plan"]["items"]
        assert {item["path"] for item in items if item["kind"] == "orphan"} == {free, busy}
        # The checkpoint that the sink was about to create is there under its temporary name.
        assert {item["kind"] for item in items} == {"orphan", "state file"}
        assert (report["done"], report["busy"]) == (len(items) - 1, [busy])
        (quarantine,) = report["quarantines"]
        assert store.read_file(f"_partfile/{quarantine.partition('/_partfile/')[2]}/{free}", 99) == b"no sink's"
        writing.close()
        live(url, hdfs.http_address, "auto", kind=[True])
        told(*clean, "--delete", "--fence")
        assert not any("-90." in file.path or "-91." in file.path for file in store.list())
        assert_exactly_once(store)


def test_a_savepoint_of_a_sink_that_does_not_run(hdfs: HdfsCluster, hdfs_directory: str) -> None:
    """It is created beside the base, listed, never restored, and disposed of."""
    url = hdfs.url + hdfs_directory
    killed(hdfs, f"{url}/out")
    report = told_json(
        "savepoint", "create", *at(hdfs, f"{url}/out"), "--to", f"{url}/savepoints", "--apply", "--fence"
    )
    location = report["location"]
    assert told_json("savepoint", "show", location)["job"] == "life"
    told("savepoint", "dispose", location, code=1)
    told("savepoint", "dispose", location, "--apply")
    assert "nothing is at" in told("savepoint", "dispose", location, "--apply")


# ``recover --adopt-layout`` on a real HDFS: by truncate where the web server can be reached, else by copies.

UUID = "e54e316f-8d8f-4e0a-9556-b37b0aa330c2"
STOPPED = ("--apply", "--fence")


def put(url: str, files: dict[str, bytes]) -> None:
    """Files as another program writes them."""
    with open_store(url, {}) as store:
        for path, data in files.items():
            store.create_file(path, data)


def content(url: str) -> dict[str, bytes]:
    """Every file but partfile's own, with its bytes."""
    with open_store(url, {}) as store:
        return {file.path: store.read_file(file.path, 10_000) for file in store.list()}


@pytest.mark.parametrize("has_truncate", [True, False])
def test_what_flink_left_is_cut_and_published(hdfs: HdfsCluster, hdfs_directory: str, *, has_truncate: bool) -> None:
    """Finished and pending parts end at their valid lengths; one that was being written is away."""
    url = hdfs.url + hdfs_directory
    options = ("--storage-option", f"http_address={hdfs.http_address}") if has_truncate else ()
    put(
        url,
        {
            "d/part-0-0": flink_rows(0, 10),
            "d/part-0-1": flink_rows(10, 20) + b"tail",
            "d/_part-0-1.valid-length": write_utf("50"),
            "d/_part-1-0.pending": flink_rows(20, 30) + b"00",
            "d/_part-1-0.valid-length": write_utf("50"),
            "d/_part-0-2.pending": flink_rows(30, 40),
            "d/_part-0-3.in-progress": flink_rows(40, 41),
        },
    )
    command = ("recover", url, "--adopt-layout", "flink", "--publish-pending", "--quarantine-in-progress", *options)
    before = content(url)
    assert len(told_json(*command, code=1)["plan"]["items"]) == 4
    assert "may be running" in run(*command, "--apply").stderr
    assert content(url) == before
    told(*command, *STOPPED)
    left = content(url)
    visible = {path: data for path, data in left.items() if not path.startswith("d/_")}
    assert visible == {f"d/part-{name}": flink_rows(*span) for name, span in _PARTS.items()}
    originals = {} if has_truncate else {path: "quarantine" for path in left if path not in visible}
    assert len(originals) == (0 if has_truncate else 2)
    assert {item["path"]: item["action"] for item in told_json(*command, *STOPPED)["plan"]["items"]} == originals
    assert content(url) == visible


_PARTS = {"0-0": (0, 10), "0-1": (10, 20), "1-0": (20, 30), "0-2": (30, 40)}


def test_what_spark_did_not_commit_is_moved(hdfs: HdfsCluster, hdfs_directory: str) -> None:
    """The log names files by the whole URL of the cluster; the rest is in the quarantine under another name."""
    url = hdfs.url + hdfs_directory
    committed, stray = (f"b=1/part-0000{number}-{UUID}.c000.json" for number in (0, 1))
    entry: dict[str, Any] = {"path": f"{url}/{committed}", "size": 3, "isDir": False, "modificationTime": 1}
    line = json.dumps({**entry, "blockReplication": 1, "blockSize": 1, "action": "add"})
    put(url, {committed: b"{}\n", stray: b"{}\n", "_spark_metadata/0": f"v1\n{line}".encode()})
    told("recover", url, "--adopt-layout", "spark", *STOPPED)
    assert set(content(url)) == {committed, "_spark_metadata/0"}
    with open_store(url, {}) as store:
        (taken,) = store.list_names("_partfile/_quarantine")
        (name,) = store.list_names(f"_partfile/_quarantine/{taken}/b=1")
        assert name == f"_{stray.rpartition('/')[2]}.not-committed"
        assert store.read_file(f"_partfile/_quarantine/{taken}/b=1/{name}", 10) == b"{}\n"


# SIGKILL before and after calls of recover and of clean on HDFS; run again; then the sink goes on.


FEW = 1


@pytest.mark.drawn(1)
@pytest.mark.parametrize("kind", ["recover", "clean"])
@pytest.mark.fault("K16", "H6")
def test_a_kill_at_a_call_of_a_command(  # noqa: PLR0917 - fixtures.
    kind: str, hdfs: HdfsCluster, hdfs_directory: str, tmp_path: Path, rng: random.Random, pytestconfig: pytest.Config
) -> None:
    """A clean is killed a second time; a last run ends well, and all that a checkpoint vouches for is there.

    At each call with ``--long``, else at one at random; whether a clean deletes or moves is drawn too.
    """
    name = rng.choice([one for one in COMMANDS if one.startswith(kind)])
    with CleanForks("support.hdfs.commands") as forks:

        def run(function: str, url: str, **arguments: object) -> int:
            return forks.run(function, url=url, http_address=hdfs.http_address, **arguments)

        def mess(directory: str) -> str:
            url = f"{hdfs.url}{hdfs_directory}/{directory}"
            assert run("orphans", url) == -signal.SIGKILL
            assert run("seed", url, cut="auto") == -signal.SIGKILL
            return url

        assert run("count_command", mess("counted"), name=name, to=str(tmp_path / "calls")) == 0
        calls = json.loads((tmp_path / "calls").read_text())
        all_of_them = range(1, calls + 1)
        for number in all_of_them if pytestconfig.getoption("long") else rng.sample(all_of_them, FEW):
            url = mess(str(number))
            kills = [number] + [rng.randint(1, calls)] * (name != "recover")
            for kill in kills:
                when = rng.choice(["before", "after"])
                # Which has less to do than that the second time ends well.
                assert run("die_in_command", url, name=name, number=kill, when=when) in {-signal.SIGKILL, 0}
            assert run("command", url, name=name) == 0, f"{kills} of {calls}"
            assert run("live", url, cut="auto", kind=[True]) == 0
            with opener(hdfs.http_address)(url, None) as store:
                assert_exactly_once(store)
                staged = [file.path for file in store.list() if file.path.endswith(STAGED_ENDS)]
            # An orphan that a dead cleaner had leased is left until the lease ends.
            assert len(staged) == 2 if name == "recover" else len(staged) <= 2, staged
