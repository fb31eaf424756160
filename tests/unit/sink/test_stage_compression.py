"""What stages are compressed with: by where they lie, unless the user says; and a stage goes on whatever it was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import partfile as pf
from partfile.stores.local.store import LocalStore

if TYPE_CHECKING:
    from pathlib import Path

_ROWS = pa.record_batch({"n": range(5000), "s": ["the same words again and again"] * 5000})


def _sink(base: Path, **options: Any) -> pf.FileSink:
    return pf.FileSink(base, uid="u", format="parquet", on_stop="keep", **options)


def _stage_bytes(base: Path) -> int:
    (stage,) = (path for path in base.glob("_part-*") if path.is_file())
    return stage.stat().st_size


def _staged_bytes(base: Path, **options: Any) -> int:
    with _sink(base, **options).local() as out:
        out.write(_ROWS)
        out.checkpoint()
        return _stage_bytes(base)


def test_a_local_stage_is_not_compressed_unless_asked_for(tmp_path: Path) -> None:
    """On a local disk the stage holds the buffers as they are; each codec makes it a good deal smaller."""
    plain = _staged_bytes(tmp_path / "auto")
    assert plain > _ROWS.nbytes
    assert _staged_bytes(tmp_path / "none", stage_compression="none") == plain
    for codec in ("lz4", "zstd"):
        assert _staged_bytes(tmp_path / codec, stage_compression=codec) < plain / 2


def test_a_stage_that_travels_is_compressed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where bytes go over a network, as the store says, auto is lz4."""
    monkeypatch.setattr(LocalStore, "stages_travel", property(lambda _store: True))
    compressed = _staged_bytes(tmp_path / "auto")
    assert compressed == _staged_bytes(tmp_path / "lz4", stage_compression="lz4")
    assert compressed != _staged_bytes(tmp_path / "none", stage_compression="none")


def test_a_stage_goes_on_with_another_compression(tmp_path: Path) -> None:
    """Each message says what it is compressed with: runs with three settings make one file with all rows."""
    for codec in ("zstd", "none", "lz4"):
        with _sink(tmp_path, stage_compression=codec).local() as out:
            out.write(_ROWS)
            out.checkpoint()
    with pf.FileSink(tmp_path, uid="u", format="parquet").local():
        pass
    files = list(tmp_path.glob("part-*.parquet"))
    assert pf.read(tmp_path, format="parquet").to_table().num_rows == 3 * len(_ROWS)
    assert len(files) <= 3


def test_an_unknown_compression_is_refused(tmp_path: Path) -> None:
    """The option says what there is."""
    with pytest.raises(pf.ConfigError, match=r"stage_compression.*'zstd'"):
        _sink(tmp_path, stage_compression="brotli")
