"""What the crash harness kills of sinks of other formats than plain text: binary blocks, compressed members, ORC."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from crash_scenarios import ROWS, Scenario, nothing, write_with_tail
from life_cycle import LONG, continue_to, run_to_the_end

if TYPE_CHECKING:
    from crash_worlds import Process

FORMATS: dict[str, dict[str, Any]] = {
    "avro": {"format": "avro", "compression": "snappy"},
    "json, zstd": {"format": "json", "compression": "zstd"},
    "csv, gzip": {"format": "csv", "compression": "gzip"},
    "orc": {"format": "orc", "columnar": "staged"},
}
CUTS = {"avro": ("truncate", "rewrite", "valid-length"), "json, zstd": ("rewrite",), "csv, gzip": ("valid-length",)}
"""How the tail of a part is cut in a restore; a stage has but one way."""


def _long_parts(name: str) -> Scenario:
    """Three checkpoints over the same parts, and a clean end."""
    options = FORMATS[name]
    return _of(f"long parts, {name}", options, lambda process: run_to_the_end(_sink(process, options), ROWS), nothing)


def _restored(name: str, cut: str) -> Scenario:
    """A start that cuts what came after the last checkpoint, and goes on."""
    options = FORMATS[name] | {"cut": cut}

    def to_the_end(process: Process) -> None:
        continue_to(_sink(process, options), ROWS)

    return _of(f"restored {name}, {cut}", options, to_the_end, lambda process: write_with_tail(process, **options))


def _of(name: str, options: dict[str, Any], life: Any, seed: Any) -> Scenario:
    return Scenario(
        name,
        life,
        seed,
        lambda process: _sink(process, options).local().open().close(),
        lambda process: continue_to(_sink(process, options), ROWS),
        has_stages="columnar" in options,
    )


def _sink(process: Process, options: dict[str, Any]) -> Any:
    return process.sink(rolling=LONG, **options)


FORMAT_SCENARIOS = [
    *(_long_parts(name) for name in FORMATS),
    *(_restored(name, cut) for name, cuts in CUTS.items() for cut in cuts),
    _restored("orc", "auto"),
]
