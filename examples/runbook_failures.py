"""The failures of ``docs/RUNBOOK.md`` that need no Spark: each is caused for real, looked at, and mended."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import time
from typing import TYPE_CHECKING, Any
from unittest import mock

import pyarrow as pa

import partfile as pf
from partfile.stores.local.posix import PosixCalls
from partfile.stores.local.store import LocalStore
from partfile.testing.faults import FailAt, intercept
from partfile.writers.parquet import ParquetFormat
from support.sinks.life_cycle import in_child

if TYPE_CHECKING:
    from pathlib import Path

    from runbook_terminal import Terminal

BATCH = 3
LONG = pf.RollingPolicy(rollover_interval_s=1e6, inactivity_interval_s=1e6)
"""A part stays open until the clean end."""
AT_ONCE = ("--idle-for", "0s")


class KilledFirst:
    """In place of what publishes."""

    def prepare(self, parts: Any) -> Any:
        """Prepare nothing: parts on local disks are as they have to be."""
        return parts

    def publish(self, *_: object, **__: object) -> None:
        """SIGKILL, before anything is published."""
        os.kill(os.getpid(), signal.SIGKILL)


def rows(first: int, *, width: int = 0) -> pa.RecordBatch:
    """Numbered rows, as wide as is asked for."""
    numbers = list(range(first, first + BATCH))
    wide = {"text": [f"{number} ".ljust(width, "x") for number in numbers]} if width else {}
    return pa.RecordBatch.from_pydict({"id": numbers, **wide})


def events(base: Path | str, **options: Any) -> pf.FileSink:
    """The sink of every failure here: one open part, published at the end."""
    return pf.FileSink(base, uid="events", **{"format": "json", "rolling": LONG, **options})


def run_batches(base: Path | str, batches: int = 1, **options: Any) -> None:
    """Go on from where the sink stands, a checkpoint a batch, to a clean end."""
    with events(base, **options).local() as out:
        for _ in range(batches):
            done = int(str(out.position or 0))
            out.write(rows(done), position=done + BATCH)
            out.checkpoint()


def die(base: Path | str, *, checkpoints: int = 1, when_promised: bool = False, width: int = 0, **options: Any) -> None:
    """Complete some checkpoints, write beyond the last one, and be killed; or before the first part is published."""

    def work() -> None:
        out = events(base, **options).local().open()
        if when_promised:
            out._runtime.coordinator._publisher = KilledFirst()  # type: ignore[assignment]  # noqa: SLF001
        for number in range(checkpoints):
            out.write(rows(number * BATCH, width=width), position=(number + 1) * BATCH)
            out.checkpoint()
        out.write(rows(checkpoints * BATCH, width=width), position=(checkpoints + 1) * BATCH)
        os.kill(os.getpid(), signal.SIGKILL)

    ended = in_child(work)
    if ended != -signal.SIGKILL:
        raise SystemExit(f"the job was not killed, but ended with {ended}")


def driver_killed(terminal: Terminal) -> None:
    """SIGKILL between two checkpoints."""
    base = terminal.root / "landing"
    terminal.section("seen")
    die(base)
    terminal.show("python job.py", "Killed", 137)
    terminal.partfile("status", base, "--quiet-after", "0s")
    terminal.section("mended")
    terminal.partfile("recover", base)
    terminal.partfile("recover", base, "--apply", *AT_ONCE)
    terminal.partfile("status", base)
    terminal.job(lambda: run_batches(base))


def two_drivers(terminal: Terminal) -> None:
    """A second one starts while the first one runs."""
    base = terminal.root / "landing"
    first = events(base).local().open()
    first.write(rows(0), position=BATCH)
    first.checkpoint()
    run_batches(base)

    def go_on() -> None:
        first.write(rows(BATCH), position=2 * BATCH)
        first.checkpoint()

    terminal.section("seen")
    terminal.job(go_on)
    terminal.section("mended")
    terminal.partfile("checkpoints", base)
    terminal.job(lambda: run_batches(base))
    terminal.partfile("verify", base)
    first.close()


def pending_stuck(terminal: Terminal) -> None:
    """Killed between the checkpoint and the publication."""
    base = terminal.root / "landing"
    die(base, when_promised=True, rolling=pf.RollingPolicy(on_checkpoint=True))
    terminal.section("seen")
    terminal.partfile("status", base, "--quiet-after", "0s")
    terminal.section("mended")
    terminal.partfile("recover", base)
    terminal.partfile("recover", base, "--apply", *AT_ONCE)
    terminal.partfile("verify", base)


def checkpoint_damaged(terminal: Terminal) -> None:
    """A disk that has eaten the end of the newest metadata."""
    base = terminal.root / "landing"
    die(base, checkpoints=2)
    metadata_files = sorted(
        (base / "_partfile" / "events").glob("chk-*/_metadata"), key=lambda path: path.stat().st_mtime_ns
    )
    newest, before = metadata_files[-1], metadata_files[-2]
    newest.write_bytes(newest.read_bytes()[:-20])
    terminal.section("seen")
    terminal.job(lambda: run_batches(base))
    terminal.partfile("status", base)
    terminal.section("mended")
    back = ("--restore-from", before.parent, "--accept-newer")
    terminal.partfile("checkpoints", base)
    terminal.partfile("recover", base, *back)
    terminal.partfile("recover", base, *back, "--apply", *AT_ONCE)
    terminal.job(lambda: run_batches(base, 2))
    terminal.partfile("verify", base)


def part_missing(terminal: Terminal) -> None:
    """Another program has deleted a staged file."""
    base = terminal.root / "landing"
    die(base)
    (staged,) = base.glob("_part-*")
    staged.unlink()
    terminal.section("seen")
    terminal.job(lambda: run_batches(base))
    terminal.partfile("verify", base)
    terminal.section("mended")
    terminal.partfile("recover", base, "--accept-missing")
    terminal.partfile("recover", base, "--accept-missing", "--apply", *AT_ONCE)
    terminal.partfile("verify", base)


def name_taken(terminal: Terminal) -> None:
    """Another program's file where a part should be."""
    base = terminal.root / "landing"
    die(base)
    (staged,) = base.glob("_part-*")
    taken = base / staged.name[1:].partition(".json")[0]
    taken = taken.with_name(f"{taken.name}.json")
    taken.write_text("not a part\n")
    terminal.section("seen")
    terminal.job(lambda: run_batches(base))
    terminal.section("mended")
    terminal.show(f"mv {taken} {terminal.root}/not-a-part.json", "", 0)
    shutil.move(taken, terminal.root / "not-a-part.json")
    terminal.partfile("recover", base, "--apply", *AT_ONCE)
    terminal.partfile("verify", base)


