"""Persisted documents: one header line with schema, version, length and checksum, then one line of JSON.

``partfile checkpoint 3 1234 89abcdef`` stands for: a checkpoint document of format version 3 whose body has 1234 bytes
and, with the words before it, the CRC-32 89abcdef. The body is JSON, so that a person can read it; the header makes a
torn or damaged file known before anything in it is believed. A checksum finds corruption, not tampering.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel, ValidationError

from partfile.filesystems.checksums import crc32_of
from partfile.filesystems.errors import FileTooLarge, SnapshotCorrupt, SnapshotVersionError, StateTooLarge
from partfile.snapshot.strict_json import check_strict

if TYPE_CHECKING:
    from partfile.filesystems.metadata_port import MetadataStore

FORMAT_VERSION = 3
"""2: links reserve ids. 3: parts may be stages, and the checksum is of the header's beginning too."""
_FIRST_CHECKED_HEADER = 3
MAX_DOCUMENT_BYTES = 1 << 28
"""Some 500 000 open parts; a reader takes no more, so a writer makes no more."""
_MAX_HEADER_BYTES = 128
_MAX_DIGITS = 19
_HEADER = re.compile(rb"partfile ([a-z-]{1,32}) ([0-9]{1,9}) ([0-9]{1,12}) ([0-9a-f]{8})")

Document = TypeVar("Document", bound=BaseModel)


def encode_document(schema: str, document: BaseModel) -> bytes:
    """Return ``document`` as bytes with its header.

    Args:
        schema: What kind of document it is, in lower-case letters and hyphens.
        document: A model whose JSON form round-trips.
    """
    return encode_body(schema, document.model_dump_json().encode())


def encode_body(schema: str, body: bytes) -> bytes:
    """Return ``body`` with a header before it and a line feed after it.

    Raises:
        StateTooLarge: No reader would take it.
    """
    if len(body) > MAX_DOCUMENT_BYTES - _MAX_HEADER_BYTES:
        raise StateTooLarge(
            f"a {schema} document of {len(body)} bytes is larger than the {MAX_DOCUMENT_BYTES} that can be read again",
            hint="Keep fewer parts open at once (max_open_parts), or fewer elements in a state.",
        )
    return b"".join((header_of(schema, FORMAT_VERSION, body), body, b"\n"))


def header_of(schema: str, version: int, body: bytes | memoryview) -> bytes:
    """The header line of a body, with its line feed. From version 3 on the checksum is of the line's beginning too.

    Without that a damaged version could be that of an older format.
    """
    begin = f"partfile {schema} {version} {len(body)}".encode()
    checksum = crc32_of(body, 0 if version < _FIRST_CHECKED_HEADER else crc32_of(begin))
    return b"%b %08x\n" % (begin, checksum)


def decode_document(schema: str, model: type[Document], data: bytes, path: str) -> Document:
    """Return the document in ``data``, all of it checked.

    Args:
        schema: The kind of document that is expected.
        model: The model to validate it with.
        data: The whole file.
        path: Where it came from, for messages.

    Raises:
        SnapshotCorrupt: Header, length, checksum or content is wrong.
        SnapshotVersionError: It was written in a newer format.
    """
    return decode_model(schema, model, decode_body(schema, data, path), path)


def read_document(store: MetadataStore, path: str) -> bytes:
    """Read the whole file of a document, of which nothing is checked yet but its size.

    Raises:
        NotFound: It is not there.
        SnapshotCorrupt: It is larger than any document that was written.
    """
    try:
        return store.read_file(path, MAX_DOCUMENT_BYTES)
    except FileTooLarge as error:
        raise SnapshotCorrupt(
            f"{store.base}/{path} is no document: {error.message}", hint=CORRUPT_HINT, path=path
        ) from error


def decode_body(schema: str, data: bytes, path: str) -> memoryview:
    """Return the body of ``data``, with schema, version, length and checksum checked; nothing is copied.

    Raises:
        SnapshotCorrupt: Header, length or checksum is wrong.
        SnapshotVersionError: It was written in a newer format.
    """
    header = data[:_MAX_HEADER_BYTES].partition(b"\n")[0]
    match = _HEADER.fullmatch(header)
    if match is None:
        raise SnapshotCorrupt(f"{path} does not begin with a partfile header", hint=CORRUPT_HINT, path=path)
    found_schema, version = match.groups()[:2]
    if int(version) > FORMAT_VERSION:
        raise SnapshotVersionError(
            f"{path} has format version {int(version)}; this partfile reads up to {FORMAT_VERSION}",
            hint="Upgrade partfile on this machine.",
            path=path,
        )
    if found_schema.decode() != schema:
        raise SnapshotCorrupt(f"{path} is a {found_schema.decode()} document, not a {schema}", path=path)
    body = memoryview(data)[len(header) + 1 : -1]
    if int(version) < 1 or data[-1:] != b"\n" or data[: len(header) + 1] != header_of(schema, int(version), body):
        raise SnapshotCorrupt(f"{path} is damaged: length or checksum is wrong", hint=CORRUPT_HINT, path=path)
    return body


def decode_model(schema: str, model: type[Document], text: bytes | memoryview, path: str) -> Document:
    """Return the JSON ``text`` as a model.

    Raises:
        SnapshotCorrupt: It is not JSON, or not what the model describes.
    """
    data = bytes(text)
    try:
        check_strict(data, most_digits=_MAX_DIGITS)
        return model.model_validate_json(data, strict=True)
    except (ValidationError, ValueError, RecursionError) as error:
        raise SnapshotCorrupt(f"{path} is not a valid {schema}: {error}", hint=CORRUPT_HINT, path=path) from error


CORRUPT_HINT = "Nothing was changed. Put the file back from a backup or a copy."
