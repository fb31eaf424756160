"""Sinks whose Parquet parts are staged, and what they leave on a local disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from partfile.errors import NotReady
from partfile.stores.local.store import LocalStore
from partfile.writers.parquet import ParquetFormat
from support.sinks.life_cycle import LONG, batch, finished_files, make_sink, rows_of

if TYPE_CHECKING:
    from io import BufferedReader
    from pathlib import Path

    import pytest

    from partfile.sink.file_sink import FileSink
    from partfile.stores.base import PartHandle


STAGED: dict[str, Any] = {"format": "parquet", "columnar": "staged"}


class StagingFiles:
    """Whether staging files can be read just now, by any store that was opened here."""

    def __init__(self) -> None:
        self.are_readable = True

    def open_store(self, url: str, _options: object) -> LocalStore:
        """A store on a local directory."""
        return _Store(url, self)


class _Store(LocalStore):
    def __init__(self, url: str, staging_files: StagingFiles) -> None:
        super().__init__(url)
        self._staging_files = staging_files

    def open_staging_file(self, handle: PartHandle, *, fences: bool = False) -> BufferedReader:
        if not self._staging_files.are_readable:
            raise NotReady("not now", path=handle.path_of(handle.in_progress))
        return super().open_staging_file(handle, fences=fences)


def staged_sink(base: Path, **options: Any) -> FileSink:
    """A sink whose parts stay open until something closes them all, unless its options say otherwise."""
    return make_sink(base, **({"rolling": LONG} | STAGED | options))


def staging_files_in(base: Path) -> list[Path]:
    """The files of staging files, spent ones among them."""
    return sorted(base.glob("**/_*.parquet.*.in-progress"))


def pending_in(base: Path) -> list[Path]:
    """Encoded files that have not been published."""
    return sorted(base.glob("**/_*.parquet.*.pending"))


def names(first: int, end: int) -> dict[str, int]:
    """Each of these rows once."""
    return {f"row-{number:04d}": 1 for number in range(first, end)}


def finished_rows(base: Path) -> dict[str, int]:
    """How often each row is in a finished file."""
    return dict(rows_of(finished_files(base)))


def checkpoint_ids(base: Path) -> list[int]:
    """Ids of the checkpoints that are there, oldest first."""
    return sorted(int(path.parent.name[4:]) for path in base.glob("_partfile/life/chk-*/_metadata"))


def newest_checkpoint(base: Path) -> Path:
    """The directory of the newest checkpoint."""
    return base / "_partfile" / "life" / f"chk-{checkpoint_ids(base)[-1]}"


def crashed(base: Path, **options: Any) -> None:
    """A sink that wrote four rows, completed a checkpoint, wrote three more and died."""
    out = staged_sink(base, **options).local().open()
    out.write(batch(0, 4), position=4)
    out.checkpoint()
    out.write(batch(4, 3), position=7)
    out.close()


BAD: dict[str, Any] = {"compression": "snappy", "compression_level": 5}


def leave_staging_files_of_a_refused_spec(base: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    """Four rows in two staging files that were begun before Parquet's levels were asked for when a sink is made."""
    with monkeypatch.context() as patch:
        patch.setattr("partfile.writers.parquet.check_level", lambda *_: None)
        patch.setattr("partfile.writers.parquet.check_columns", lambda *_: None)
        out = staged_sink(base, format=ParquetFormat(**BAD, **options)).local().open()
        out.write(batch(0, 4))
        out.checkpoint()
        out.close()
