"""Errors say what to do, and travel between processes."""

from __future__ import annotations

import copy
import errno
import os
import pickle  # noqa: TID251 - Spark pickles errors; nothing persisted is involved.
from typing import TYPE_CHECKING

import pytest

from partfile import errors
from partfile.errors import AlreadyExists, NotApplied, NotFound, OutcomeUnknown, PartfileError
from partfile.stores.hdfs.errors import Verdict, error_of, verdict_of
from partfile.stores.local.posix import store_error, translated, translated_as_unknown, unknown_outcome

if TYPE_CHECKING:
    from pathlib import Path

# Errors say what to do, travel between processes, and tell what happened from what may have happened.

ALL = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, PartfileError)]

DETERMINATE = [
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.EMFILE,
    errno.ENFILE,
    errno.ELOOP,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENXIO,
    errno.ENAMETOOLONG,
    errno.ENOTEMPTY,
    errno.EXDEV,
    errno.EFBIG,
    errno.ENOLCK,
    errno.EOPNOTSUPP,
]


@pytest.mark.parametrize("kind", ALL)
def test_every_error_survives_pickling_with_all_it_says(kind: type[PartfileError]) -> None:
    """Spark carries errors from worker to driver by pickle; hint, path and checkpoint must arrive."""
    error = kind("it failed", hint="Do this.", path="a/b", checkpoint_id=7)
    for arrived in (pickle.loads(pickle.dumps(error)), copy.copy(error)):  # noqa: S301 - made here.
        assert type(arrived) is kind
        assert str(arrived) == str(error) == "it failed (path 'a/b', checkpoint 7)\nHint: Do this."
        assert (arrived.hint, arrived.path, arrived.checkpoint_id) == ("Do this.", "a/b", 7)


def test_the_text_repeats_nothing_and_leaves_out_what_is_not_known() -> None:
    """A path that the message names already is not added; neither is an empty hint."""
    assert str(PartfileError("it failed")) == "it failed"
    assert str(PartfileError("a/b failed", path="a/b")) == "a/b failed"
    assert str(PartfileError("it failed", checkpoint_id=0)) == "it failed (checkpoint 0)"


def test_the_tree_keeps_what_did_not_happen_apart_from_what_may_have() -> None:
    """A caller that retries on NotApplied can never catch an unknown outcome by it."""
    assert issubclass(AlreadyExists, NotApplied)
    assert issubclass(NotFound, NotApplied)
    assert not issubclass(OutcomeUnknown, NotApplied)
    assert not issubclass(NotApplied, OutcomeUnknown)


@pytest.mark.parametrize(("number", "command"), [(errno.ENOSPC, "df -h"), (errno.EACCES, "ls -ld")])
def test_a_hint_names_the_directory_that_is_there(number: int, command: str, tmp_path: Path) -> None:
    """Its command works as it stands: what was to be created is not there, and its directory may not be."""
    (tmp_path / "a b").mkdir()
    error = store_error(OSError(number, ""), "create", f"{tmp_path}/a b/chk-1/_metadata")
    assert f"{command} '{tmp_path}/a b'" in error.hint
    assert "PATH" not in store_error(OSError(errno.EPERM, ""), "link", str(tmp_path)).hint


@pytest.mark.parametrize("number", DETERMINATE)
def test_a_refused_call_is_determinate_and_says_what_to_do(number: int) -> None:
    """Where the errno proves that nothing happened, the error says so, with path, reason and a hint."""
    error = store_error(OSError(number, "ignored"), "create", "/base/part")
    assert type(error) is NotApplied
    assert error.hint
    assert error.path == "/base/part"
    assert "cannot create '/base/part'" in str(error)
    assert os.strerror(number) in str(error)


@pytest.mark.parametrize(("number", "kind"), [(errno.ENOENT, NotFound), (errno.EEXIST, AlreadyExists)])
def test_what_callers_tell_apart_has_a_kind_of_its_own(number: int, kind: type[NotApplied]) -> None:
    """Absent and taken names are told from other refusals."""
    assert type(store_error(OSError(number, ""), "open", "x")) is kind


@pytest.mark.parametrize("error", [OSError(errno.EIO, ""), OSError(errno.ESTALE, ""), OSError(9999, ""), OSError("x")])
def test_what_is_not_classified_has_an_unknown_outcome(error: OSError) -> None:
    """Only what is known to be harmless counts as not applied."""
    assert type(store_error(error, "rename", "x")) is OutcomeUnknown


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.ENOENT])
def test_a_failed_sync_or_close_is_always_unknown(number: int) -> None:
    """A late ENOSPC of fsync says nothing about which bytes arrived."""
    assert type(unknown_outcome(OSError(number, ""), "sync", "x")) is OutcomeUnknown
    with pytest.raises(OutcomeUnknown), translated_as_unknown("sync", "x"):
        raise OSError(number, "")


def test_translation_keeps_the_cause_and_passes_our_own_errors() -> None:
    """The kernel's error stays visible, and an error that is classified already is not wrapped again."""
    with pytest.raises(NotFound) as raised, translated("open", "x"):
        raise FileNotFoundError(errno.ENOENT, "")
    assert isinstance(raised.value.__cause__, FileNotFoundError)
    with pytest.raises(AlreadyExists, match=r"^ours$"), translated("open", "x"):
        raise AlreadyExists("ours")


# What users read of an error of HDFS: its own words, whole, and the hint that fits.

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
