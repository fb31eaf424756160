"""Exactly once, shown: the flights of 2013 streamed through three SIGKILLs, read back by DuckDB, row by row.

Run it with ``make demo``. It needs Java 17+ and ``pip install 'partfile[demo]'``.
"""

from __future__ import annotations

import argparse
import os
import random
import secrets
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from flights_reader import PATTERNS, Comparison, Files, compare, files_below, hidden_below
from flights_source import FlightsSource, prepare
from flights_supervisor import MODES, Job, Outcome, Supervisor, TheDriver

if TYPE_CHECKING:
    from collections.abc import Sequence

KILLS = 3
_MARKER = ".flights-demo"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; returns 0 if nothing was lost or duplicated and every kill landed inside a batch."""
    directory, source, rng, options = begin(arguments, __doc__.splitlines()[0], Path("artifacts/demo"))
    format = options.format
    outputs = [directory / sink for sink in ("partfile", "spark")]
    jobs = [
        Job(
            output.name,
            source,
            str(output),
            f"{output}-checkpoint",
            directory / f"{output.name}.log",
            format,
            options.mode,
            options.deduplicate,
        )
        for output in outputs
    ]
    victims = [[TheDriver()] * KILLS, []]
    outcomes = [Supervisor(job, killed, rng).run() for job, killed in zip(jobs, victims, strict=True)]
    clean(outputs[0])
    print(
        f"\n{sum(source.batch_rows)} rows were sent. DuckDB reads both directories by FROM "
        f"'<directory>/{PATTERNS[format]}' and compares them with the source",
        flush=True,
    )
    compared = [compare(source.csv, output, format) for output in outputs]
    files = [files_below(output, format) for output in outputs]

    hidden = hidden_below(outputs[0])
    print_table(("partfile", "Spark's sink"), outcomes, compared, files)
    ours, kills = compared[0], len(outcomes[0].kills)
    print(
        f"demo: rows={ours.rows} lost={ours.lost} duplicated={ours.duplicated} files={files[0].count} "
        f"native_files={files[1].count} kills={kills} hidden={hidden}"
    )
    return 0 if ours.lost == ours.duplicated == hidden == 0 and kills == KILLS else 1


def begin(
    arguments: Sequence[str] | None, description: str, output: Path
) -> tuple[Path, FlightsSource, random.Random, argparse.Namespace]:
    """Read the command line and prepare everything that is the same wherever the files go.

    Returns:
        The directory to work in, the source, what chooses the instants of the kills, and the options.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--output", type=Path, default=output, help="directory to work in")
    parser.add_argument("--seed", type=int, default=secrets.randbits(32), help="chooses what is drawn")
    parser.add_argument("--format", choices=sorted(PATTERNS), default="json", help="format of the files")
    parser.add_argument("--mode", choices=MODES, default="start", help="by sink.start, or by plain foreachBatch")
    parser.add_argument(
        "--deduplicate", action="store_true", help="send each row one to three times, and write it once"
    )
    options = parser.parse_args(arguments)
    directory = fresh(options.output)
    os.environ["PYSPARK_PYTHON"] = sys.executable  # Spark's workers must be this Python, which has partfile.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    rng, with_copies = random.Random(options.seed), options.deduplicate
    drawn, times = (" and the copies", ", each sent one to three times,") if with_copies else ("", "")
    print(f"seed {options.seed}: the instants of the kills{drawn} (--seed repeats them)")
    print(f"preparing the source: 336 776 flights{times} as a stream of 48 micro-batches", flush=True)
    return directory, prepare(directory / "source", rng if with_copies else None), rng, options


def fresh(directory: Path) -> Path:
    """Empty the directory of an earlier demo, or make it; anything else in the way is left alone."""
    if directory.exists() and any(directory.iterdir()):
        if not (directory / _MARKER).is_file():
            raise SystemExit(f"{directory} holds files that are not an earlier demo's: name another --output")
        shutil.rmtree(directory)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / _MARKER).touch()
    return directory.absolute()


def clean(output: Path, *words: str) -> None:
    """Take away what the killed tasks left of batches that never completed, as an operator does.

    Args:
        output: The base of the sink.
        words: Further options of ``partfile clean``.
    """
    print("\npartfile clean: files of batches that no checkpoint names", flush=True)
    command = [
        sys.executable,
        "-m",
        "partfile",
        "clean",
        str(output),
        "--older-than",
        "0s",
        "--apply",
        "--delete",
        *words,
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def print_table(
    names: Sequence[str], outcomes: Sequence[Outcome], compared: Sequence[Comparison], files: Sequence[Files]
) -> None:
    """Print what each sink left behind, one line a sink."""
    header = ("", "rows", "lost", "duplicated", "files", "bytes", "median file", "batches", "seconds", "restarts")
    lines = [
        (
            name,
            str(rows.rows),
            str(rows.lost),
            str(rows.duplicated),
            str(found.count),
            str(found.size),
            str(found.median),
            str(outcome.batches),
            f"{outcome.seconds:.1f}",
            str(outcome.starts - 1),
        )
        for name, outcome, rows, found in zip(names, outcomes, compared, files, strict=True)
    ]
    widths = [max(map(len, column)) for column in zip(header, *lines, strict=True)]
    print()
    for line in (header, *lines):
        first, *rest = (
            cell.ljust(widths[0]) if place == 0 else cell.rjust(widths[place]) for place, cell in enumerate(line)
        )
        print("  ".join((first, *rest)))
    print()


if __name__ == "__main__":
    sys.exit(main())
