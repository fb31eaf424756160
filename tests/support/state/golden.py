"""Writes the golden snapshots of the present format version, once: ``PYTHONPATH=tests python -m support.state.golden``.

What a release has written is never written again: a later release must read it as it is. Until the first release a
change of the form deletes the directory and makes it again.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import partfile as pf
from partfile.snapshot.documents import FORMAT_VERSION
from partfile.snapshot.operator_state import (
    BroadcastStateDescriptor,
    ListStateDescriptor,
    OperatorStateStore,
    write_operator_state,
)
from partfile.snapshot.state_file import JsonCodec
from partfile.snapshot.storage import CheckpointStorage, FileStreamSettings
from partfile.stores.local.store import LocalStore
from support.sinks.life_cycle import LONG, batch, make_sink
from support.sinks.staged_streams import StagingFiles, staged_sink

GOLDEN = Path(__file__).parents[2] / "snapshot" / "golden"
PRESENT = str(FORMAT_VERSION)
WORDS = ListStateDescriptor("words", JsonCodec())
COUNTERS = ListStateDescriptor("counters", JsonCodec())
BY_ROW = pf.Deduplicate("row", ttl="7 days")
RULES = BroadcastStateDescriptor("rules", JsonCodec(), JsonCodec())


def main() -> None:
    """Write them, unless they are there."""
    target = GOLDEN / PRESENT
    if target.exists():
        raise SystemExit(f"{target} is there: delete it if no release has written its form, else raise FORMAT_VERSION")
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        write_sink(root)
        write_staged_sink(root)
        write_distinct_sink(root)
        write_state(root)
        for lock in root.rglob("_marker"):
            lock.unlink()
        shutil.copytree(root, target)


def write_sink(root: Path) -> None:
    """A sink that crashed with open parts, pending ones and a tail; and one that was stopped with a savepoint."""
    out = make_sink(root / "base", rolling=LONG).local().open()
    out.write(batch(0, 4), position={"offset": 4})
    out.checkpoint()
    out.write(batch(4, 2))
    out.close()
    stopped = make_sink(root / "stopped", rolling=LONG).local().open()
    stopped.write(batch(0, 4), position={"offset": 4})
    location = Path(stopped.stop_with_savepoint(root / "savepoints"))
    location.rename(root / "savepoint")
    shutil.rmtree(root / "savepoints")
    shutil.rmtree(root / "stopped")


def write_staged_sink(root: Path) -> None:
    """A sink that crashed with an open staging file, one that waits to be encoded, and one that is spent."""
    staging_files = StagingFiles()
    sink = staged_sink(root / "staged", retained_checkpoints=9, bucketer=None, open_store=staging_files.open_store)
    out = sink.local().open()
    for done in (2, 4):
        out.write(batch(done - 2, 2))
        out._operator.roll_all()
        out.checkpoint(done)
        staging_files.are_readable = False
    out.write(batch(4, 2))
    out.checkpoint(6)
    out.close()


def write_distinct_sink(root: Path) -> None:
    """A sink that crashed with two runs of keys, one of them of keys of several times."""
    out = make_sink(root / "distinct", rolling=LONG, deduplicate=BY_ROW, inline_threshold_bytes=0).local().open()
    out.write(batch(0, 4))
    out.checkpoint(4)
    for first in (2, 5):
        out.write(batch(first, 4))
    out.checkpoint(12)
    out.write(batch(20, 2))
    out.close()


def write_state(root: Path) -> None:
    """One state file with every mode, and the handle that names it."""
    states = OperatorStateStore()
    states.list_state(WORDS).update(["a", "é", {"k": [1, None, 2.5]}])
    states.union_list_state(COUNTERS).update([7])
    states.broadcast_state(RULES).put("x", {"y": True})
    storage = CheckpointStorage(LocalStore(str(root)), "job", FileStreamSettings(inline_threshold_bytes=0))
    handle = write_operator_state(states, storage.stream_factory(1))
    assert handle is not None
    (root / "handle.json").write_text(handle.model_dump_json() + "\n")


if __name__ == "__main__":
    main()
