"""What the cleaner does on the local file system, where something comes between or the power fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from partfile.stores.local.posix import PosixCalls
from partfile.stores.local.store import LocalStore
from partfile.testing.faults import ActAt, intercept
from partfile.testing.power_loss import PowerLossCalls
from partfile.testing.store import write_part

if TYPE_CHECKING:
    from pathlib import Path

DATA, OTHER = b"valid bytes", b"another file"
AWAY = "_partfile/_quarantine/run/b"


@pytest.mark.parametrize("into", [None, AWAY])
def test_what_takes_the_name_before_the_lock_is_left(tmp_path: Path, into: str | None) -> None:
    """What is taken away is what was leased, not what has come to stand under its name."""
    with LocalStore(str(tmp_path)) as store:
        handle = write_part(store, DATA)
    name = handle.path_of(handle.in_progress)
    path = tmp_path / name

    def swap() -> None:
        path.rename(tmp_path / "elsewhere")
        path.write_bytes(OTHER)

    with LocalStore(str(tmp_path), calls=intercept(PosixCalls(), ActAt(1, swap, only={"lock"}))) as store:
        assert not store.take_away(name, into)
    assert path.read_bytes() == OTHER
    assert (tmp_path / "elsewhere").read_bytes() == DATA


def test_what_was_moved_away_survives_a_power_loss(tmp_path: Path) -> None:
    """Once the call has returned the file is in the quarantine for good, perhaps under its old name as well."""
    with LocalStore(str(tmp_path)) as store:
        handle = write_part(store, DATA)
    model = PowerLossCalls()
    with LocalStore(str(tmp_path), calls=model) as store:
        assert store.take_away(handle.path_of(handle.in_progress), AWAY)
    survivors = model.all_survivors()
    assert survivors
    assert all(tree.get(f"{AWAY}/{handle.in_progress}") == DATA for tree in survivors)
    model.stop()
