"""Trees that readers and the command line find: of a crashed sink, and of Flink's BucketingSink."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import partfile as pf
from support.sinks.life_cycle import LONG, in_child

if TYPE_CHECKING:
    from pathlib import Path


# Trees as the real sink leaves them after a crash with ``cut="valid-length"``: sidecars, tails, staged files about.

BUCKETS = ("plain", "a b", "100%", "ü ö", "x=y", "{1,2}*?", "it's #1")
ROWS = 84
HALF = ROWS // 2
GARBAGE = b'garbage "beyond the valid length\n{"id": 1'
COMMON_KINDS = [(format, compression) for format in ("text", "json", "csv") for compression in (None, "gzip", "zstd")]
"""Row formats with the compressions that every reader knows."""
KINDS = [
    *COMMON_KINDS,
    *((format, "snappy") for format in ("text", "json", "csv", "avro")),
    ("text", "lz4"),
    ("json", "bz2"),
    ("csv", "lz4"),
    ("avro", "deflate"),
]
"""Row formats with the compressions that only some know, too."""

Row = tuple[int, str, str]


def text_of(number: int) -> str:
    """A text that is hard on quoting; no line feed, which the text format refuses."""
    return ("plain", 'q"uote', "com,ma", "back\\slash", "é漢😀", " blanks ", "tab\tcr\rend")[
        number % 7
    ] + f" {number:03d}"


def rows() -> list[Row]:
    """Every row: id, text, bucket."""
    return [(number, text_of(number), BUCKETS[number // 2 % len(BUCKETS)]) for number in range(ROWS)]


def batch(some: list[Row], *, is_text: bool) -> pa.RecordBatch:
    """Rows as the sink takes them; the text format has no column for the id, so the text alone tells rows apart."""
    ids, texts, buckets = zip(*some, strict=True)
    columns: dict[str, Any] = {} if is_text else {"id": pa.array(ids, pa.int64())}
    return pa.RecordBatch.from_pydict({**columns, "text": list(texts), "bucket": list(buckets)})


def tree_sink(base: Path, format: str, compression: str | None, **options: Any) -> pf.FileSink:
    """A sink that asks for sidecars, with Hive buckets and parts that stay open until the clean end."""
    fixed: dict[str, Any] = {"bucketer": pf.HiveBucketer("bucket"), "rolling": LONG, "cut": "valid-length"}
    return pf.FileSink(base, uid="tree", format=format, compression=compression, **(fixed | options))


def write_tree(base: Path, format: str, compression: str | None, **options: Any) -> None:
    """Write every row, with a crash in the middle: half of the files end in a tail that does not count."""
    is_text = format == "text"

    def crash_halfway() -> None:
        out = tree_sink(base, format, compression, **options).local().open()
        # Two checkpoints, so that compressed files have several members or frames.
        out.write(batch(rows()[: HALF // 2], is_text=is_text), position=HALF // 2)
        out.checkpoint()
        out.write(batch(rows()[HALF // 2 : HALF], is_text=is_text), position=HALF)
        out.checkpoint()
        out.write(batch(rows()[HALF:], is_text=is_text), position=ROWS)
        os._exit(0)

    assert in_child(crash_halfway) == 0
    for part in base.rglob("*.in-progress"):
        # What compressors hold back does not reach the file of a process that dies; a zombie's would.
        with part.open("ab") as file:
            file.write(GARBAGE)
    with tree_sink(base, format, compression, **options).local() as out:
        assert out.position == HALF
        out.write(batch(rows()[HALF:], is_text=is_text), position=ROWS)
    litter(base)


def litter(base: Path) -> None:
    """Leave what no reader may read: staged files of attempts that were given up, foreign hidden files."""
    token = "0123456789abcdef" * 2
    for directory in [path for path in base.iterdir() if not path.name.startswith("_")]:
        for suffix in (".in-progress", ".pending"):
            (directory / f"_part-00000000-9-9.json.{token}{suffix}").write_bytes(GARBAGE)
        (directory / ".part-00000000-9-8.json.crc").write_bytes(GARBAGE)
        (directory / "_part-00000000-9-7.json.valid-length").write_bytes(b"5")
        (directory / "_temporary").mkdir()
        (directory / "_temporary" / "part-0.json").write_bytes(GARBAGE)


def sidecars(base: Path) -> list[Path]:
    """The sidecars of finished files below a base."""
    found = base.rglob("_part-*.valid-length")
    return sorted(path for path in found if finished_of(path).exists())


def finished_of(sidecar: Path) -> Path:
    """The file that a sidecar belongs to."""
    return sidecar.with_name(sidecar.name.removeprefix("_").removesuffix(".valid-length"))


# Trees as Flink's BucketingSink leaves them, file by file.

LINES = [f"{number:04d}\n".encode() for number in range(100)]
"""Rows of five bytes."""
DAYS_OLD = 2
FLINK = ("--adopt-layout", "flink")
MOVE_OPEN = "--quarantine-in-progress"


def flink_rows(first: int, last: int) -> bytes:
    """Whole rows."""
    return b"".join(LINES[first:last])


def write_utf(text: str) -> bytes:
    """What ``DataOutputStream.writeUTF`` writes, for text in ASCII."""
    data = text.encode("ascii")
    return len(data).to_bytes(2, "big") + data


def put(path: Path, data: bytes) -> None:
    """A file of two days ago."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    then = path.stat().st_mtime - DAYS_OLD * 86_400
    os.utime(path, (then, then))


def killed_job(base: Path) -> None:
    """What a job leaves that was restored once without truncate, and then was killed.

    Rows 0 to 39 are finished; 40 to 49 are in a part that a coordinator was about to cut; 50 to 59 are closed; 60 on
    are open.
    """
    put(base / "d=1" / "part-0-0", flink_rows(0, 20))
    put(base / "d=1" / "part-0-1", flink_rows(20, 40) + b"tail of a dead attempt")
    put(base / "d=1" / ".part-0-1.crc", b"crc\0checksum")
    put(base / "d=1" / "_part-0-1.valid-length", write_utf("100"))
    put(base / "d=1" / "_part-1-0.pending", flink_rows(40, 50) + b"00")
    put(base / "d=1" / "_part-1-0.valid-length", write_utf("50"))
    put(base / "d=2" / "_part-0-2.pending", flink_rows(50, 60))
    put(base / "d=2" / "_part-0-3.in-progress", flink_rows(60, 63) + b"00")
    put(base / "d=2" / "notes.txt", b"not Flink's")
    put(base / "_SUCCESS", b"")


def visible(base: Path) -> dict[str, bytes]:
    """The files that every reader sees."""
    paths = [path for path in base.rglob("part-*") if path.is_file() and "_partfile" not in path.parts]
    return {path.relative_to(base).as_posix(): path.read_bytes() for path in sorted(paths)}
