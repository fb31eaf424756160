"""One local Spark for all tests of this folder that run in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.spark.files import with_avro
from support.spark.streams import build_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = build_session()
    yield session
    session.stop()


@pytest.fixture(scope="session")
def spark_avro(spark: SparkSession) -> SparkSession:
    """The same session with Spark's reader of Avro."""
    return with_avro(spark)
