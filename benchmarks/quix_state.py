"""Keyed state of Quix Streams on RocksDB, run by an interpreter that has it: counts keys, and prints CPU seconds.

It is driven as its own ``StreamingDataFrame`` drives it: one transaction for the rows between two commits, in it a view
of the state for the key of each row. There is no changelog topic, which is in its favour.
"""

from __future__ import annotations

import json
import sys
import time

from quixstreams.state.rocksdb import RocksDBStore  # type: ignore[import-not-found,unused-ignore]

ROWS_A_COMMIT = 10_000
PASSES = 5


def main(directory: str, rows: int) -> None:
    """Counts each key some times, and all are there but for the first time; of the others the quickest one counts."""
    store = RocksDBStore("count", "rows", directory)
    store.assign_partition(0)
    keys = [b"key %d" % (row * 7919 % rows) for row in range(rows)]
    cpu_s = []
    for _ in range(1 + PASSES):
        began = time.process_time()
        for begin in range(0, rows, ROWS_A_COMMIT):
            with store.start_partition_transaction(0) as transaction:
                for key in keys[begin : begin + ROWS_A_COMMIT]:
                    state = transaction.as_state(prefix=key)
                    state.set("count", state.get("count", 0) + 1)
        cpu_s.append(time.process_time() - began)
    store.close()
    print(json.dumps({"new_s": cpu_s[0], "known_s": min(cpu_s[1:])}))


main(sys.argv[1], int(sys.argv[2]))
