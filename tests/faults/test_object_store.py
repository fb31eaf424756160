"""Kills and failing requests on a strict model of S3, and that the model is strict."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from partfile.errors import PartMissing
from partfile.stores.s3.client import CHANGING_CALLS, this_process
from partfile.stores.s3.handle import Piece
from partfile.stores.s3.store import S3Store
from partfile.testing.faults import ActAt, FailAt, LateAt, intercept
from support.crash.harness import CrashHarness, none_of
from support.crash.scenarios import OTHERS, Scenario, restore_that_cuts, stream
from support.s3.life import written_open
from support.s3.model import LEAST_PIECE_BYTES, ModelCalls, refusal
from support.s3.model_worlds import AWS, GATEWAY, IGNORANT, OPTIONS, Objects, make_small

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from partfile.stores.base import PartHandle
    from partfile.testing.faults import Call
    from support.crash.harness import Choose
    from support.s3.model import Bucket, Rules
    from support.state.tokens import NumberedTokens


# The model of S3 is as strict as any server: what some server refuses it refuses, by the words that servers use.

LARGE, SMALL = bytes(LEAST_PIECE_BYTES), b"tail"


def upload(calls: ModelCalls, *bodies: bytes, numbers: Sequence[int] = (1, 2, 3)) -> tuple[str, list[Piece]]:
    """An upload of some parts."""
    name = calls.create_upload("key", {})
    pieces = []
    for number, data in zip(numbers, bodies, strict=False):
        etag = calls.upload_part("key", name, number, data, 0)
        pieces.append(Piece(number=number, etag=etag, size_bytes=len(data), crc32=0))
    return name, pieces


def test_an_upload_shows_nothing_until_it_is_completed_and_is_gone_then() -> None:
    """A second completion, a further part and an abort find no upload."""
    calls = ModelCalls(AWS)
    name, pieces = upload(calls, LARGE, SMALL)
    with pytest.raises(OSError, match="404"):
        calls.get("key", 100)
    calls.complete_upload("key", name, pieces, if_absent=True)
    assert calls.get("key", 100) == LARGE + SMALL
    for request in (
        lambda: calls.complete_upload("key", name, pieces, if_absent=False),
        lambda: calls.upload_part("key", name, 1, SMALL, None),
        lambda: calls.abort_upload("key", name),
        lambda: calls.look_at_upload("key", name),
    ):
        with pytest.raises(OSError, match="NoSuchUpload"):
            request()


@pytest.mark.fault("N8")
def test_upload_parts_that_make_no_file_are_refused() -> None:
    """Too small a part before the last, another order, bytes that were replaced, and on AWS a gap."""
    calls = ModelCalls(AWS)
    name, pieces = upload(calls, SMALL, SMALL)
    with pytest.raises(OSError, match="EntityTooSmall"):
        calls.complete_upload("key", name, pieces, if_absent=False)
    with pytest.raises(OSError, match="InvalidPartOrder"):
        calls.complete_upload("key", name, pieces[::-1], if_absent=False)
    calls.upload_part("key", name, 2, LARGE, 0)
    with pytest.raises(OSError, match="InvalidPart"):
        calls.complete_upload("key", name, pieces[1:], if_absent=False)
    with_gap, apart = upload(calls, LARGE, SMALL, numbers=(1, 3))
    with pytest.raises(OSError, match="InvalidPartOrder"):
        calls.complete_upload("key", with_gap, apart, if_absent=False)


@pytest.mark.parametrize(
    ("rules", "puts", "completes"), [(AWS, True, True), (GATEWAY, True, False), (IGNORANT, False, False)]
)
def test_each_server_has_its_own_way(rules: Rules, puts: bool, completes: bool) -> None:
    """Preconditions are honoured, or only on PUT, or not at all."""
    calls = ModelCalls(rules)
    calls.put("key", b"first", {}, if_absent=True)
    assert is_refused(lambda: calls.put("key", b"other", {}, if_absent=True)) is puts
    name, pieces = upload(calls, SMALL)
    assert is_refused(lambda: calls.complete_upload("key", name, pieces, if_absent=True)) is completes


@pytest.mark.parametrize("rules", [AWS, GATEWAY], ids=lambda rules: rules.name)
def test_a_gateway_wants_every_upload_part_named(rules: Rules) -> None:
    """AWS leaves out what is not named."""
    calls = ModelCalls(rules)
    name, pieces = upload(calls, LARGE, SMALL)
    is_gateway = rules is GATEWAY
    assert is_refused(lambda: calls.complete_upload("key", name, pieces[:1], if_absent=False)) is is_gateway


def is_refused(request: Callable[[], object]) -> bool:
    """Whether a request is refused."""
    try:
        request()
    except OSError:
        return True
    return False


# Kill at every request, then the recovery at some of its requests or all, on a strict model of S3.

SCENARIOS = [stream("auto"), restore_that_cuts("auto"), *OTHERS]
FEW = [stream("auto"), restore_that_cuts("auto"), *(one for one in OTHERS if one.name in {"long parts", "keep"})]
CASES = [(AWS, one) for one in SCENARIOS] + [(GATEWAY, one) for one in FEW] + [(IGNORANT, one) for one in FEW[:2]]


@pytest.mark.drawn(2)
@pytest.mark.parametrize(("rules", "scenario"), CASES, ids=lambda one: one.name)
@pytest.mark.fault("K2", "K3", "K7", "K9", "K10", "K11", "K13", "K15", "K16")
def test_two_kills_anywhere_lose_and_double_nothing(  # noqa: PLR0917 - fixtures.
    rules: Rules,
    scenario: Scenario,
    numbered_tokens: NumberedTokens,
    monkeypatch: pytest.MonkeyPatch,
    second: Choose,
    is_long: bool,
) -> None:
    """At each moment readers see committed rows once; after each recovery all that was acknowledged; in the end all."""
    make_small(monkeypatch)
    explored = CrashHarness(scenario, Objects(rules), numbered_tokens, second=second).explore()
    assert explored.moments > len(explored.calls) // 2
    assert explored.second_moments > (5 * explored.moments if is_long else explored.moments // 4)


@pytest.mark.drawn(2)
@pytest.mark.parametrize(("rules", "scenario"), CASES, ids=lambda one: one.name)
@pytest.mark.fault("K2", "K3", "K10", "K11", "K13", "K16")
def test_what_a_consumer_takes_at_once_is_each_row_once(  # noqa: PLR0917 - fixtures.
    rules: Rules,
    scenario: Scenario,
    numbered_tokens: NumberedTokens,
    monkeypatch: pytest.MonkeyPatch,
    failing: Choose,
    second: Choose,
) -> None:
    """R5: no file comes back after a consumer has moved it, and each start goes on by itself."""
    make_small(monkeypatch)
    harness = CrashHarness(scenario, Objects(rules), numbered_tokens, first=failing, second=second)
    explored = harness.explore_beside_a_consumer()
    assert explored.moments > len(explored.calls) // 2
    assert explored.second_moments > 5


@pytest.fixture(autouse=True)
def unknown_server() -> None:
    """No store knows what a server with other rules told a test before."""
    this_process().traits.clear()


class Taking:
    """An interceptor beside a consumer that takes each finished file the instant it is visible.

    Args:
        calls: The bucket.
    """

    def __init__(self, calls: ModelCalls) -> None:
        self._calls = calls
        self.taken: list[bytes] = []

    def around(self, call: Call, proceed: Callable[[], object]) -> object:  # noqa: ARG002 - whichever it is.
        """Do the call, then let the consumer look."""
        try:
            return proceed()
        finally:
            for path, data in self._calls.picture().finished().items():
                self.taken.append(data)
                self._calls.delete(f"base/{path}")


@pytest.mark.parametrize("rules", [AWS, GATEWAY], ids=lambda rules: rules.name)
@pytest.mark.parametrize("batches", [[SMALL], [SMALL, SMALL], [LARGE, SMALL]], ids=["side object", "two", "upload"])
@pytest.mark.fault("D10")
def test_what_a_consumer_took_comes_back_by_no_coordinator(
    rules: Rules, batches: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """R5: of two coordinators and a consumer, whichever comes between, one file is ever seen, and never again."""
    make_small(monkeypatch)
    for number in range(1, 50):
        calls, reached = ModelCalls(rules), list[int]()
        taking = Taking(calls)
        rival = S3Store("s3://model/base", OPTIONS, calls=intercept(calls, taking))
        assert rival.capabilities.append
        handle = written_open(rival, batches)

        def meet(rival: S3Store = rival, handle: PartHandle = handle, reached: list[int] = reached) -> None:
            reached.append(1)
            with suppress(PartMissing):
                rival.publish(handle, "auto")

        watched = intercept(intercept(calls, taking), ActAt(number, meet))
        with S3Store("s3://model/base", OPTIONS, calls=watched) as store, rival:
            for each in (store, rival, store):
                with suppress(PartMissing):
                    each.publish(handle, "auto")
        assert taking.taken == [b"".join(batches)]
        if not reached:
            assert number > len(batches)
            return
    raise AssertionError("more than 50 calls")


@pytest.mark.parametrize("rules", [AWS, GATEWAY], ids=lambda rules: rules.name)
def test_every_kind_of_request_is_killed(
    rules: Rules, numbered_tokens: NumberedTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lives make uploads, side objects, claims, completions: none of the enumerations runs past a path."""
    make_small(monkeypatch)
    harnesses = [CrashHarness(one, Objects(rules), numbered_tokens, first=lambda _: ()) for one in SCENARIOS]
    assert {call for harness in harnesses for call in harness.explore().calls} == CHANGING_CALLS


