"""What a reader makes of a listing, decided without any file."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partfile.errors import ConfigError, PartMissing, SnapshotCorrupt
from partfile.readers.files import (
    DEFAULT_SIDECARS,
    ListedFile,
    SidecarNaming,
    finished_files,
    partition_names,
    partition_shape,
    partition_values,
    readable_bytes,
)
from partfile.readers.lines import quoted_lines, records
from partfile.sink.policies import PartNaming, PartNumber

HANDLE = PartNaming().handle("day=1", PartNumber("0" * 8, 0, 0), suffix=".json", token="0" * 32)


@pytest.mark.fault("H3")
def test_only_finished_files_are_seen() -> None:
    """Whatever has a segment that begins with ``_`` or ``.`` is hidden: staged files, sidecars, state."""
    final = HANDLE.path_of(HANDLE.name)
    hidden = [HANDLE.path_of(name) for name in (HANDLE.in_progress, HANDLE.pending, HANDLE.sidecar)]
    hidden += ["_partfile/life/chk-1/_metadata", "_tmp/part-1.json", "a/.hidden/part-1.json", ".part-1.json.crc"]
    seen = finished_files([(path, 9) for path in [final, *hidden]], set(), DEFAULT_SIDECARS)
    assert list(seen) == [ListedFile(final, 9, None)]


def test_a_sidecar_is_found_by_the_later_listing() -> None:
    """The sidecar that the sink would make belongs to the file, whichever affixes both were told."""
    named = PartNaming(valid_length_prefix=".v_", valid_length_suffix=".len")
    part = named.handle("b", PartNumber("0" * 8, 0, 0), suffix=".csv", token="0" * 32)
    final, sidecar = part.path_of(part.name), part.path_of(part.sidecar)
    naming = SidecarNaming(".v_", ".len")
    assert next(finished_files([(final, 9)], {final, sidecar}, naming)).sidecar == sidecar
    assert next(finished_files([(final, 9)], {final, sidecar}, DEFAULT_SIDECARS)).sidecar is None
    assert DEFAULT_SIDECARS.sidecar_of(HANDLE.path_of(HANDLE.name)) == HANDLE.path_of(HANDLE.sidecar)
    with pytest.raises(ConfigError, match="hides no sidecar"):
        SidecarNaming("v")


@given(length=st.integers(min_value=0, max_value=2**62))
def test_a_length_comes_back(length: int) -> None:
    """Every length that a store writes is read as it is."""
    assert DEFAULT_SIDECARS.length_in(str(length).encode("ascii"), "s") == length


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"12\n",
        b" 12",
        b"+12",
        b"-1",
        b"012",
        b"1_0",
        b"0x1",
        b"1e3",
        b"\x00\x0512345",
        b"9" * 20,
        "\u0661".encode(),
    ],
)
@pytest.mark.fault("M6")
def test_a_damaged_sidecar_is_an_error_that_names_it(content: bytes) -> None:
    """Nothing but plain decimal digits is a length."""
    with pytest.raises(SnapshotCorrupt, match=r"'day=1/_x\.valid-length'") as caught:
        DEFAULT_SIDECARS.length_in(content, "day=1/_x.valid-length")
    assert caught.value.path == "day=1/_x.valid-length"


@pytest.mark.fault("F10")
def test_a_file_shorter_than_its_valid_length_is_missing_data() -> None:
    """Equal is whole, longer is cut, shorter is an error that names both lengths."""
    file = ListedFile("b/part-1", 10, "b/_part-1.valid-length")
    assert [readable_bytes(file, length) for length in (None, 10, 4, 0)] == [10, 10, 4, 0]
    with pytest.raises(PartMissing, match="'b/part-1' has 10 bytes, and 11 were committed"):
        readable_bytes(file, 11)


def test_partition_columns_are_those_of_the_directories() -> None:
    """Names and values are unescaped, a missing value is null, and other directories make no column."""
    path = "y=2013/name=a%2Fb %25/part=0.json"
    assert partition_names(path) == ("y", "name")
    assert partition_names("plain/part=0") == ()
    assert partition_values(path) == ["2013", "a/b %"]
    assert partition_values("y=__HIVE_DEFAULT_PARTITION__/p") == [None]
    assert partition_shape([path, "y=1/name=2/p"]) == ("y", "name")
    assert partition_shape(["p", "plain/p", "a/b/p"]) == partition_shape([]) == ()


@pytest.mark.parametrize("paths", [["y=1/p", "p"], ["y=1/p", "z=1/p"], ["y=1/x/p"], ["y=1/p", "bad/p"]])
def test_directories_of_several_shapes_are_refused(paths: list[str]) -> None:
    """Spark would refuse them in words of its own, or pass files over."""
    with pytest.raises(ConfigError, match=r"of several shapes|some are name=value"):
        partition_shape(paths)


class Pieces:
    """A file that gives few bytes at a time, as a remote one may."""

    def __init__(self, data: bytes, size: int) -> None:
        self._data, self._size = data, size

    def read(self, _size: int) -> bytes:
        """The next piece."""
        piece, self._data = self._data[: self._size], self._data[self._size :]
        return piece


@given(lines=st.lists(st.text().filter(lambda line: "\n" not in line)), size=st.integers(1, 9), ended=st.booleans())
def test_lines_come_one_by_one(lines: list[str], size: int, ended: bool) -> None:
    """Records of text are its lines, however the bytes arrive and whether or not the last line has ended."""
    data = "\n".join(lines).encode() + (b"\n" if ended and lines else b"")
    expected = data.removesuffix(b"\n").split(b"\n") if data else []
    assert list(records(Pieces(data, size), is_csv=False)) == expected


@given(
    cells=st.lists(st.lists(st.text(alphabet='ab",\n\r '), min_size=1, max_size=3), max_size=5),
    size=st.integers(1, 9),
    end=st.sampled_from(["\n", "\r\n"]),
)
def test_csv_records_keep_line_feeds_in_quotes(cells: list[list[str]], size: int, end: str) -> None:
    """A record ends at the line feed outside quotes."""
    written = [",".join('"' + cell.replace('"', '""') + '"' for cell in row).encode() for row in cells]
    data = b"".join(record + end.encode() for record in written)
    assert list(records(Pieces(data, size), is_csv=True)) == written


def test_quoted_lines_are_csv_of_one_column() -> None:
    """Each line is in quotes, its own quotes doubled; an unended last line counts."""
    assert quoted_lines(b'a\n\nb"c\r\nd') == b'"a"\n""\n"b""c\r"\n"d"\n'
    assert quoted_lines(b"a\n") == b'"a"\n'
    assert quoted_lines(b"") == b""
