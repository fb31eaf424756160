"""SIGKILL at the calls of the whole life cycle on HDFS, with cut="rewrite"."""

from __future__ import annotations

from hdfs_kills import KillsWithOneCut


class TestRewrite(KillsWithOneCut):
    """See ``KillsWithOneCut``."""

    cut = "rewrite"
