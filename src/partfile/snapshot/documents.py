"""Persisted documents: the names in a job's directory, the header and checksum, and what a checkpoint holds.

A job's directory holds ``chk-N/_metadata``, ``_published`` and ``_released``, ``shared`` and ``taskowned``.
"""

from __future__ import annotations

import json
import math
import re
from base64 import b64decode, b64encode
from typing import TYPE_CHECKING, Annotated, Literal, Self, TypeVar

from pydantic import BaseModel, Field, ValidationError, field_validator, model_serializer, model_validator

from partfile.errors import (
    ConfigError,
    FileTooLarge,
    SnapshotCorrupt,
    SnapshotError,
    SnapshotVersionError,
    StateTooLarge,
    UnencodableState,
    joined_hints,
)
from partfile.stores.base import Persisted
from partfile.stores.checksums import crc32_of
from partfile.stores.paths import TOKEN_HEX_DIGITS, check_relative_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from mmap import mmap

    from partfile.stores.base import MetadataStore


SHARED = "shared"
TASK_OWNED = "taskowned"
MAX_CHECKPOINT_ID = 10**15
"""Beyond what any job reaches; a name may have more digits, so that a made-up one is seen and refused."""
MAX_IDS_AHEAD = 1000
"""Ids beyond the newest checkpoint that may be triggered, and that the next start may have to close."""
METADATA = "_metadata"
PUBLISHED = "_published"
RELEASED = "_released"
MARKER = "_marker"
"""The file of a job that its driver holds, so that other processes know that they see the same storage (R13)."""
_STATE_FILE = re.compile(rf"[0-9a-f]{{{TOKEN_HEX_DIGITS}}}\.state")
_TEMPORARY = re.compile(rf"_tmp\.[0-9a-f]{{{TOKEN_HEX_DIGITS}}}")
_CHECKPOINT = re.compile(r"chk-([1-9][0-9]{0,17})")


def checkpoint_directory(checkpoint_id: int) -> str:
    """The directory of one checkpoint, relative to the job's."""
    return f"chk-{checkpoint_id}"


def metadata_path(checkpoint_id: int) -> str:
    """The file whose creation completes the checkpoint."""
    return f"{checkpoint_directory(checkpoint_id)}/{METADATA}"


def published_path(checkpoint_id: int) -> str:
    """The file that says that every part of the checkpoint has its final name."""
    return f"{checkpoint_directory(checkpoint_id)}/{PUBLISHED}"


def released_path(checkpoint_id: int) -> str:
    """The file that says that the coordinator that created the checkpoint has let go of the log."""
    return f"{checkpoint_directory(checkpoint_id)}/{RELEASED}"


def state_path(directory: str, token: str) -> str:
    """A state file of a directory; the token keeps rivals apart, which share the directory of the next checkpoint."""
    return below(directory, f"{token}.state")


def is_state_file(name: str) -> bool:
    """Whether a file is called as those with state are."""
    return bool(_STATE_FILE.fullmatch(name))


def is_temporary(name: str) -> bool:
    """Whether a file has the temporary name under which a store writes it before it gives it its own."""
    return bool(_TEMPORARY.fullmatch(name))


def checkpoint_id_of(name: str) -> int | None:
    """The id in a directory name, or None if the name is something else's."""
    match = _CHECKPOINT.fullmatch(name)
    return int(match.group(1)) if match else None


def below(directory: str, name: str) -> str:
    """A path inside a directory; an empty directory is the base itself."""
    return f"{directory}/{name}" if directory else name


def check_strict(data: bytes, *, most_digits: int | None = None) -> None:
    """Refuse JSON of which two readers could understand two things.

    Args:
        data: JSON in UTF-8.
        most_digits: Of an integer; None leaves it to Python, which takes 4300.

    Raises:
        ValueError: It is no JSON, or an object has a name twice, or a number is not finite or too long.
        RecursionError: It is nested too deeply.
    """

    def integer(digits: str) -> None:
        if most_digits is not None and len(digits) > most_digits:
            raise ValueError(f"it holds a number of {len(digits)} digits")

    json.loads(
        data,
        object_pairs_hook=_without_doubled_names,
        parse_int=integer,
        parse_float=_finite,
        parse_constant=_no_number,
    )


def _without_doubled_names(pairs: list[tuple[str, object]]) -> None:
    # A parser takes the last of two fields with one name, and the writer of two meant something else.
    names = {name for name, _ in pairs}
    if len(names) < len(pairs):
        raise ValueError(f"of the fields {sorted(names)} one is in it twice")


def _finite(digits: str) -> None:
    if not math.isfinite(float(digits)):
        raise ValueError(f"{digits[:40]} is not a finite number")


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is not a finite number")


FORMAT_VERSION = 1
"""The only one there is. Documents that were written before the first release need no reading."""
HASH_VERSION = 1
"""Of ``snapshot.key_hash``: a change of marks, seeds or forms is another one, which finds no key of this one."""
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


