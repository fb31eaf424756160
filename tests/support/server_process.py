"""One server of a test as a process of its own: started, killed, paused, restarted; it dies with this process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_DIE_WITH_OWNER = str(Path(__file__).with_name("die_with_owner.py"))
_LOG_TAIL_BYTES = 4000


class MissingProgram(RuntimeError):
    """A program that a server needs is not on this machine; the message says what to install."""


class ServerProcess:
    """A server that may be started again after it was killed, with the same command and the same log.

    Args:
        name: As messages show it.
        command: Program and arguments.
        log: File that takes what the server prints, over all its lives.
        environment: The server's whole environment.
    """

    def __init__(self, name: str, command: Sequence[str], *, log: Path, environment: Mapping[str, str]) -> None:
        self.name = name
        self._command = command
        self._log = log
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        # The kernel counts as owner the thread that started a process. This one lives as long as this object.
        self._starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"starts {name}")

    @property
    def process_id(self) -> int:
        """The id of the running process."""
        return self._running().pid

    @property
    def is_running(self) -> bool:
        """Whether it has been started and has not ended; a paused one counts as running."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it; returns before it is ready."""
        assert not self.is_running, f"{self.name} runs already"
        self._process = self._starter.submit(self._start).result()

    def kill(self) -> None:
        """End it by SIGKILL, paused or not, and wait until it is gone; nothing happens if it does not run."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def pause(self) -> None:
        """Stop it where it stands (SIGSTOP): its connections stay open, and nobody answers once this returns."""
        process = self._running()
        process.send_signal(signal.SIGSTOP)
        # Whoever waits for a turn on the processor may not have heard yet, and answer.
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Let it go on (SIGCONT)."""
        self._running().send_signal(signal.SIGCONT)

    def log_tail(self) -> str:
        """The end of its log, for messages."""
        text = self._log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace") if self._log.exists() else ""
        return f"--- end of {self._log}\n{text}"

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, f"{self.name} has not been started"
        assert self._process.poll() is None, f"{self.name} has ended\n{self.log_tail()}"
        return self._process

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-I", "-S", _DIE_WITH_OWNER, str(os.getpid()), *self._command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(self._environment),
            )
