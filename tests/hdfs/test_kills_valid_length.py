"""SIGKILL at the calls of the whole life cycle on HDFS, with cut="valid-length"."""

from __future__ import annotations

from support.hdfs.kills import KillsWithOneCut


class TestValidLength(KillsWithOneCut):
    """See ``KillsWithOneCut``."""

    cut = "valid-length"