# Requests that fail, done or not, or are done later, and lists that are old: on a strict model of S3.

FAULTY_SCENARIOS = [restore_that_cuts("auto"), *(one for one in OTHERS if one.name in {"long parts", "keep", "abort"})]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    make_small(monkeypatch)


@pytest.fixture(params=[AWS, GATEWAY], ids=lambda rules: rules.name)
def rules(request: pytest.FixtureRequest) -> Rules:
    """A server that honours preconditions on PUT: others can be told nothing by a request that comes late."""
    found: Rules = request.param
    return found


@pytest.mark.usefixtures("small")
@pytest.mark.drawn(4)
@pytest.mark.parametrize("scenario", FAULTY_SCENARIOS, ids=lambda one: one.name)
@pytest.mark.parametrize("applied", [True, False], ids=["done", "not done"])
@pytest.mark.fault("N1", "N2")
def test_a_reply_is_lost(
    scenario: Scenario, applied: bool, rules: Rules, numbered_tokens: NumberedTokens, failing: Choose
) -> None:
    """Whether the request was done or not, the life goes on: it is repeated, and what was done is known again."""
    harness: CrashHarness[Bucket] = CrashHarness(scenario, Objects(rules), numbered_tokens)
    lives, ended = harness.fault_at_each(
        lambda number: FailAt(number, ConnectionResetError("lost"), applied=applied, only=CHANGING_CALLS),
        failing,
    )
    assert lives > 10
    assert ended == 0


