"""One server of a test as a process of its own: started, killed, paused, restarted; it dies with this process."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


# Ports for the servers of tests.


def is_free(port: int) -> bool:
    """Whether a server could listen on a port now."""
    with socket.socket() as probe:
        # As servers do: connections that are at their end do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


_RESERVED: dict[int, IO[bytes]] = {}
"""Ports that this process has given out, with the locks that keep every other test process from giving them out."""


def free_port() -> int:
    """A port that no process listens on and no other test process is given, until this one ends.

    It lies outside the range that the kernel gives to outgoing connections: inside it a client that retries while the
    server is down can be given that very port, and keep it. It is reserved, because a server binds it a second later,
    and not at all while a test has killed it.
    """
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    locks = Path(tempfile.gettempdir()) / f"partfile-test-ports-{os.getuid()}"
    locks.mkdir(exist_ok=True)
    # Seeded by the system: pytest-randomly would give the same ports to two runs with one seed.
    numbers = random.SystemRandom()
    while True:
        port = numbers.randrange(10_000, low if low > 11_000 else 60_000)
        lock = (locks / str(port)).open("ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            lock.close()
            continue
        _RESERVED[port] = lock
        return port


# Whether processes that this one does not wait for have ended.


def gone(process_ids: Iterable[int]) -> bool:
    """Whether none of these processes runs any more; one that has ended and was not waited for is gone."""
    return all(_is_gone(number) for number in process_ids)


def _is_gone(process_id: int) -> bool:
    try:
        state = Path(f"/proc/{process_id}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        # It may end between the opening of its file and the reading.
        return True
    return state.rpartition(")")[2].split()[0] == "Z"


def wait_until_gone(process_ids: Iterable[int], timeout_s: float = 240.0) -> None:
    """Wait until all of them have ended.

    Raises:
        AssertionError: Some had not; they have been killed, so that nothing is left behind.
    """
    deadline = time.monotonic() + timeout_s
    left = [number for number in process_ids if not gone([number])]
    while left and time.monotonic() < deadline:
        time.sleep(0.05)
        left = [number for number in left if not gone([number])]
    for number in left:
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
    assert not left, f"the processes {left} did not end by themselves"


_DIE_WITH_OWNER = str(Path(__file__).parents[1] / "programs" / "die_with_owner.py")
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
        """Stop it where it stands (SIGSTOP): its connections stay open, and nothing answers once this returns."""
        process = self._running()
        process.send_signal(signal.SIGSTOP)
        # A process that waits for a turn on the processor may not have heard yet, and answer.
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