def encode_body(schema: str, *body: bytes | memoryview) -> bytes:
    """Return ``body``, which may come in pieces, with a header before it and a line feed after it.

    Raises:
        StateTooLarge: No reader would take it.
    """
    length = sum(memoryview(piece).nbytes for piece in body)
    if length > MAX_DOCUMENT_BYTES - _MAX_HEADER_BYTES:
        raise StateTooLarge(
            f"a {schema} document of {length} bytes is larger than the {MAX_DOCUMENT_BYTES} that can be read again",
            hint="Keep fewer parts open at once, with max_open_parts=100; or fewer elements in a state.",
        )
    return b"".join((header_of(schema, *body), *body, b"\n"))


def header_of(schema: str, *body: bytes | memoryview) -> bytes:
    """The header line of a body, with its line feed. The checksum is of the line's beginning and of the body."""
    begin = f"partfile {schema} {FORMAT_VERSION} {sum(memoryview(piece).nbytes for piece in body)}".encode()
    checksum = crc32_of(begin)
    for piece in body:
        checksum = crc32_of(piece, checksum)
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
        SnapshotVersionError: It was written in another format version.
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
            f"{store.base}/{path} is not a document: {error.message}", hint=CORRUPT_HINT, path=path
        ) from error


def decode_body(schema: str, data: bytes | mmap, path: str, *, is_checked: bool = False) -> memoryview:
    """Return the body of ``data``, with schema, version, length and checksum checked; nothing is copied.

    Args:
        schema: The kind of document that is expected.
        data: The whole file, in memory or mapped.
        path: Where it came from, for messages.
        is_checked: Whether its checksum was found right before, and is not computed again.

    Raises:
        SnapshotCorrupt: Header, length or checksum is wrong.
        SnapshotVersionError: It was written in another format version.
    """
    header = data[:_MAX_HEADER_BYTES].partition(b"\n")[0]
    match = _HEADER.fullmatch(header)
    if match is None:
        raise SnapshotCorrupt(f"{path} does not begin with a partfile header", hint=CORRUPT_HINT, path=path)
    found_schema, version, length, checksum = match.groups()
    # Before the checksum, which a later version may compute in another way: what it wrote must not pass for damage.
    if int(version) > FORMAT_VERSION:
        raise SnapshotVersionError(
            f"{path} has format version {int(version)}; this partfile reads version {FORMAT_VERSION} alone",
            hint=(
                "Nothing reads what was written before the first release. If a newer partfile wrote it, upgrade "
                "this one: pip install --upgrade partfile"
            ),
            path=path,
        )
    if found_schema.decode() != schema:
        raise SnapshotCorrupt(f"{path} is a {found_schema.decode()} document, not a {schema}", path=path)
    body = memoryview(data)[len(header) + 1 : -1]
    if is_checked and data[-1:] == b"\n" and int(length) == len(body):
        return body
    # No version is below the first, so a lower number is damage, and so is any other deviation.
    if data[-1:] != b"\n" or data[: len(header) + 1] != header_of(schema, body):
        # Builds before the first release took the checksum of the body alone.
        is_unreleased = int(checksum, 16) == crc32_of(body)
        hint = joined_hints(CORRUPT_HINT, _UNRELEASED_HINT) if is_unreleased else CORRUPT_HINT
        raise SnapshotCorrupt(f"{path} is damaged: length or checksum is wrong", hint=hint, path=path)
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


def unreadable(what: str, error: SnapshotError) -> UnencodableState:
    """The error for a document that its own reader refuses, found before it was created (R1)."""
    return UnencodableState(
        f"{what} was not created, because no start could read it: {error.message}",
        hint="The checkpoint before it is in force. Look at what was passed as position=POSITION and clock=FUNCTION.",
        path=error.path,
    )


CORRUPT_HINT = "Nothing was changed. Put the file back from a backup or a copy, then type: partfile verify PATH"
_UNRELEASED_HINT = (
    "Or it is whole, and was written before the first release, as its checksum looks: such documents are not "
    "read. Begin with another uid=NAME, or go on with the build that wrote it."
)


CheckpointKind = Literal["checkpoint", "takeover", "tombstone"]
"""checkpoint: holds state. takeover: holds the restored state under a new epoch. tombstone: closes an aborted id."""

CheckpointId = Annotated[int, Field(ge=1, le=MAX_CHECKPOINT_ID)]


class InlineHandle(Persisted):
    """State that is small enough to travel inside the acknowledgement and the metadata.

    Its JSON form holds ``text`` where the bytes are UTF-8, so that a person can read it, else ``base64``.
    """

    kind: Literal["inline"] = "inline"
    data: bytes

    @property
    def size_bytes(self) -> int:
        """Length of the state."""
        return len(self.data)

    @model_validator(mode="before")
    @classmethod
    def _from_json_form(cls, value: object) -> object:
        if not isinstance(value, dict) or "data" in value:
            return value
        fields = dict(value)
        text, base64 = fields.pop("text", None), fields.pop("base64", None)
        if isinstance(text, str) and base64 is None:
            return {**fields, "data": text.encode()}
        if isinstance(base64, str) and text is None:
            return {**fields, "data": b64decode(base64, validate=True)}
        raise ValueError("inline state has either text or base64")

    @model_serializer
    def _json_form(self) -> dict[str, str]:
        try:
            return {"kind": self.kind, "text": self.data.decode()}
        except UnicodeDecodeError:
            return {"kind": self.kind, "base64": b64encode(self.data).decode()}