def disk_full(terminal: Terminal) -> None:
    """The kernel has no room for a batch; then there is room again."""
    base = terminal.root / "landing"
    full = FailAt(1, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), persistent=True, only={"write"})

    def opener(url: str, _options: Any) -> Any:
        return LocalStore(url, calls=intercept(PosixCalls(), full))

    run_batches(base)
    terminal.section("seen")
    terminal.job(lambda: run_batches(base, open_store=opener))
    terminal.partfile("status", base)
    terminal.section("mended")
    terminal.job(lambda: run_batches(base))
    terminal.partfile("verify", base)


def back_to_a_savepoint(terminal: Terminal) -> None:
    """The last batches were wrong, and a savepoint was taken before them."""
    base, savepoints = terminal.root / "landing", terminal.root / "savepoints"
    out = events(base).local().open()
    out.write(rows(0), position=BATCH)
    savepoint = out.stop_with_savepoint(savepoints)
    run_batches(base)
    terminal.section("seen")
    terminal.partfile("savepoint", "list", savepoints)
    terminal.job(lambda: run_batches(base, restore_from=savepoint))
    terminal.section("mended")
    terminal.job(lambda: run_batches(terminal.root / "elsewhere", restore_from=savepoint))
    terminal.partfile("verify", terminal.root / "elsewhere")
    terminal.section("in-place")
    back = ("--restore-from", savepoint, "--accept-newer")
    terminal.partfile("recover", base, *back)
    terminal.partfile("recover", base, *back, "--apply", *AT_ONCE)
    terminal.partfile("verify", base)


def staging_file_stuck(terminal: Terminal) -> None:
    """Killed while a columnar part was staged; and later a staging file is spoilt."""
    base = terminal.root / "landing"
    staged: dict[str, Any] = {"format": "parquet", "columnar": "staged"}
    terminal.section("seen")
    die(base, **staged)
    terminal.show("python job.py", "Killed", 137)
    terminal.partfile("status", base, "--quiet-after", "0s")
    terminal.partfile("list", base)
    terminal.section("mended")
    terminal.partfile("recover", base)
    terminal.partfile("recover", base, "--apply", *AT_ONCE)
    terminal.partfile("verify", base)
    terminal.section("damaged")
    encoded = set(base.glob("_part-*.in-progress"))
    die(base, **staged)
    (staging_file,) = set(base.glob("_part-*.in-progress")) - encoded
    spoil(staging_file)
    terminal.partfile("verify", base, "--checksums")
    terminal.partfile("recover", base, "--apply", *AT_ONCE)
    shutil.move(staging_file, terminal.root / "damaged")
    terminal.partfile("recover", base, "--apply", "--accept-missing", *AT_ONCE)


def part_refused(terminal: Terminal) -> None:
    """A staging file from a time when its codec took a level."""
    base = terminal.root / "landing"
    with mock.patch("partfile.writers.parquet.check_level"), mock.patch("partfile.writers.parquet.check_columns"):
        die(base, format=ParquetFormat(compression="snappy", compression_level=5), columnar="staged")
    terminal.section("seen")
    terminal.job(lambda: run_batches(base, format="orc"))
    (staged,) = base.glob("_part-*")
    part = staged.name[1:].partition(".parquet")[0] + ".parquet"
    terminal.section("mended")
    terminal.partfile("recover", base, "--set-aside", part)
    terminal.partfile("recover", base, "--set-aside", part, "--apply", *AT_ONCE)
    terminal.partfile("status", base)
    terminal.job(lambda: run_batches(base, format="orc"))


