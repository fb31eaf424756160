"""Documents of checkpoints: a damaged one is never believed, and each lies where it belongs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from partfile.errors import SnapshotCorrupt, SnapshotVersionError
from partfile.sink.coordinator import Runtime
from partfile.snapshot.documents import (
    FORMAT_VERSION,
    CheckpointMetadata,
    FileHandle,
    InlineHandle,
    OperatorState,
    SubtaskState,
    decode_document,
    encode_document,
    header_of,
)
from partfile.snapshot.operator_state import OperatorStateStore
from partfile.snapshot.storage import CheckpointStorage
from partfile.snapshot.streams import Scope
from partfile.stores.checksums import crc32_of
from partfile.stores.local.store import LocalStore
from support.sinks.life_cycle import LONG, batch, finished_files, make_sink, rows_of
from support.sinks.staged_streams import finished_rows, names, staged_sink, staging_files_in
from support.state.checkpoint_owner import Owner
from support.state.golden import BY_ROW, COUNTERS, GOLDEN, PRESENT, RULES, WORDS

# A damaged document is never believed.


def sample() -> CheckpointMetadata:
    handle = InlineHandle(data="state é\n".encode())
    return CheckpointMetadata(
        checkpoint_id=7,
        kind="checkpoint",
        job="flights",
        epoch=2,
        nonce="n" * 32,
        log_id="c" * 32,
        predecessor=None,
        ids_ahead=1,
        time_ms=1,
        writer="0",
        operators={"o": OperatorState(parallelism=1, subtasks=(SubtaskState(subtask=0, handle=handle),))},
    )


def decode(data: bytes) -> CheckpointMetadata:
    return decode_document("checkpoint", CheckpointMetadata, data, "chk-7/_metadata")


def document(body: bytes, version: int = FORMAT_VERSION, schema: str = "checkpoint") -> bytes:
    return numbered(header_of(schema, body), version) + body + b"\n"


def numbered(header: bytes, version: int) -> bytes:
    """A header with another version; a reader looks at it before the checksum."""
    return header.replace(b" %d " % FORMAT_VERSION, b" %d " % version, 1)


def test_a_document_round_trips() -> None:
    """What was encoded is what is decoded."""
    assert decode(encode_document("checkpoint", sample())) == sample()


@pytest.mark.fault("M1")
def test_truncation_at_every_byte_is_noticed() -> None:
    """A prefix of any length is SnapshotCorrupt, and the message names the file."""
    data = encode_document("checkpoint", sample())
    for length in range(len(data)):
        with pytest.raises(SnapshotCorrupt, match="chk-7/_metadata"):
            decode(data[:length])


@pytest.mark.fault("M1")
def test_a_flip_of_any_byte_is_noticed() -> None:
    """No single damaged byte goes unnoticed."""
    data = encode_document("checkpoint", sample())
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 0x01
        with pytest.raises((SnapshotCorrupt, SnapshotVersionError)):
            decode(bytes(damaged))


def test_the_checksum_is_of_the_header_too() -> None:
    """M1: a document of one schema cannot become a whole document of another by a damaged name."""
    headers = {header_of(schema, b'{"a":1}') for schema in ("checkpoint", "state", "savepoint")}
    assert len({header.split()[-1] for header in headers}) == len(headers)


def test_a_document_of_an_unreleased_build_says_what_to_do() -> None:
    """Its checksum is of the body alone: no backup mends that. The hint of real damage does not speak of it."""
    body = sample().model_dump_json().encode()
    unreleased = b"partfile checkpoint %d %d %08x\n%b\n" % (FORMAT_VERSION, len(body), crc32_of(body), body)
    with pytest.raises(
        SnapshotCorrupt, match=r"(?s)before the first release.*another uid=NAME, or go on with the build"
    ):
        decode(unreleased)
    with pytest.raises(SnapshotCorrupt) as raised:
        decode(document(body)[:-9])
    assert "release" not in str(raised.value)


def test_a_newer_version_is_refused_by_number() -> None:
    """A document of a later format says which version it has, and that partfile must be upgraded."""
    with pytest.raises(SnapshotVersionError, match=rf"(?s)version {FORMAT_VERSION + 1}.*upgrade this one"):
        decode(document(b"{}", version=FORMAT_VERSION + 1))


@pytest.mark.parametrize("version", [2, 3, 999_999_999])
def test_a_version_that_nothing_reads_is_refused_by_number(version: int) -> None:
    """Whole documents with a number that is not the one there is: what an unreleased partfile wrote among them."""
    body = sample().model_dump_json().encode()
    with pytest.raises(SnapshotVersionError, match=rf"(?s)version {version}; .*before the first release"):
        decode(document(body, version))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"[" * 100_000,
        b'{"checkpoint_id": 1e400}',
        b'{"checkpoint_id": ' + b"9" * 5000 + b"}",
        json.dumps({**json.loads(sample().model_dump_json()), "extra": 1}).encode(),
        json.dumps({**json.loads(sample().model_dump_json()), "checkpoint_id": 0}).encode(),
        json.dumps({**json.loads(sample().model_dump_json()), "kind": "other"}).encode(),
        b'{"checkpoint_id": NaN}',
        b"\xff\xfe",
        b'"\\ud800"',
    ],
)
@pytest.mark.fault("M5")
def test_hostile_content_with_a_right_checksum_is_refused(body: bytes) -> None:
    """Content that is no checkpoint is SnapshotCorrupt, whatever it is, and nothing else is raised."""
    with pytest.raises(SnapshotCorrupt):
        decode(document(body))


@pytest.mark.fault("H1")
def test_a_state_path_cannot_leave_the_job() -> None:
    """A handle that names a file outside the job's directory is refused before any storage call (H1)."""
    for path in ("../x.state", "/etc/passwd", "chk-1/../../x", "a\x00b"):
        raw = json.loads(sample().model_dump_json())
        handle = {"kind": "file", "path": path, "size_bytes": 1, "crc32": 1}
        raw["operators"]["o"]["subtasks"][0]["handle"] = handle
        with pytest.raises(SnapshotCorrupt):
            decode(document(json.dumps(raw).encode()))


