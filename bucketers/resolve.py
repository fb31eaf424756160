"""From what a user passes to a bucketer."""

from __future__ import annotations

from typing import Any

from partfile.bucketers.function import FunctionBucketer
from partfile.bucketers.port import Bucketer
from partfile.filesystems.errors import ConfigError


def resolve_bucketer(bucketer: Any) -> Bucketer:
    """Return a bucketer, or a callable as one.

    Raises:
        ConfigError: It is neither.
    """
    if isinstance(bucketer, Bucketer):
        return bucketer
    if callable(bucketer) and not isinstance(bucketer, type):
        return FunctionBucketer(bucketer)
    raise ConfigError(
        f"bucketer={bucketer!r} is neither a bucketer nor a function",
        hint="Pass for instance partfile.HiveBucketer('country'), or a function of a pyarrow.RecordBatch.",
    )
