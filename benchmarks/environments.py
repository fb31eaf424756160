"""Peers in environments of their own: found, or installed once, since ours cannot share what they depend on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_INSTALL_TIMEOUT_S = 900
_RUN_TIMEOUT_S = 1800


class PeerIsMissing(Exception):
    """A peer cannot be had here; the message says why."""


@dataclass(frozen=True, slots=True)
class Environment:
    """The virtual environment of one peer.

    Args:
        name: Of the peer; ``PARTFILE_<NAME>`` may name another directory.
        requirement: What pip installs.
        module: What can be imported then.
        note: How much that is.
    """

    name: str
    requirement: str
    module: str
    note: str

    @property
    def home(self) -> Path:
        """Its directory."""
        version = self.requirement.rpartition("==")[2].removesuffix(".*")
        own = Path.home() / ".cache" / "partfile" / f"{self.name}-{version}"
        return Path(os.environ.get(f"PARTFILE_{self.name.upper()}", own))

    @property
    def python(self) -> str:
        """Its interpreter."""
        return str(self.home / "bin" / "python")

    def ensure(self, say: Callable[[str], None]) -> None:
        """Find the peer, or install it once.

        Raises:
            PeerIsMissing: It is not there and could not be installed.
        """
        if self._is_there():
            return
        say(f"Installing {self.requirement} into {self.home} (once, {self.note})")
        commands = (
            [sys.executable, "-m", "venv", str(self.home)],
            [self.python, "-m", "pip", "install", "-qq", self.requirement],
        )
        for command in commands:
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_TIMEOUT_S, check=False)
            except (OSError, subprocess.TimeoutExpired) as error:
                raise PeerIsMissing(f"{self.requirement} could not be installed: {error}") from error
            if done.returncode:
                reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
                raise PeerIsMissing(f"{self.requirement} could not be installed: {reason}")

    def answer(self, script: str, *arguments: object) -> dict[str, Any]:
        """What a script of this directory prints as the last line, one document of JSON."""
        path = Path(__file__).parent / script
        command = [self.python, str(path), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_RUN_TIMEOUT_S, check=False)
        if done.returncode:
            raise SystemExit(f"{script} has failed: {done.stderr.strip()[-2000:]}")
        found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return found

    def _is_there(self) -> bool:
        try:
            done = subprocess.run([self.python, "-c", f"import {self.module}"], capture_output=True, check=False)
        except OSError:
            return False
        return done.returncode == 0


FLINK = Environment("flink", "apache-flink==2.3.*", "pyflink", "some 800 MB, a few minutes")
QUIX = Environment("quix", "quixstreams==3.28.*", "quixstreams", "some 100 MB")
BYTEWAX = Environment("bytewax", "bytewax[kafka]==0.21.*", "bytewax.connectors.kafka", "some 40 MB")