@pytest.mark.parametrize(
    ("path", "is_kept"),
    [("chk-7/a.state", True), ("shared/a", True), ("taskowned/a", True), ("chk-6/a.state", False), ("chk-77/a", False)],
)
def test_a_checkpoint_names_only_files_that_live_as_long_as_it(path: str, *, is_kept: bool) -> None:
    """A handle into another checkpoint's directory is refused when a checkpoint is read and when it is made (R11)."""
    raw = json.loads(sample().model_dump_json())
    handle = {"kind": "file", "path": path, "size_bytes": 1, "crc32": 1}
    raw["operators"]["o"]["coordinator"] = handle
    if is_kept:
        assert decode(document(json.dumps(raw).encode())).operators["o"].coordinator
        return
    with pytest.raises(SnapshotCorrupt, match=f"names {path}"):
        decode(document(json.dumps(raw).encode()))
    with pytest.raises(ValueError, match="R11"):
        CheckpointMetadata.model_validate(raw)


@pytest.mark.parametrize(
    ("data", "form"),
    [
        (b"", {"kind": "inline", "text": ""}),
        ("é\n\x00".encode(), {"kind": "inline", "text": "é\n\x00"}),
        (b"\xff\xfe", {"kind": "inline", "base64": "//4="}),
    ],
)
def test_inline_state_is_text_where_it_can_be(data: bytes, form: dict[str, str]) -> None:
    """State in UTF-8 stands readable in the metadata, other bytes as base64; both come back exactly."""
    handle = InlineHandle(data=data)
    assert json.loads(handle.model_dump_json()) == form
    assert InlineHandle.model_validate_json(handle.model_dump_json()) == handle


@pytest.mark.parametrize(
    "handle",
    [
        {"kind": "inline"},
        {"kind": "inline", "text": "a", "base64": "YQ=="},
        {"kind": "inline", "base64": "Y!Q=="},
        {"kind": "inline", "base64": "Y"},
        {"kind": "inline", "text": 1},
        {"kind": "inline", "text": "a", "more": 1},
        {"kind": "other"},
        {},
    ],
)
@pytest.mark.fault("H1")
def test_a_hostile_handle_is_refused(handle: dict[str, object]) -> None:
    """A handle that is not exactly one of the known forms is SnapshotCorrupt."""
    raw = json.loads(sample().model_dump_json())
    raw["operators"]["o"]["subtasks"][0]["handle"] = handle
    with pytest.raises(SnapshotCorrupt):
        decode(document(json.dumps(raw).encode()))


# Where the files of a job lie, and which go with which checkpoint.


def tree(base: Path) -> set[str]:
    return {path.relative_to(base).as_posix() for path in base.rglob("*") if path.is_file()}


def written(owner: Owner, checkpoint_id: int, scope: Scope) -> FileHandle:
    stream = owner.storage.stream_factory(checkpoint_id).create(scope)
    stream.write(b"state")
    handle = stream.close_and_get_handle()
    assert isinstance(handle, FileHandle)
    return handle


