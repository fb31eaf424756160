"""A writer of one part in a process of its own, told step by step what to do; it can be killed or made a zombie."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Self

from partfile.errors import PartfileError
from partfile.stores.base import PartHandle
from partfile.stores.registry import open_store

if TYPE_CHECKING:
    from types import TracebackType

    from partfile.stores.base import PartStream


class RemoteWriter:
    """A process with a store of its own. Each step returns ``done``, or the error as text with its class first.

    Not forked from this one: a client of HDFS does not survive that.

    Args:
        url: The store.
        storage_options: Its options.
    """

    def __init__(self, url: str, storage_options: dict[str, object]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, url, json.dumps(storage_options)],
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
        self.kill()

    def create(self, handle: PartHandle) -> str:
        """Create the part."""
        return self._do("create", handle.model_dump_json())

    def resume(self, handle: PartHandle) -> str:
        """Open the part for appending."""
        return self._do("resume", handle.model_dump_json())

    def write(self, data: bytes) -> str:
        """Add bytes."""
        return self._do("write", base64.b64encode(data).decode())

    def persist(self) -> str:
        """Make them durable."""
        return self._do("persist")

    def close_for_commit(self) -> str:
        """Make the part pending."""
        return self._do("close_for_commit")

    def kill(self) -> None:
        """SIGKILL, and wait for the end; may be called twice."""
        self._process.kill()
        self._process.communicate()

    def _do(self, step: str, argument: str = "") -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([step, argument]) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the writer died"
        return str(json.loads(answer))


def _serve(url: str, storage_options: dict[str, object]) -> None:
    store = open_store(url, storage_options)
    stream: PartStream | None = None
    for line in sys.stdin:
        step, argument = json.loads(line)
        answer = "done"
        try:
            if step in {"create", "resume"}:
                stream = getattr(store, step)(PartHandle.model_validate_json(argument))
            else:
                _use(stream, step, argument)
        except PartfileError as error:
            answer = f"{type(error).__name__}: {error}"
        except BaseException as error:  # noqa: BLE001 - the test must see it, for this process has no other voice.
            answer = f"unexpected {error!r}"
        print(json.dumps(answer), flush=True)  # noqa: T201 - the answer.


def _use(stream: Any, step: str, argument: str) -> None:
    if step == "write":
        stream.write(base64.b64decode(argument))
    else:
        getattr(stream, step)()


if __name__ == "__main__":
    _serve(sys.argv[1], json.loads(sys.argv[2]))
