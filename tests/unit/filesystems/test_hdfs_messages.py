"""What users read of an error of HDFS: its own words, whole, and the hint that fits."""

from __future__ import annotations

import pytest

from partfile.errors import NotApplied
from partfile.stores.hdfs.errors import Verdict, error_of, verdict_of

DENIED = "org.apache.hadoop.security.AccessControlException"
TRACE = r"\n\tat org.apache.hadoop.hdfs.server.namenode.FSPermissionChecker.check(FSPermissionChecker.java:663)"


@pytest.mark.parametrize(
    ("raised", "shown"),
    [
        (
            rf'RPCError("{DENIED}", "Permission denied: user=a, inode=\"/out\":root:drwxr-xr-x{TRACE}\n")',
            'AccessControlException: Permission denied: user=a, inode="/out":root:drwxr-xr-x',
        ),
        (
            rf'RPCError("a.b.SafeModeException", "It is safe.\nIt was turned on.{TRACE}\n")',
            "SafeModeException: It is safe. It was turned on.",
        ),
        (r'FatalRPCError("a.b.Outer$InvalidToken", "token expired")', "InvalidToken: token expired"),
        (r'OperationFailed("no")', r'OperationFailed("no")'),
        ("", "RuntimeError"),
    ],
)
def test_the_words_of_the_namenode_are_shown_whole(raised: str, shown: str) -> None:
    """Neither cut in the middle of a quotation nor with a stack trace."""
    message = error_of(RuntimeError(raised), "do", "hdfs://nn/a", reads=False).message
    assert message == f"cannot do 'hdfs://nn/a': {shown}"


def test_a_file_where_a_directory_must_be_is_no_missing_permission() -> None:
    """The NameNode says so in an exception about access; the hint is about the path."""
    error = RuntimeError(rf'RPCError("{DENIED}", "/sv/bad2 (is not a directory){TRACE}\n")')
    assert verdict_of(error) is Verdict.BELOW_A_FILE
    told = error_of(error, "create", "hdfs://nn/sv/bad2/x", reads=False)
    assert isinstance(told, NotApplied)
    assert "A file is where a directory must be" in told.hint
