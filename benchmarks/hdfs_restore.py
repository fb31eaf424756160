"""Measures a restore on HDFS after its writer was SIGKILLed: how long it takes, and what the NameNode is asked."""

from __future__ import annotations

import secrets
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from hdfs_native import WriteOptions

import partfile as pf

if TYPE_CHECKING:
    from places import HdfsPlace

_OF_LEASES = frozenset(
    {
        "recoverLease",
        "append",
        "alreadyBeingCreatedException",
        "recoveryInProgressException",
        # A recovery asked for under a name that the part has not got yet is counted as this.
        "fileNotFoundException",
    }
)


@dataclass(frozen=True, slots=True)
class RestoreCost:
    """What one restore took."""

    open_parts: int
    finished_parts: int
    operations: int
    """Asked of the NameNode, but for what is about leases."""
    lease_operations: int
    listings: int
    """Of the directories of the checkpoints, and of others if there are any."""
    seconds: float
    """Until every part was published and the sink could be written to."""


def measure_restore(place: HdfsPlace, *, open_parts: int, finished_parts: int, tails: bool = False) -> RestoreCost:
    """Let a process open parts, write, checkpoint and be killed with all leases in its hands; then restore.

    Args:
        place: Where.
        open_parts: How many parts it has open.
        finished_parts: How many finished files lie beside them.
        tails: Whether it has gone on writing after the checkpoint, so that each part has to be cut.
    """
    base = f"{place.cluster.url}/restore-{open_parts}-{secrets.token_hex(4)}"
    _make_finished(place, base, open_parts, finished_parts)
    _write_and_die(place, base, open_parts, tails=tails)
    sink = _sink(base, place.cluster.http_address).local()
    before, began_s = place.operations(), time.monotonic()
    with sink:
        seconds = time.monotonic() - began_s
        asked = place.operations() - before
    left = len(place.sizes(base, ".json")) - finished_parts
    if left != open_parts:
        raise SystemExit(f"{left} of {open_parts} parts were published: the figures mean nothing")
    print(f"  restore of {open_parts} parts beside {finished_parts}: {seconds:.1f} s, {dict(asked)}", flush=True)
    # A wait ends with an append that works, and its close.
    of_leases = sum(count for name, count in asked.items() if name in _OF_LEASES) + asked["append"]
    # What the client asks again because a DataNode has not reported a block yet is chance.
    repeats = asked["complete"] - asked["create"] - asked["append"]
    return RestoreCost(
        open_parts=open_parts,
        finished_parts=finished_parts,
        operations=asked.total() - of_leases - repeats,
        lease_operations=of_leases,
        listings=asked["getListing"],
        seconds=seconds,
    )


def _make_finished(place: HdfsPlace, base: str, buckets: int, files: int) -> None:
    """Make as many finished files as a long history leaves in the buckets; what is in them does not matter."""
    root = base.removeprefix(place.cluster.url)

    def make(number: int) -> None:
        path = f"{root}/bucket={number % buckets}/part-00000000-0-{number}.json"
        place.client.create(path, WriteOptions(create_parent=True)).close()

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(make, range(files)))


def _write_and_die(place: HdfsPlace, base: str, parts: int, *, tails: bool) -> None:
    """Have a process write and be killed while it holds the leases of its parts."""
    command = [sys.executable, __file__, base, place.cluster.http_address, str(parts), "tails" if tails else ""]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        if writer.stdout is None or writer.stdout.readline() != b"ready\n":
            raise SystemExit("the writer of the restore has failed")
        writer.send_signal(signal.SIGKILL)


def _write(base: str, http_address: str, parts: int, *, tails: bool) -> None:
    buckets = list(range(parts))
    rows = pa.RecordBatch.from_pydict({"bucket": buckets, "value": ["x" * 1000] * parts})
    with _sink(base, http_address).local() as out:
        out.write(rows)
        out.checkpoint()
        if tails:
            # With so many rows HDFS has got some of them.
            out.write(pa.RecordBatch.from_pydict({"bucket": buckets * 100, "value": ["y" * 1000] * parts * 100}))
        print("ready", flush=True)
        signal.pause()


def _sink(base: str, http_address: str) -> pf.FileSink:
    return pf.FileSink(
        base,
        uid="restore",
        format="json",
        bucketer=pf.HiveBucketer("bucket"),
        rolling=pf.RollingPolicy(rollover_interval_s=1e6, inactivity_interval_s=1e6),
        storage_options={"http_address": http_address},
        # As docs/HDFS.md has it.
        inline_threshold_bytes=1 << 20,
    )


if __name__ == "__main__":
    _write(sys.argv[1], sys.argv[2], int(sys.argv[3]), tails=sys.argv[4] == "tails")
