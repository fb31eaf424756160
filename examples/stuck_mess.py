"""The mess of ``examples/stuck.sh`` on local disk, made by real Spark drivers and real kills, and what is left of it.

    python stuck_mess.py make|wake|restart|compare DIRECTORY

``make`` kills a worker, a driver inside a batch, and another driver beside a zombie; ``wake`` lets the zombie write;
``restart`` runs the stream to its end, once it is told to by a line on its standard input; ``compare`` reads everything
back and prints the last line.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from stuck_uploads import Uploads
from support.spark.drivers import Driver
from support.spark.streams import ids_by_duckdb, write_source

FILES = 8
ROWS_A_FILE = 30
ROWS_AN_ARROW_BATCH = 10
ROW_THAT_KILLS = 25
ROW_OF_THE_ZOMBIE = 4 * ROWS_A_FILE + 25
LAST_BATCH_BEFORE_THE_KILL = 2
WAIT_S = 240.0
STAGED = (".in-progress", ".pending")
FOREIGN = "notes-of-a-user.txt"


def main() -> int:
    """Do one step of the demo; returns 0 if it went as it must."""
    step, root = sys.argv[1], Path(sys.argv[2]).absolute()
    steps = {"make": make, "wake": wake, "restart": restart, "compare": compare}
    return steps[step](root)


def make(root: Path) -> int:
    """Leave what an operator finds: three kills, a zombie that waits for its sign, and a file that is no part."""
    write_source(root / "source", FILES, ROWS_A_FILE)
    # Most of a short life is starting, so the second driver stands by while the first one works.
    zombie = {**_job(root), "once": "zombie", "flag": str(root / "zombie"), "row": ROW_OF_THE_ZOMBIE}
    second = Driver({**zombie, "standby": True})
    _kill_a_worker_then_the_driver(root)
    _kill_the_driver_beside_a_zombie(root, second)
    (root / "landing" / FOREIGN).write_text("not a file of any sink\n")
    print(f"a foreign file: {FOREIGN}", flush=True)
    return 0


def wake(root: Path) -> int:
    """Let the zombie write the rows that it still has, and wait until it is through."""
    (root / "zombie.go").touch()
    _wait_for(root / "zombie.end")
    outcome = json.loads((root / "zombie.end").read_text())
    print(f"the zombie woke up and wrote {outcome['bytes']} bytes: {outcome['end']}")
    return 0


def restart(root: Path) -> int:
    """Start the stream again, exactly as before, and wait for its end; until it is told to, it only gets ready."""
    driver = Driver({**_job(root), "standby": True})
    sys.stdin.readline()
    driver.go()
    said = driver.finish()
    print(f"the stream ran to its end and said: {said}")
    return 0 if said == "done" else 1


def compare(root: Path) -> int:
    """Count each row that another reader finds, and whatever is still staged or uploaded."""
    uploads = Uploads.of(root)
    landed = ids_by_duckdb(root / "landing")
    wanted = Counter(range(FILES * ROWS_A_FILE))
    stored, wanted_stored = (uploads.rows(), uploads.expected()) if uploads else (Counter[int](), Counter[int]())
    lost = (wanted - landed).total() + (wanted_stored - stored).total()
    duplicated = (landed - wanted).total() + (stored - wanted_stored).total()
    leftovers = [*_staged(root / "landing"), *(uploads.left() if uploads else ())]
    for one in leftovers:
        print(f"left: {one}")
    is_foreign_there = (root / "landing" / FOREIGN).is_file()
    if not is_foreign_there:
        print(f"the foreign file is gone: {FOREIGN}")
    print(f"{landed.total()} rows on disk, {stored.total()} on S3")
    print(f"stuck: lost={lost} duplicated={duplicated} left={len(leftovers)}")
    return 0 if lost == duplicated == len(leftovers) == 0 and is_foreign_there else 1


def _kill_a_worker_then_the_driver(root: Path) -> None:
    driver = Driver({**_job(root), "once": "kill", "flag": str(root / "worker"), "row": ROW_THAT_KILLS})
    _expect(driver.wait_for("end 0"), driver)
    print(f"a worker was killed (SIGKILL) by row {ROW_THAT_KILLS} in batch 0; Spark ran its task again", flush=True)
    _expect(driver.wait_for(f"begin {LAST_BATCH_BEFORE_THE_KILL}"), driver)
    unread = driver.kill()
    if unread:
        raise SystemExit(f"the driver was not killed inside a batch: it went on with {unread}")
    print(f"the driver was killed (SIGKILL) inside batch {LAST_BATCH_BEFORE_THE_KILL}", flush=True)


def _kill_the_driver_beside_a_zombie(root: Path, driver: Driver) -> None:
    driver.go()
    _expect(driver.wait_for(f"begin {ROW_OF_THE_ZOMBIE // ROWS_A_FILE}"), driver)
    _wait_for(root / "zombie.asleep")
    driver.kill()
    print("a task was given up and lives on as a zombie with its files open", flush=True)
    print("the next driver was killed (SIGKILL) inside the same batch", flush=True)


def _job(root: Path) -> dict[str, Any]:
    """What every driver is told: the same sink, source and checkpoint."""
    return {
        "base": str(root / "landing"),
        "source": str(root / "source"),
        "checkpoint": str(root / "spark-checkpoint"),
        "master": "local[2,4]",
        "spark": {"spark.sql.execution.arrow.maxRecordsPerBatch": str(ROWS_AN_ARROW_BATCH)},
    }


def _staged(base: Path) -> list[Path]:
    """Every file of ours that no reader sees, but for checkpoints."""
    found = [Path(directory, name) for directory, _, names in os.walk(base) for name in names]
    return [path for path in found if path.name.endswith(STAGED) or path.name.startswith("_tmp.")]


def _expect(line: str | None, driver: Driver) -> None:
    if line is None:
        raise SystemExit(f"the driver has ended by itself:\n{driver.last_words}")


def _wait_for(path: Path) -> None:
    deadline = time.monotonic() + WAIT_S
    while not path.exists():
        if time.monotonic() > deadline:
            raise SystemExit(f"{path} does not come")
        time.sleep(0.02)


if __name__ == "__main__":
    sys.exit(main())
