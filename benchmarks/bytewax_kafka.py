"""A topic into a file of JSON lines by Bytewax, run by an interpreter that has it; prints CPU seconds.

It keeps no recovery store, which is in its favour.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import bytewax.operators as op  # type: ignore[import-not-found,unused-ignore]
from bytewax.connectors.files import FileSink  # type: ignore[import-not-found,unused-ignore]
from bytewax.connectors.kafka import KafkaSource  # type: ignore[import-not-found,unused-ignore]
from bytewax.dataflow import Dataflow  # type: ignore[import-not-found,unused-ignore]
from bytewax.testing import run_main  # type: ignore[import-not-found,unused-ignore]

AT_ONCE = 10_000


def main(brokers: str, topic: str, path: str) -> None:
    """Runs until the end that the topic had at first."""
    flow = Dataflow("files")
    records = op.input("topic", flow, KafkaSource([brokers], [topic], tail=False, batch_size=AT_ONCE))
    rows = op.map("parse", records, lambda record: json.loads(record.value))
    kept = op.filter("filter", rows, lambda row: row["price"] > 0)
    lines = op.map("encode", kept, _keyed_line)
    op.output("file", lines, FileSink(path))
    began = time.process_time()
    run_main(flow)
    took_s = time.process_time() - began
    with Path(path).open("rb") as file:
        print(json.dumps({"cpu_s": took_s, "written": sum(1 for _ in file)}))


def _keyed_line(row: dict[str, Any]) -> tuple[str, str]:
    return "", json.dumps(row)


main(*sys.argv[1:4])