@pytest.mark.item("DL-04", "DL-05", "DL-06", "DL-07")
def test_each_scope_lives_as_long_as_it_says(tmp_path: Path) -> None:
    """{job}/chk-N, shared and taskowned: with a checkpoint goes what is exclusive to it, and nothing else."""
    owner = Owner(tmp_path, retained=2)
    owner.start()
    kept: list[set[FileHandle]] = []
    for _ in range(3):
        checkpoint_id = owner.trigger().checkpoint_id
        handles = [written(owner, checkpoint_id, scope) for scope in (Scope.EXCLUSIVE, Scope.SHARED, Scope.TASK_OWNED)]
        owner.complete_with(*handles)
        kept.append(set(handles))
    found = tree(tmp_path / "job")
    assert {name.split("/")[0] for name in found} == {"chk-3", "chk-4", "shared", "taskowned"}
    assert {"chk-3/_metadata", "chk-4/_metadata"} <= found
    assert {handle.path for handles in kept for handle in handles} - found == {
        handle.path for handle in kept[0] if handle.path.startswith("chk-2/")
    }
    for checkpoint_id in (3, 4):
        checkpoint = owner.storage.read_checkpoint(checkpoint_id)
        assert checkpoint is not None
        for handle in checkpoint.handles():
            if isinstance(handle, FileHandle):
                assert owner.storage.read_bytes(handle) == b"state"


# Snapshots of every format version there has been are read as they are (M4).


VERSIONS = sorted(path.name for path in GOLDEN.iterdir())


def test_there_are_golden_files_of_the_present_version() -> None:
    """A new version comes with its own: run ``PYTHONPATH=tests python -m support.state.golden``."""
    assert PRESENT in VERSIONS
    assert [str(number + 1) for number in range(FORMAT_VERSION)] == VERSIONS


@pytest.fixture(params=VERSIONS)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of the files of one version."""
    return Path(shutil.copytree(GOLDEN / request.param, tmp_path / "golden"))


@pytest.mark.item("DL-08")
@pytest.mark.fault("M4")
def test_a_crashed_sink_is_restored(golden: Path) -> None:
    """The position comes back, open parts are cut to their valid length and published, and the stream goes on."""
    with make_sink(golden / "base", rolling=LONG).local() as out:
        assert out.position == {"offset": 4}
        assert rows_of(finished_files(golden / "base")) == {f"row-{number:04d}": 1 for number in range(4)}
        out.write(batch(4, 3))
    assert rows_of(finished_files(golden / "base")) == {f"row-{number:04d}": 1 for number in range(7)}


@pytest.mark.fault("M4")
def test_a_crashed_sink_with_staging_files_is_restored(golden: Path) -> None:
    """An open staging file and a rolled one are encoded as they were meant to be, a spent one is not again."""
    base = golden / "staged"
    assert (finished_rows(base), len(staging_files_in(base))) == (names(0, 2), 3)
    with staged_sink(base, bucketer=None).local() as out:
        assert out.position == 6
        assert finished_rows(base) == names(0, 6)
        out.write(batch(6, 2))
    assert finished_rows(base) == names(0, 8)


@pytest.mark.fault("M4")
def test_staging_files_have_checksums(golden: Path) -> None:
    """The open one and the rolled one."""
    runtime = Runtime(staged_sink(golden / "staged", bucketer=None).settings, "life")
    state = runtime.coordinator.look()
    runtime.close()
    assert state is not None
    staging_files = [part.staging_file for parts in state.open.values() for part in parts] + [
        one.staging_file for one in state.closed
    ]
    assert len(staging_files) == 2
    assert all(staging_file is not None and staging_file.crc32 is not None for staging_file in staging_files)


@pytest.mark.fault("M4")
def test_a_crashed_sink_that_deduplicates_knows_its_keys(golden: Path) -> None:
    """What its runs hold is left out; what came after its newest checkpoint is not in them."""
    with make_sink(golden / "distinct", rolling=LONG, deduplicate=BY_ROW).local() as out:
        assert out.position == 12
        out.write(batch(0, 22))
    assert rows_of(finished_files(golden / "distinct")) == {f"row-{number:04d}": 1 for number in range(22)}


@pytest.mark.item("SP-14")
@pytest.mark.fault("M4")
def test_a_savepoint_is_restored(golden: Path) -> None:
    """Onto a fresh base."""
    with make_sink(golden / "fresh", restore_from=golden / "savepoint").local() as out:
        assert out.position == {"offset": 4}


@pytest.mark.item("SS-33", "SS-10")
def test_a_state_file_is_read(golden: Path) -> None:
    """Every mode, with the elements that were written."""
    handle = TypeAdapter(FileHandle).validate_json((golden / "handle.json").read_bytes())
    restored = CheckpointStorage(LocalStore(str(golden)), "job").read_state(handle)
    states = OperatorStateStore(restored)
    assert states.list_state(WORDS).get() == ("a", "é", {"k": [1, None, 2.5]})
    assert states.union_list_state(COUNTERS).get() == (7,)
    assert dict(states.broadcast_state(RULES).entries()) == {"x": {"y": True}}