@pytest.mark.slow
@pytest.mark.usefixtures("small")
@pytest.mark.drawn(4)
@pytest.mark.parametrize("scenario", FAULTY_SCENARIOS, ids=lambda one: one.name)
@pytest.mark.parametrize("gap", [1, 4, 1000])
@pytest.mark.fault("N2", "N9")
def test_a_request_is_done_after_it_was_given_up(
    scenario: Scenario, gap: int, rules: Rules, numbered_tokens: NumberedTokens, failing: Choose
) -> None:
    """It arrives behind its own repetition, a few requests later, or never."""
    harness: CrashHarness[Bucket] = CrashHarness(scenario, Objects(rules), numbered_tokens)
    lives, _ = harness.fault_at_each(
        lambda number: LateAt(number, TimeoutError("given up"), gap=gap, only=CHANGING_CALLS),
        failing,
    )
    assert lives > 10


@pytest.mark.slow
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("scenario", FAULTY_SCENARIOS, ids=lambda one: one.name)
@pytest.mark.fault("N6")
def test_credentials_expire_for_good(
    scenario: Scenario, rules: Rules, numbered_tokens: NumberedTokens, failing: Choose
) -> None:
    """From any request on all that would change something are refused; the next start has new credentials."""
    harness: CrashHarness[Bucket] = CrashHarness(scenario, Objects(rules), numbered_tokens)
    lives, ended = harness.fault_at_each(
        lambda number: FailAt(number, refusal("ExpiredToken"), persistent=True, only=CHANGING_CALLS),
        failing,
    )
    assert ended > lives // 2


@pytest.mark.usefixtures("small")
@pytest.mark.drawn(3)
@pytest.mark.parametrize("scenario", FAULTY_SCENARIOS, ids=lambda one: one.name)
@pytest.mark.parametrize("lag", [2, 12])
@pytest.mark.fault("F12")
def test_lists_are_old_and_name_keys_twice(
    scenario: Scenario, lag: int, rules: Rules, numbered_tokens: NumberedTokens, failing: Choose
) -> None:
    """After a kill the next start asks again until it has found the end of the checkpoint log."""
    harness: CrashHarness[Bucket] = CrashHarness(scenario, Objects(rules, lag), numbered_tokens, second=none_of)
    assert harness.kill_then_crash(failing) >= 1
