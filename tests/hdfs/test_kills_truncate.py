"""SIGKILL at the calls of the whole life cycle on HDFS, with cut="truncate"."""

from __future__ import annotations

from support.hdfs.kills import KillsWithOneCut


class TestTruncate(KillsWithOneCut):
    """See ``KillsWithOneCut``."""

    cut = "truncate"
