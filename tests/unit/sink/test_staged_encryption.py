"""Encrypted Parquet parts: a stage is not encrypted, so they are staged only where that is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from encrypted_parquet import decrypted_ids, encryption, is_encrypted
from staged_streams import stages_in

import partfile as pf
from partfile.errors import ConfigError, NotReady
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


def write_rows(sink: pf.FileSink) -> None:
    """Three rows, a checkpoint, and a clean end."""
    with sink.local() as out:
        out.write(ROWS)
        out.checkpoint()


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


@pytest.mark.parametrize("columnar", ["staged", "per_checkpoint"])
def test_what_the_keys_are_fetched_from_is_down(tmp_path: Path, columnar: str) -> None:
    """Whoever reads the error knows which option it is; the rows come again, or wait, and nothing lies in the clear."""

    def fail() -> Any:
        raise ConnectionError("no route to the key service")

    options: dict[str, Any] = {"format": ParquetFormat(encryption=fail), "columnar": columnar}
    with pytest.raises(NotReady) as told, pf.FileSink(tmp_path, uid="life", **options).local() as out:
        out.write(pa.RecordBatch.from_pydict({"id": [1]}))
    if columnar == "per_checkpoint":
        assert "function encryption of the Parquet format has failed: ConnectionError" in told.value.message
    assert finished(tmp_path) == []
    with pf.FileSink(tmp_path, uid="life", **options | {"format": ParquetFormat(encryption=encryption)}).local() as out:
        if columnar == "per_checkpoint":
            out.write(pa.RecordBatch.from_pydict({"id": [1]}))
    (path,) = finished(tmp_path)
    assert is_encrypted(path)
    assert decrypted_ids(path) == [1]


@pytest.mark.parametrize("error", [TypeError, AttributeError, NameError, ModuleNotFoundError])
@pytest.mark.parametrize("columnar", ["staged", "per_checkpoint"])
def test_a_function_that_is_wrong_stops_the_sink(tmp_path: Path, columnar: str, error: type[Exception]) -> None:
    """No wait mends it, and rows would be staged unseen; a start with one that works has what was staged."""

    def wrong() -> Any:
        raise error("a slip")

    options: dict[str, Any] = {"columnar": columnar}
    sink = pf.FileSink(tmp_path, uid="secrets", format=ParquetFormat(encryption=wrong), **options)
    with pytest.raises(ConfigError, match=f"function encryption .* has failed: {error.__name__}: a slip") as told:
        write_rows(sink)
    assert "Mend the function" in told.value.hint
    with encrypting_sink(tmp_path, **options).local() as out:
        if columnar == "per_checkpoint":
            out.write(ROWS)
    (path,) = finished(tmp_path)
    assert decrypted_ids(path) == [1, 2, 3]


def test_keys_of_another_kind_are_refused(tmp_path: Path) -> None:
    """By the name of the option, and with what it has to return."""
    options: dict[str, Any] = {"format": ParquetFormat(encryption=lambda: 5), "columnar": "per_checkpoint"}
    with (
        pytest.raises(ConfigError, match="encryption of the Parquet format returns int") as told,
        pf.FileSink(tmp_path, uid="life", **options).local() as out,
    ):
        out.write(pa.RecordBatch.from_pydict({"id": [1]}))
    assert "file_encryption_properties" in told.value.hint
