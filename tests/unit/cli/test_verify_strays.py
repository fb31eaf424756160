"""``verify`` beside a link that a fenced coordinator has left under a freed name: a note, and no alarm."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from command_line import told_json
from life_cycle import batch, long_sink, make_sink, run_to_the_end

from partfile.errors import Fenced
from partfile.stores.local.store import LocalStore
from partfile.testing.faults import SimulatedCrash, intercept

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import partfile as pf
    from partfile.testing.faults import Call

MORE_ROWS = 18


class AtLink:
    """An interceptor that lets others go on before one of the links of a process.

    Args:
        number: Which of them, from 1.
        others: What they do.
        dies: Whether the process is dead once the link is there.
    """

    def __init__(self, number: int, others: Callable[[], object], *, dies: bool = False) -> None:
        self._left = number
        self._others = others
        self._dies = dies

    def around(self, call: Call, proceed: Callable[[], object]) -> object:
        """Do the call, after the others have done what they do."""
        is_link = call.name == "create_file" and str(call.arguments[0]).endswith("/_metadata")
        self._left -= is_link
        if not is_link or self._left != 0:
            return proceed()
        self._others()
        proceed()
        if self._dies:
            raise SimulatedCrash
        return None


def sleeping(base: Path, at: AtLink, **options: Any) -> pf.LocalSink:
    """A sink whose process is asleep there."""
    return long_sink(base, open_store=lambda url, _options: intercept(LocalStore(url), at), **options).local()


def found(base: Path) -> list[tuple[Any, Any]]:
    """The code and the severity of each finding, of which none is an error."""
    return [(one["code"], one["severity"]) for one in told_json("verify", base, code=0)["findings"]]


@pytest.mark.parametrize("retained", [1, 2, 4])
@pytest.mark.parametrize("inline_threshold_bytes", [0, 20_000])
@pytest.mark.fault("D9")
def test_a_stray_link_is_noted(tmp_path: Path, retained: int, inline_threshold_bytes: int) -> None:
    """It knows a part longer than it became, and files that are gone: neither is an error, and a start deletes it."""
    options: dict[str, Any] = {"retained_checkpoints": retained, "inline_threshold_bytes": inline_threshold_bytes}
    others = partial(run_to_the_end, make_sink(tmp_path, **options), MORE_ROWS)
    sleeper = sleeping(tmp_path, AtLink(3, others), **options).open()
    sleeper.write(batch(0, 4), position=4)
    sleeper.checkpoint()
    sleeper.write(batch(4, 4), position=8)
    with pytest.raises(Fenced):
        sleeper.checkpoint()
    sleeper.close()
    assert ("stray-link", "note") in found(tmp_path)
    make_sink(tmp_path, **options).local().open().close()
    # The sleeper still held its parts, so copies of them were finished.
    assert {code for code, _ in found(tmp_path)} == {"orphan"}


@pytest.mark.parametrize("retained", [2, 4])
def test_a_stray_first_link_is_noted(tmp_path: Path, retained: int) -> None:
    """It is of a chain of its own, and was not copied here."""
    others = partial(run_to_the_end, make_sink(tmp_path, retained_checkpoints=retained), MORE_ROWS)
    late = sleeping(tmp_path, AtLink(1, others, dies=True))
    with pytest.raises(SimulatedCrash):
        late.open()
    assert ("stray-link", "note") in found(tmp_path)
