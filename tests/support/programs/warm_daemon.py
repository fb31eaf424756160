"""The worker daemon of the tests' Sparks: it has imported what tasks need before it forks any worker.

``spark.python.daemon.module=support.programs.warm_daemon``. By itself each worker imports all of it, which takes a
processor a second and a half; where workers die one after the other, as in many a test, that is most of the time.
Spark's own daemon is used by tests/spark/test_environment.py and test_kafka.py, and by what documents show.
"""

from __future__ import annotations

import gc
import os
import sys

# Spark puts zips and jars of its own first. Before each task a worker reads the directory of each zip that it has
# looked into, a dozen times, which takes a quarter of a second; the same modules are installed, and compiled, too.
sys.path[:] = [path for path in sys.path if not path.endswith((".zip", ".jar"))]
sys.path_importer_cache.clear()
# A fork leaves threads behind. numpy's OpenBLAS would begin some; pyarrow's allocator has one, and minds forks itself.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

# What Spark itself imports for the first batch of Arrow's that a worker gets.
import pandas as pd  # noqa: E402, F401
import pyarrow.compute as pc  # noqa: E402, F401
from pyspark import worker  # noqa: E402, F401
from pyspark.daemon import manager  # noqa: E402
from pyspark.sql.pandas import serializers  # noqa: E402, F401

import partfile.sink.spark.encode_job  # noqa: E402
import partfile.sink.spark.write_job  # noqa: E402, F401
from support.spark import openers, streams  # noqa: E402, F401


def serve() -> None:
    """Fork workers until Spark ends."""
    # Workers collect after each task; what is here already is not looked at again, nor copied.
    gc.collect()
    gc.freeze()
    manager()


if __name__ == "__main__":
    serve()
