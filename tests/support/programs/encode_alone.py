"""Large staging files, and their encode in a process of its own, which says how much memory it took at most.

``encode_alone.py BASE STAGING_FILE`` encodes one; ``STAGING_FILE`` is a file with the closed staging file as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from partfile.sink.encode import LocalEncoder
from partfile.sink.operator import ActivePart
from partfile.sink.states import ClosedStagingFile, OpenPart, StagingFile
from partfile.stores.base import PartHandle
from partfile.stores.local.store import LocalStore
from partfile.writers.arrow_staging import StagingFormat
from partfile.writers.registry import spec_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partfile.writers.base import BulkFormat


_BATCH_BYTES = 16 << 20
_LETTERS = np.frombuffer(bytes(range(33, 127)) + bytes(range(33, 67)), np.uint8)
"""128 letters, of which few codecs make less than 7 bits."""


class Took(NamedTuple):
    """What an encode took."""

    peak_bytes: int
    """Of the process, interpreter and libraries included."""
    file_bytes: int
    rows: int
    seconds: float


def write_staging_file(base: Path, form: BulkFormat, size_bytes: int, text_bytes: int) -> ClosedStagingFile:
    """Make a staging file of about so many bytes, with text of a width, in messages as a sink would write them."""
    handle = PartHandle(
        bucket="",
        name="part-0",
        in_progress="_part-0.token.in-progress",
        pending="_part-0.token.pending",
        sidecar="_part-0.valid-length",
        valid_length=0,
        is_staging_file=True,
    )
    numbers = dict.fromkeys(("count", "epoch", "created_at_ms", "last_write_ms", "rows"), 0)
    staging_file = StagingFile(spec=spec_of(form), crc32=0)
    part = OpenPart(part=handle, staging_file=staging_file, schema_fingerprint="", **numbers)
    with LocalStore(str(base)) as store:
        active: ActivePart | None = None
        for batch in _batches(size_bytes, text_bytes):
            active = active or ActivePart(store.create(handle), StagingFormat(), batch.schema, part)
            active.write(batch, 0)
        assert active is not None
        part = active.suspend()
    assert part.staging_file is not None
    return ClosedStagingFile(part=part.part, staging_file=part.staging_file, rows=part.rows, since=1)


def encode_alone(base: Path, staging_file: ClosedStagingFile) -> Took:
    """Encode a staging file in a fresh process."""
    described = base / "staging file.json"
    described.write_text(staging_file.model_dump_json())
    done = subprocess.run(
        [sys.executable, __file__, str(base), str(described)], check=True, stdout=subprocess.PIPE, text=True
    )
    return Took(*json.loads(done.stdout))


def _batches(size_bytes: int, text_bytes: int) -> Iterator[pa.RecordBatch]:
    """Rows that hardly compress: numbers in order and in none, and text."""
    draw = np.random.default_rng(2)
    rows = _BATCH_BYTES // text_bytes
    offsets = pa.py_buffer(np.arange(rows + 1, dtype=np.int32) * np.int32(text_bytes))
    for first in range(0, -(-size_bytes // _BATCH_BYTES) * rows, rows):
        letters = _LETTERS[draw.integers(0, len(_LETTERS), rows * text_bytes, np.uint8)]
        text = pa.StringArray.from_buffers(rows, offsets, pa.py_buffer(letters))
        keys = pa.array(draw.integers(0, 1 << 62, rows))
        yield pa.RecordBatch.from_pydict({"n": pa.array(np.arange(first, first + rows)), "key": keys, "text": text})


def _main(base: str, described: str) -> None:
    staging_file = ClosedStagingFile.model_validate_json(Path(described).read_bytes())
    began = time.monotonic()
    with LocalStore(base) as store:
        (encoded,) = LocalEncoder(store, 1).encode([staging_file])
    if encoded.problem is not None:
        raise encoded.problem
    (file,) = encoded.files or ()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    peak_bytes = int(status["VmHWM"].split()[0]) << 10
    sys.stdout.write(json.dumps(Took(peak_bytes, file.part.valid_length, file.rows, time.monotonic() - began)))


if __name__ == "__main__":
    _main(*sys.argv[1:])
