"""Draws the plots of docs/BENCHMARKS.md from a record: the same record gives the same bytes."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

import matplotlib as mpl

mpl.use("svg")

from matplotlib.figure import Figure as Canvas

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from records import Record

OURS, THEIRS = "#1b7837", "#8c96a8"
_SIZE_INCHES = (8.0, 3.6)
_STYLE: Any = {"svg.hashsalt": "partfile", "svg.fonttype": "none", "font.size": 9.0, "axes.axisbelow": True}
_SMOOTHED_BATCHES = 25
_SHOWN_TIMES_TYPICAL = 2.5


def draw_plots(record: Record, directory: Path) -> list[str]:
    """Draw every plot that the record has data for; returns their file names without ending."""
    directory.mkdir(parents=True, exist_ok=True)
    drawers: dict[str, Callable[[Record, Any], bool]] = {
        "throughput": draw_throughput,
        "file-sizes": draw_file_sizes,
        "latency": draw_latency,
        "metadata": draw_metadata,
    }
    drawn = []
    for name, draw in drawers.items():
        with mpl.rc_context(_STYLE):
            canvas = Canvas(figsize=_SIZE_INCHES, layout="constrained")
            if draw(record, canvas):
                canvas.savefig(directory / f"{name}.svg", format="svg", metadata={"Date": None, "Creator": None})
                drawn.append(name)
            else:
                (directory / f"{name}.svg").unlink(missing_ok=True)
    return drawn


def draw_throughput(record: Record, canvas: Any) -> bool:
    """Rows a second of each sink, shuffled and ordered rows side by side."""
    runs = counted(record, "throughput")
    orders = [order for order in ("shuffled", "ordered") if any(run["case"].startswith(order) for run in runs)]
    for place, order in enumerate(orders):
        axes = canvas.add_subplot(1, len(orders), place + 1)
        speeds = medians(runs, order, lambda run: run["rows"] / run["seconds"] / 1000)
        _bars(axes, speeds)
        axes.set_title(f"{order} rows")
        axes.set_xlabel("thousand rows a second")
    return bool(orders)


def draw_file_sizes(record: Record, canvas: Any) -> bool:
    """The sizes of the files that each sink leaves: smallest to largest, with the number of files."""
    latest = {run["case"]: run for run in counted(record, "throughput") if run["case"].startswith("shuffled")}
    shown = {case.removeprefix("shuffled "): run for case, run in latest.items() if run["file_bytes_deciles"]}
    if not shown:
        return False
    axes = canvas.add_subplot()
    for place, (name, run) in enumerate(reversed(shown.items())):
        sizes = [size / 1e6 for size in run["file_bytes_deciles"]]
        axes.plot(sizes, [place] * len(sizes), "|-", color=_colour(name), markersize=9)
        axes.annotate(f"  {run['files']} files", (sizes[-1], place), va="center")
    axes.set_yticks(range(len(shown)), list(reversed(shown)))
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("{x:g}")
    axes.margins(x=0.15)
    axes.set_xlabel("size of a file in MB: smallest, deciles, largest")
    return True


def draw_latency(record: Record, canvas: Any) -> bool:
    """How long each batch takes over a long stream, as a running median."""
    streams = record.suites.get("long", {}).get("extra", {}).get("batch_ms", {})
    if not streams:
        return False
    axes = canvas.add_subplot()
    for name, took_ms in streams.items():
        smooth = running_median(took_ms, _SMOOTHED_BATCHES)
        axes.plot(range(len(smooth)), smooth, label=name, color=_colour(name))
    # The first batches start everything up, and would press the rest flat.
    typical_ms = max(statistics.median(took_ms) for took_ms in streams.values())
    axes.set_ylim(0, _SHOWN_TIMES_TYPICAL * typical_ms)
    axes.set_xlabel("batch")
    axes.set_ylabel(f"ms, median of {_SMOOTHED_BATCHES}")
    axes.legend()
    return True


def draw_metadata(record: Record, canvas: Any) -> bool:
    """Bytes of metadata that each batch writes; Spark's sink compacts its log every tenth batch."""
    streams = record.suites.get("long", {}).get("extra", {}).get("metadata_bytes", {})
    plain = record.suites.get("history", {}).get("extra", {}).get("metadata_bytes", {})
    panels = [
        (title, lines)
        for title, lines in (("within Spark", streams), ("without Spark", {"partfile": plain} if plain else {}))
        if lines
    ]
    for place, (title, lines) in enumerate(panels):
        axes = canvas.add_subplot(1, len(panels), place + 1)
        for name, sizes in lines.items():
            numbers = sorted(map(int, sizes))
            axes.plot(numbers, [sizes[str(at)] / 1000 for at in numbers], label=name, color=_colour(name), linewidth=1)
        if len(lines) > 1:
            # What grows with history is soon a thousand times what does not.
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
        axes.set_title(title)
        axes.set_xlabel("batch")
        axes.set_ylabel("kB of metadata")
        axes.legend()
    return bool(panels)


def counted(record: Record, suite: str) -> list[dict[str, Any]]:
    """The runs of a suite that its figures count."""
    runs: list[dict[str, Any]] = record.suites.get(suite, {}).get("runs", [])
    return [run for run in runs if not run["discarded"]]


def medians(
    runs: Sequence[dict[str, Any]], prefix: str, value: Callable[[dict[str, Any]], float]
) -> dict[str, tuple[float, float, float]]:
    """For each case that begins with a word: the least, the median and the greatest value."""
    values: dict[str, list[float]] = {}
    for run in runs:
        if run["case"].startswith(f"{prefix} "):
            values.setdefault(run["case"].removeprefix(f"{prefix} "), []).append(value(run))
    return {name: (min(found), statistics.median(found), max(found)) for name, found in values.items()}


def running_median(values: Sequence[float], width: int) -> list[float]:
    """The median of each value and as many before it as there are, up to ``width`` of them."""
    return [statistics.median(values[max(0, place + 1 - width) : place + 1]) for place in range(len(values))]


def _bars(axes: Any, values: dict[str, tuple[float, float, float]]) -> None:
    names = sorted(values, key=lambda name: values[name][1])
    least, middle, greatest = zip(*(values[name] for name in names), strict=True)
    spread = [[value - low for value, low in zip(middle, least, strict=True)]]
    spread.append([high - value for value, high in zip(middle, greatest, strict=True)])
    axes.barh(names, middle, xerr=spread, color=[_colour(name) for name in names], error_kw={"linewidth": 1})


def _colour(name: str) -> str:
    return OURS if name.startswith("partfile") else THEIRS
