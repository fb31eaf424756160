"""What the library says of its options is told in the words of a command."""

from __future__ import annotations

import pytest

from partfile.recovery.documents import in_words_of_a_command


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("run once with accept_missing=True, which", "run once with --accept-missing, which"),
        ("by restore_from and accept_newer=True: see", "by --restore-from and --accept-newer: see"),
        ("run with moved_from='/a/moved_from=b'.", "run with --moved-from '/a/moved_from=b'."),
        ("restore_from='/x' is not there", "--restore-from '/x' is not there"),
        ("RestoreSettings: accept_newer has no effect", "--accept-newer has no effect"),
        ("take no storage_options, got", "take no --storage-option, got"),
        ("cannot cut, or take cut='rewrite'", "cannot cut, or take --cut 'rewrite'"),
        ("my_restore_from_2 stays", "my_restore_from_2 stays"),
    ],
)
def test_options_are_spelled_as_a_command_does(said: str, told: str) -> None:
    """Names and values alike; what is quoted is somebody's path, and stays."""
    assert in_words_of_a_command(said) == told
