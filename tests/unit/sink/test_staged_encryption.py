"""Encrypted Parquet parts: a stage is not encrypted, so they are staged only where that is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from encrypted_parquet import decrypted_ids, encryption, is_encrypted
from staged_streams import stages_in

import partfile as pf
from partfile.filesystems.errors import ConfigError
from partfile.writers.parquet import ParquetFormat

if TYPE_CHECKING:
    from pathlib import Path

ROWS = pa.RecordBatch.from_pydict({"id": [1, 2, 3]})


def encrypting_sink(base: Path, **options: Any) -> pf.FileSink:
    return pf.FileSink(base, uid="secrets", format=ParquetFormat(encryption=encryption), **options)


def leave_a_stage(base: Path) -> None:
    """A sink that writes three rows, takes a checkpoint and dies."""
    out = encrypting_sink(base, columnar="staged").local().open()
    out.write(ROWS)
    out.checkpoint()
    out.close()
    assert len(stages_in(base)) == 1


def finished(base: Path) -> list[Path]:
    return sorted(base.glob("*.parquet"))


def test_the_operator_encrypts_what_it_encodes(tmp_path: Path) -> None:
    """The stage's recipe has no keys: the sink's own format lends them."""
    with encrypting_sink(tmp_path, columnar="staged").local() as out:
        out.write(ROWS)
        out.checkpoint()
        assert len(stages_in(tmp_path)) == 1
    assert [is_encrypted(path) for path in finished(tmp_path)] == [True]
    assert decrypted_ids(finished(tmp_path)[0]) == [1, 2, 3]


def test_a_restart_encrypts_what_its_predecessor_staged(tmp_path: Path) -> None:
    """The coordinator has the same format; one without encryption is refused, and nothing is published."""
    leave_a_stage(tmp_path)
    with pytest.raises(ConfigError, match="to be encrypted"):
        pf.FileSink(tmp_path, uid="secrets", format="parquet").local().open()
    assert finished(tmp_path) == []
    encrypting_sink(tmp_path).local().open().close()
    assert [is_encrypted(path) for path in finished(tmp_path)] == [True]


def test_encrypted_parts_are_not_staged_unless_that_is_written_out(tmp_path: Path) -> None:
    """By default nothing of them is on disk in the clear: a file a checkpoint."""
    with encrypting_sink(tmp_path).local() as out:
        for _ in range(2):
            out.write(ROWS)
            out.checkpoint()
        assert stages_in(tmp_path) == []
    assert [is_encrypted(path) for path in finished(tmp_path)] == [True, True]
