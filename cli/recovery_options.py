"""The options of every verb that recovers a sink: how parts are cut, and whether missing ones are given up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from partfile.filesystems.errors import ConfigError

if TYPE_CHECKING:
    from partfile.filesystems.port import Cut

CutWord = Annotated[
    str, typer.Option("--cut", metavar="HOW", help="auto, truncate, rewrite or valid-length, as the sink's option.")
]
AcceptMissing = Annotated[
    bool, typer.Option("--accept-missing", help="Give up parts that a checkpoint vouches for and that are gone.")
]


def cut_of(text: str) -> Cut:
    """The way to cut that a word names; raises ConfigError."""
    ways: dict[str, Cut] = {
        "auto": "auto",
        "truncate": "truncate",
        "rewrite": "rewrite",
        "valid-length": "valid-length",
    }
    if text not in ways:
        raise ConfigError(f"--cut {text!r} is no way to cut a part", hint=f"There are {', '.join(ways)}.")
    return ways[text]
