"""Ports for the servers of tests."""

from __future__ import annotations

import random
import socket
from pathlib import Path


def free_port() -> int:
    """A port that nobody listens on, outside the range that the kernel gives to outgoing connections.

    Inside it a client that retries while the server is down can be given that very port, and keep it.
    """
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    # Seeded by the system: pytest-randomly would give the same ports to two runs with one seed.
    numbers = random.SystemRandom()
    while True:
        port = numbers.randrange(10_000, low) if low > 11_000 else 0
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
