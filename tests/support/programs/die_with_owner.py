"""Become another program that dies with its owner: ``python die_with_owner.py OWNER_PID PROGRAM [ARGUMENT ...]``.

The kernel then sends SIGKILL when the owner ends, however it ends. Linux only.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask for the signal, then become the program; this process id stays."""
    owner, *command = sys.argv[1:]
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
    # An owner that was gone before the signal was asked for would never be missed.
    if os.getppid() == int(owner):
        os.execvp(command[0], command)  # noqa: S606 - there is no shell to want.


if __name__ == "__main__":
    main()
