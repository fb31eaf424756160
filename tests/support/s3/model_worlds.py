"""Buckets of the model of S3 for the crash harness."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from partfile.stores.s3 import handle, requests, stream
from partfile.stores.s3.client import CHANGING_CALLS, this_process
from partfile.stores.s3.options import S3Options
from partfile.stores.s3.store import S3Store
from partfile.testing.faults import intercept
from support.crash.worlds import Process
from support.s3.model import LEAST_PIECE_BYTES, Bucket, ModelCalls, Rules, without_clock

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from partfile.testing.faults import Call, Interceptor


AWS = Rules("aws", gapless_numbers=True)
GATEWAY = Rules("gateway", conditions_on_completions=False, leaves_out=False)
"""As Ceph's: a completion replaces what is there, and has to name all that was sent."""
IGNORANT = Rules("ignorant", conditions_on_puts=False, conditions_on_completions=False)
"""As rclone: no precondition is looked at."""

_OPTIONS = S3Options.of({"endpoint_url": "http://model", "key": "k", "secret": "s", "region": "us-east-1"})
OPTIONS = _OPTIONS.model_copy(update={"upload_part_bytes": LEAST_PIECE_BYTES, "call_timeout_s": 2.0})
"""Of upload parts in small, which the options do not allow."""


class ObjectWorld:
    """One bucket; each process that works there finds out anew what the server does.

    Args:
        rules: What the server does its own way.
        picture: What is in it.
        lag: How many changes lists are behind, at most.
    """

    changing_calls: ClassVar[frozenset[str]] = CHANGING_CALLS

    def __init__(self, rules: Rules, picture: Bucket | None = None, lag: int = 0) -> None:
        self.calls = ModelCalls(rules, picture)
        self._shown = intercept(self.calls, StaleLists(self.calls, lag)) if lag else self.calls

    def process(self, interceptor: Interceptor | None = None) -> Process:
        """See ``World.process``."""
        return _process(self._shown if interceptor is None else intercept(self._shown, interceptor))

    def onlooker(self) -> Process:
        """See ``World.onlooker``."""
        return _process(self.calls)

    def now(self) -> Bucket:
        """See ``World.now``."""
        return without_clock(self.calls.picture())

    def survivors(self) -> list[Bucket]:
        """See ``World.survivors``: what was acknowledged is durable."""
        return [self.now()]

    def take(self) -> dict[str, bytes]:
        """See ``World.take``."""
        taken = self.now().finished()
        for path in taken:
            self.calls.delete(f"base/{path}")
        return taken

    def end_process(self) -> None:
        """See ``World.end_process``: no process holds anything."""

    def close(self) -> None:
        """See ``World.close``."""
        assert all(key.startswith("base/") for key, _ in self.calls.picture().objects)


def _process(calls: ModelCalls) -> Process:
    this_process().traits.clear()
    return Process("s3://model/base", lambda url, _options: S3Store(url, OPTIONS, calls=calls))


class Objects:
    """Buckets of a server.

    Args:
        rules: What it does its own way.
        lag: How many changes lists are behind, at most.
    """

    def __init__(self, rules: Rules, lag: int = 0) -> None:
        self._rules = rules
        self._lag = lag

    def world(self, picture: Bucket | None = None) -> ObjectWorld:
        """See ``Kind.world``."""
        return ObjectWorld(self._rules, picture, self._lag)


def make_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let upload parts be as small as the model allows, and no call wait for rivals that there are not."""
    monkeypatch.setattr(handle, "LEAST_PIECE_BYTES", LEAST_PIECE_BYTES)
    monkeypatch.setattr(handle, "_GROUP_BYTES", LEAST_PIECE_BYTES)
    monkeypatch.setattr(stream, "LEAST_PIECE_BYTES", LEAST_PIECE_BYTES)
    monkeypatch.setattr(requests, "_RIVALS_ARE_DONE_AFTER_S", 0.0)


class StaleLists:
    """An interceptor that answers lists as they were some changes ago, and names some keys twice.

    Each list is one change nearer to what is there, so that a caller that asks often enough learns it.

    Args:
        calls: The bucket.
        lag: How many changes a list is behind, at most.
    """

    def __init__(self, calls: ModelCalls, lag: int) -> None:
        self._calls = calls
        self._lag = lag
        self._past = [calls.picture()]

    def around(self, call: Call, proceed: Callable[[], object]) -> object:
        """Do the call, or answer it from the past."""
        if call.name != "list_page":
            result = proceed()
            if call.name in CHANGING_CALLS:
                self._past = [*self._past, self._calls.picture()][-self._lag - 1 :]
            return result
        shown = self._past.pop(0) if len(self._past) > 1 else self._past[0]
        page = ModelCalls(self._calls.rules, shown).list_page(*call.arguments, **call.keywords)  # type: ignore[arg-type]
        return page._replace(objects=[*page.objects, *page.objects[:1]], prefixes=[*page.prefixes[:1], *page.prefixes])
