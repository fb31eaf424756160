"""System calls that fail, done or not, once or from then on, at each call of each life on a local directory."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest

from partfile.stores.local.posix import CHANGING_CALLS
from partfile.testing.faults import FailAt
from support.crash.harness import CrashHarness
from support.crash.scenarios import EVERY_SCENARIO, Scenario, restore_that_cuts
from support.crash.worlds import Local

if TYPE_CHECKING:
    from support.crash.harness import Choose
    from support.crash.worlds import PosixPicture
    from support.tokens import NumberedTokens


@pytest.mark.parametrize("scenario", EVERY_SCENARIO, ids=lambda one: one.name)
@pytest.mark.parametrize("applied", [True, False], ids=["done", "not done"])
@pytest.mark.fault("F16")
def test_a_call_fails_once(
    scenario: Scenario, applied: bool, is_long: bool, numbered_tokens: NumberedTokens, failing: Choose
) -> None:
    """EIO, whether the call was done or not: the life goes on, or ends by an error of ours; no row is lost."""
    harness: CrashHarness[PosixPicture] = CrashHarness(scenario, Local(), numbered_tokens)
    lives, ended = harness.fault_at_each(
        lambda number: FailAt(number, OSError(errno.EIO, "deliberate"), applied=applied, only=CHANGING_CALLS),
        failing,
    )
    assert lives > 10
    # Of a few all can be alike by chance.
    assert not is_long or 0 < ended < lives


CASES = [(errno.ENOSPC, one) for one in EVERY_SCENARIO] + [
    (number, one) for number in (errno.EACCES, errno.EROFS) for one in (EVERY_SCENARIO[0], restore_that_cuts("auto"))
]


@pytest.mark.parametrize(("number", "scenario"), CASES, ids=lambda one: getattr(one, "name", None))
@pytest.mark.fault("F3", "F4")
def test_calls_fail_from_one_on(
    number: int, scenario: Scenario, numbered_tokens: NumberedTokens, failing: Choose
) -> None:
    """The disk is full, or is not to be written to: the next start, once that is mended, goes on as after a kill."""
    fails = CHANGING_CALLS - {"lock", "unlock", "lock_shared"}
    harness: CrashHarness[PosixPicture] = CrashHarness(scenario, Local(), numbered_tokens)
    _, ended = harness.fault_at_each(
        lambda call: FailAt(call, OSError(number, "deliberate"), persistent=True, only=fails),
        failing,
    )
    assert ended > 0
