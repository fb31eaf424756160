"""SIGKILL at the calls of the whole life cycle on HDFS, with cut="rewrite"."""

from __future__ import annotations

from support.hdfs.kills import KillsWithOneCut


class TestRewrite(KillsWithOneCut):
    """See ``KillsWithOneCut``."""

    cut = "rewrite"
