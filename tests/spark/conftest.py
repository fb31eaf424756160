"""One local Spark for all tests of this folder that run in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from spark_support import build_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = build_session()
    yield session
    session.stop()