class FileHandle(Persisted):
    """State in a file of its own, inside the directory of the checkpoint that names it, or in ``shared/`` (R11)."""

    kind: Literal["file"] = "file"
    path: str
    """Relative to the job's directory, so that the whole tree can be moved."""
    size_bytes: Annotated[int, Field(ge=0)]
    crc32: Annotated[int, Field(ge=0, lt=1 << 32)]

    @field_validator("path")
    @classmethod
    def _path_is_below_the_job(cls, value: str) -> str:
        return check_relative_path(value)


StateHandle = Annotated[InlineHandle | FileHandle, Field(discriminator="kind")]


def check_handles(handles: object, argument: str = "handles") -> list[StateHandle]:
    """Refuse what is no list of handles: a subtask without state has None.

    Raises:
        ConfigError: It is none, or one of them is none.
    """
    # Users without a type checker give anything.
    if not isinstance(handles, list | tuple):
        raise ConfigError(
            f"{argument}={handles!r:.50} is no list", hint=f"Write for instance {argument}=[result.primary]."
        )
    for handle in handles:
        if not isinstance(handle, FileHandle | InlineHandle):
            raise ConfigError(
                f"{handle!r:.50} is no handle of state",
                hint=f"Leave out subtasks without state: {argument}=[one.primary for one in RESULTS if one.primary]",
            )
    return list(handles)


class SubtaskState(Persisted):
    """The state that one subtask acknowledged, or that is carried for one that did not run."""

    subtask: Annotated[int, Field(ge=0)]
    handle: StateHandle | None
    """None if the subtask has no state."""


class OperatorState(Persisted):
    """The state of one operator: its subtasks' list states and its coordinator's own."""

    parallelism: Annotated[int, Field(ge=0)]
    """Subtasks that took part in the last checkpoint; the elements of all of them are in ``subtasks``."""
    subtasks: tuple[SubtaskState, ...] = ()
    coordinator: StateHandle | None = None


class CheckpointRef(Persisted):
    """A reference to an entry of the log: its id and its nonce."""

    checkpoint_id: CheckpointId
    nonce: str


class CheckpointMetadata(Persisted):
    """One entry of the log.

    The content of ``chk-N/_metadata``, whose creation is the commit point (R1).
    """

    checkpoint_id: CheckpointId
    kind: CheckpointKind
    job: str
    """The uid of the job; a checkpoint that was moved here from another job is refused."""
    log_id: str
    """Drawn for the first entry of the log and carried by all: an entry that was copied here from elsewhere has
    another."""
    epoch: Annotated[int, Field(ge=1)]
    """Raised by every start; the newest checkpoint's epoch is the one that may go on."""
    nonce: str
    """Drawn by the coordinator for this entry; by it the coordinator recognises its own."""
    predecessor: CheckpointRef | None
    ids_ahead: Annotated[int, Field(ge=0, le=MAX_IDS_AHEAD)]
    """So many ids after its own its coordinator may trigger before its next entry; a successor closes them."""
    time_ms: int
    """The coordinator's batch time, in milliseconds since 1970; for people, never for decisions."""
    writer: str
    """Version of partfile that wrote it."""
    operators: dict[str, OperatorState] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _names_only_what_it_keeps(self) -> Self:
        own = (f"{checkpoint_directory(self.checkpoint_id)}/", f"{SHARED}/", f"{TASK_OWNED}/")
        for handle in handles_of(self.operators):
            if isinstance(handle, FileHandle) and not handle.path.startswith(own):
                raise ValueError(f"it names {handle.path}, which may be deleted before it (R11)")
        return self

    @property
    def ref(self) -> CheckpointRef:
        """This checkpoint as a reference."""
        return CheckpointRef(checkpoint_id=self.checkpoint_id, nonce=self.nonce)

    def handles(self) -> list[InlineHandle | FileHandle]:
        """Every handle of state in it."""
        return list(handles_of(self.operators))

    @property
    def reserved_through(self) -> int:
        """The last id that its coordinator may have triggered."""
        return self.checkpoint_id + self.ids_ahead

    @property
    def holds_state(self) -> bool:
        """Whether a restore can begin here."""
        return self.kind != "tombstone"


def handles_of(operators: Mapping[str, OperatorState]) -> Iterator[InlineHandle | FileHandle]:
    """Every handle of the operators' states."""
    for operator in operators.values():
        for handle in (*(one.handle for one in operator.subtasks), operator.coordinator):
            if handle is not None:
                yield handle
