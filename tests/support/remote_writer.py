"""A writer of one part in a process of its own, told step by step what to do; it can be killed or made a zombie."""

from __future__ import annotations

import base64
import json
import os
import signal
from typing import TYPE_CHECKING, Any, Self

from partfile.filesystems.errors import PartfileError
from partfile.filesystems.port import PartHandle

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from partfile.filesystems.port import PartStream, Store


class RemoteWriter:
    """A forked process with a store of its own. Each step returns ``done``, or the error as text with its class first.

    Args:
        reopen: Opens the store, in that process.
    """

    def __init__(self, reopen: Callable[[], Store]) -> None:
        steps_read, steps_write = os.pipe()
        answers_read, answers_write = os.pipe()
        self.process_id = os.fork()
        if self.process_id == 0:
            try:
                os.close(steps_write)
                _serve(reopen, steps_read, answers_write)
            finally:
                os._exit(0)
        os.close(steps_read)
        os.close(answers_write)
        self._steps = os.fdopen(steps_write, "w")
        self._answers = os.fdopen(answers_read)

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
        if self.process_id:
            os.kill(self.process_id, signal.SIGKILL)
            os.waitpid(self.process_id, 0)
            self.process_id = 0
            self._steps.close()
            self._answers.close()

    def _do(self, step: str, argument: str = "") -> str:
        self._steps.write(json.dumps([step, argument]) + "\n")
        self._steps.flush()
        answer = self._answers.readline()
        assert answer, "the writer died"
        return str(json.loads(answer))


def _serve(reopen: Callable[[], Store], steps: int, answers: int) -> None:
    store = reopen()
    stream: PartStream | None = None
    for line in os.fdopen(steps):
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
        os.write(answers, json.dumps(answer).encode() + b"\n")


def _use(stream: Any, step: str, argument: str) -> None:
    if step == "write":
        stream.write(base64.b64decode(argument))
    else:
        getattr(stream, step)()
