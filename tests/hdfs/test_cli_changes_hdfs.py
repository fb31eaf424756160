"""The verbs that change, on a real HDFS on which a sink was killed."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

from command_line import run, told, told_json
from dead_sinks import orphan_of
from hdfs_commands import killed
from hdfs_life import assert_exactly_once, finished_files, live, opener
from life_cycle import rows_of

if TYPE_CHECKING:
    from hdfs_cluster import HdfsCluster


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
        live(url, hdfs.http_address, "auto", is_restore=True)
        assert_exactly_once(store)
    assert told_json("verify", url)["findings"] == []


def test_an_orphan_goes_to_the_quarantine_unless_somebody_writes_it(hdfs: HdfsCluster, hdfs_directory: str) -> None:
    """What no checkpoint names is moved once nobody has it open; what one names stays; then it is deleted on demand."""
    url = hdfs.url + hdfs_directory
    place = at(hdfs, url)
    killed(hdfs, url)
    with opener(hdfs.http_address)(url, None) as store:
        (part, _) = sorted(file.path for file in store.list())
        chain = part.split("-")[1]
        orphans = [orphan_of(chain, number) for number in (90, 91)]
        stream = store.create(orphans[0])
        stream.write(b"nobody's")
        stream.close_for_commit()
        writing = store.create(orphans[1])
        writing.write(b"somebody's")
        writing.persist()
        time.sleep(0.1)
        told("recover", *place, "--apply", "--fence")
        clean = ("clean", *place, "--older-than", "0s", "--apply")
        free, busy = orphans[0].path_of(orphans[0].pending), orphans[1].path_of(orphans[1].in_progress)
        whole = told_json(*clean, code=1)
        report, items = whole["cleaned"], whole["plan"]["items"]
        assert {item["path"] for item in items if item["kind"] == "orphan"} == {free, busy}
        # The link that the sink was about to create is there under its temporary name.
        assert {item["kind"] for item in items} == {"orphan", "state file"}
        assert (report["done"], report["busy"]) == (len(items) - 1, [busy])
        (quarantine,) = report["quarantines"]
        assert store.read_file(f"_partfile/{quarantine.partition('/_partfile/')[2]}/{free}", 99) == b"nobody's"
        writing.close()
        live(url, hdfs.http_address, "auto", is_restore=True)
        told(*clean, "--delete", "--fence")
        assert not any("-90." in file.path or "-91." in file.path for file in store.list())
        assert_exactly_once(store)


def test_a_savepoint_of_a_sink_that_does_not_run(hdfs: HdfsCluster, hdfs_directory: str) -> None:
    """It is created beside the base, listed, restored by nobody, and disposed of."""
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
