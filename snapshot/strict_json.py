"""What JSON parsers let pass and no document of ours may hold: a name twice, numbers that are none, endless digits."""

from __future__ import annotations

import json
import math


def check_strict(data: bytes, *, most_digits: int | None = None) -> None:
    """Refuse JSON of which two readers could understand two things.

    Args:
        data: JSON in UTF-8.
        most_digits: Of an integer; None leaves it to Python, which takes 4300.

    Raises:
        ValueError: It is no JSON, or an object has a name twice, or a number is not finite or too long.
        RecursionError: It is nested too deeply.
    """

    def integer(digits: str) -> None:
        if most_digits is not None and len(digits) > most_digits:
            raise ValueError(f"it holds a number of {len(digits)} digits")

    json.loads(
        data,
        object_pairs_hook=_without_doubled_names,
        parse_int=integer,
        parse_float=_finite,
        parse_constant=_no_number,
    )


def _without_doubled_names(pairs: list[tuple[str, object]]) -> None:
    # A parser takes the last of two fields with one name, and whoever wrote two meant something else.
    names = {name for name, _ in pairs}
    if len(names) < len(pairs):
        raise ValueError(f"of the fields {sorted(names)} one is in it twice")


def _finite(digits: str) -> None:
    if not math.isfinite(float(digits)):
        raise ValueError(f"{digits[:40]} is not a finite number")


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is not a finite number")
