"""Readers that poll the base path all the while: no partial, staged, changed or vanishing file, no row twice."""

from __future__ import annotations

import json
import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

from support.spark.streams import finished

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    Seen = tuple[int, int, int]


class Polling(ABC):
    """Looks again and again on a thread of its own, and once more at the end of the ``with`` block that it is used in.

    Args:
        pause_s: Between two looks.
        away: What a look may raise, for the server may be away.
    """

    def __init__(self, pause_s: float, away: tuple[type[Exception], ...] = ()) -> None:
        self._pause_s = pause_s
        self._away = away
        self._problems: list[str] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.rounds = 0

    @abstractmethod
    def _look(self) -> None:
        """Look at what is visible now, and note problems."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join()
        if kind is None:
            self._look()
            assert not self._problems, self._problems
            assert self.rounds > 1

    def _run(self) -> None:
        while not self._stopped.wait(self._pause_s):
            try:
                self._look()
            except self._away:
                continue
            self.rounds += 1


class Watcher(Polling):
    """Looks at every visible file.

    Args:
        base: The base path of a JSON sink whose rows have a unique ``id``.
    """

    def __init__(self, base: Path) -> None:
        super().__init__(pause_s=0.05)
        self._base = base
        self._seen: dict[Path, Seen] = {}
        self._ids: set[int] = set()

    def _look(self) -> None:
        present = finished(self._base)
        self._problems += [f"{path} vanished" for path in self._seen if path not in present]
        for path in present:
            status = path.stat()
            now = (status.st_ino, status.st_size, status.st_mtime_ns)
            if path not in self._seen:
                self._read(path)
            elif self._seen[path] != now:
                self._problems.append(f"{path} changed from {self._seen[path]} to {now}")
            self._seen[path] = now

    def _read(self, path: Path) -> None:
        data = path.read_bytes()
        if not data.endswith(b"\n"):
            self._problems.append(f"{path} ends inside a row")
            return
        ids = [json.loads(line)["id"] for line in data.splitlines()]
        doubled = [row for row in ids if row in self._ids]
        if doubled or len(set(ids)) < len(ids):
            self._problems.append(f"{path} holds rows that are elsewhere or twice: {doubled[:5]}")
        self._ids.update(ids)


class Consumer(Watcher):
    """Moves each file away as soon as it is visible, after it has read it as a watcher does.

    Args:
        base: As of ``Watcher``.
        place: Where the files go, on the same file system.
    """

    def __init__(self, base: Path, place: Path) -> None:
        super().__init__(base)
        self._place = place
        place.mkdir()

    def _look(self) -> None:
        for path in finished(self._base):
            self._read(path)
            path.rename(self._place / f"{self.rounds}-{path.parent.name}-{path.name}")
