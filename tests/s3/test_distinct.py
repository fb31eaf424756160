"""Spark streams that deduplicate, on real S3 servers: each id once, each run of keys read once by a host."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from support.processes.command_line import told
from support.s3.life import at, store_options
from support.spark.distinct_life import (
    LIVES,
    DistinctLife,
    When,
    distinct_sink,
    taken_over_by_a_rival,
    write_files_again,
)
from support.spark.s3 import ids_on_s3, pending_uploads
from support.spark.streams import expected, run, stream

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from support.s3.proxy import S3Proxy
    from support.s3.server import S3Server


pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.mark.drawn(1)
def test_the_tasks_of_a_host_read_each_run_of_keys_once(
    s3_server: S3Server, s3_proxy: S3Proxy, s3_base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over batches and a restart, unless the copies are gone; a driver that starts reads the newest ones too."""
    lives = DistinctLife(s3_base, str(tmp_path / "spark"), tmp_path, store_options(s3_proxy), monkeypatch)
    read_by_tasks = lives.live_and_check()
    got = runs_got(s3_proxy)
    assert got >= read_by_tasks
    assert set((got - read_by_tasks).values()) <= {1, LIVES - 1}
    assert ids_on_s3(s3_server, s3_base) == expected(lives.ids)
    assert pending_uploads(s3_server, s3_base) == []
    assert "errors=0" in told("verify", *at(s3_server, s3_base, tmp_path))


def runs_got(proxy: S3Proxy) -> Counter[str]:
    """How often each run of keys was asked for, by its path below ``_partfile``."""
    keys = (one.request.key for one in proxy.exchanges if one.request.operation == "GetObject")
    return Counter(key.partition("/_partfile/")[2] for key in keys if "/shared/" in key)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.fault("D9", "D10")
def test_of_two_drivers_with_keys_the_second_fences_the_first(  # noqa: PLR0917 - fixtures.
    spark: SparkSession,
    s3_server: S3Server,
    s3_base: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    when: When,
) -> None:
    """Though it has deleted runs that the first one needs, it is no damage; the next driver knows every key."""
    options = store_options(s3_server)
    middle = taken_over_by_a_rival(s3_base, options, spark, tmp_path, when=when, monkeypatch=monkeypatch)
    assert ids_on_s3(s3_server, s3_base) == expected(middle)
    last = write_files_again(tmp_path / "source", 1, first=middle - 20)
    run(distinct_sink(s3_base, options), stream(spark, tmp_path / "source"), str(tmp_path / "copy"))
    assert ids_on_s3(s3_server, s3_base) == expected(last)
    assert "errors=0" in told("verify", *at(s3_server, s3_base, tmp_path))