def spoil(path: Path) -> None:
    """Let a disk eat the beginning of a file."""
    with path.open("r+b") as file:
        file.write(b"\0" * 64)


def nothing_visible(terminal: Terminal) -> None:
    """The job is well, and its part is open."""
    base = terminal.root / "landing"
    clock = _Clock()
    with events(base, rolling=pf.RollingPolicy(), clock=clock).local() as out:
        out.write(rows(0), position=BATCH)
        out.checkpoint()
        terminal.section("seen")
        terminal.partfile("list", base)
        terminal.partfile("status", base)
        terminal.section("mended")
        clock.ahead_s = 60
        out.poll()
        out.checkpoint()
        terminal.partfile("list", base, "--state", "finished")


class _Clock:
    """The system's, or so many seconds later."""

    ahead_s = 0

    def __call__(self) -> int:
        return time.time_ns() // 1_000_000 + self.ahead_s * 1000


def no_permission(terminal: Terminal) -> None:
    """The directory belongs to another user."""
    base = terminal.root / "landing"
    denied = FailAt(1, PermissionError(errno.EACCES, os.strerror(errno.EACCES)), persistent=True, only={"create"})

    def opener(url: str, _options: Any) -> Any:
        return LocalStore(url, calls=intercept(PosixCalls(), denied))

    run_batches(base)
    terminal.section("seen")
    terminal.job(lambda: run_batches(base, open_store=opener))
    terminal.section("mended")
    terminal.show("sudo chown -R ingest /data/landing", "", 0)
    terminal.job(lambda: run_batches(base))
    terminal.partfile("verify", base)


def wrong_path(terminal: Terminal) -> None:
    """The directory above the sink's."""
    base = terminal.root / "landing"
    run_batches(base)
    terminal.section("seen")
    terminal.partfile("status", terminal.root)
    terminal.section("mended")
    terminal.partfile("status", base)


def schema_changed(terminal: Terminal) -> None:
    """The source renames the column that buckets are made of, and sends one of a type that the format lacks."""
    base = terminal.root / "landing"

    def job(batch: pa.RecordBatch, position: int) -> None:
        with events(base, bucketer=pf.HiveBucketer("day")).local() as out:
            out.write(batch, position=position)

    day = ["2026-01-02"] * BATCH
    job(pa.RecordBatch.from_pydict({"id": [1, 2, 3], "day": day}), 1)
    terminal.section("seen")
    terminal.job(lambda: job(pa.RecordBatch.from_pydict({"id": [4, 5, 6], "event_day": day}), 2))
    spans = pa.array([None] * BATCH, pa.month_day_nano_interval())
    terminal.job(lambda: job(pa.RecordBatch.from_pydict({"id": [4, 5, 6], "day": day, "span": spans}), 2))
    terminal.section("mended")
    terminal.job(lambda: job(pa.RecordBatch.from_pydict({"id": [4, 5, 6], "day": day, "span": [1, 2, 3]}), 2))
    terminal.partfile("verify", base)


def keys_damaged(terminal: Terminal) -> None:
    """A disk that has eaten the end of a run of keys."""
    base = terminal.root / "landing"
    distinct: dict[str, Any] = {"deduplicate": pf.Deduplicate("id"), "inline_threshold_bytes": 0}
    die(base, **distinct)
    (run,) = (base / "_partfile" / "events" / "shared").iterdir()
    run.write_bytes(run.read_bytes()[:-20])
    terminal.section("seen")
    terminal.job(lambda: run_batches(base, **distinct))
    terminal.partfile("verify", base)
    terminal.section("mended")
    terminal.partfile("state", base)
    terminal.partfile("state", base, "--uid", "events", "--forget")
    terminal.partfile("state", base, "--uid", "events", "--forget", "--apply", *AT_ONCE)
    terminal.job(lambda: run_batches(base, **distinct))


LOCAL = {
    "driver-killed": driver_killed,
    "two-drivers": two_drivers,
    "pending-stuck": pending_stuck,
    "checkpoint-damaged": checkpoint_damaged,
    "part-missing": part_missing,
    "name-taken": name_taken,
    "disk-full": disk_full,
    "back-to-a-savepoint": back_to_a_savepoint,
    "staging-file-stuck": staging_file_stuck,
    "part-refused": part_refused,
    "nothing-visible": nothing_visible,
    "no-permission": no_permission,
    "wrong-path": wrong_path,
    "schema-changed": schema_changed,
    "keys-damaged": keys_damaged,
}
"""Those on local disk, by the names in the document."""
