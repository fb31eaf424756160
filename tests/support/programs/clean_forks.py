"""Processes that are forked from one which has never used HDFS, so that nothing of a client is inherited."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from types import TracebackType


class CleanForks:
    """Runs functions of a module in processes of their own, one after the other; use it in a ``with`` block.

    Args:
        module: The module, which must not use HDFS when it is imported.
    """

    def __init__(self, module: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def run(self, function: str, **arguments: Any) -> int:
        """Run a function with JSON arguments in a process of its own; return its exit code, negative for a signal."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([function, arguments]) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


def _serve(module: str) -> None:
    functions = import_module(module)
    for line in sys.stdin:
        function, arguments = json.loads(line)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                getattr(functions, function)(**arguments)
                code = 0
            except BaseException:  # noqa: BLE001 - the child must never go on with the loop.
                traceback.print_exc()
            finally:
                os._exit(code)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)  # noqa: T201 - the answer.


if __name__ == "__main__":
    _serve(sys.argv[1])
