"""A topic into files of JSON lines by Quix Streams, run by an interpreter that has it; prints CPU seconds.

Its sink writes what came since the last commit into a new file, and commits the offsets after that.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from quixstreams import Application  # type: ignore[import-not-found,unused-ignore]
from quixstreams.sinks.community.file.formats import JSONFormat  # type: ignore[import-not-found,unused-ignore]
from quixstreams.sinks.community.file.local import LocalFileSink  # type: ignore[import-not-found,unused-ignore]

COMMIT_S = 1.0


def main(brokers: str, topic: str, directory: str, rows: int) -> None:
    """Runs until so many rows have passed."""
    application = Application(
        broker_address=brokers,
        consumer_group=Path(directory).parent.name,
        auto_offset_reset="earliest",
        commit_interval=COMMIT_S,
        loglevel="WARNING",
        state_dir=f"{directory}-state",
    )
    frame = application.dataframe(application.topic(topic, value_deserializer="json"))
    frame = frame.filter(_has_price)
    frame.sink(LocalFileSink(directory=directory, format=JSONFormat(compress=False)))
    began = time.process_time()
    application.run(count=rows, timeout=60, collect=False)
    took_s = time.process_time() - began
    written = sum(1 for path in Path(directory).rglob("*") if path.is_file() for _ in path.open("rb"))
    print(json.dumps({"cpu_s": took_s, "written": written}))


def _has_price(row: dict[str, Any]) -> bool:
    return bool(row["price"] > 0)


main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
