"""The local store: hazards of POSIX, cleaning, names, and file systems that are not quite POSIX."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from partfile.errors import AlreadyExists, CommitConflict, LeaseUnavailable, PartMissing, StoreError
from partfile.stores.local.posix import CHANGING_CALLS, PosixCalls
from partfile.stores.local.store import LocalStore
from partfile.testing.faults import ActAt, CrashAt, Recorder, SimulatedCrash, TrackedCalls, intercept
from partfile.testing.power_loss import PowerLossCalls
from partfile.testing.store import finished_bytes, new_part, write_part
from support.sinks.life_cycle import finished_files, long_sink, make_sink, rows_of, run_to_the_end

if TYPE_CHECKING:
    from pathlib import Path

    from partfile.stores.base import Cut, PartHandle
    from partfile.stores.local.posix import Access


# The hazards that the rules of the local store answer, each reproduced with bare system calls first.

DATA, ZOMBIE = b"valid", b" and what a zombie adds"


def test_hazard_a_descriptor_opened_before_the_rename_reaches_the_finished_file(tmp_path: Path) -> None:
    """Hazard: the lock alone does not stop a zombie that opened the part before it was published."""
    (tmp_path / "part.in-progress").write_bytes(DATA)
    zombie = os.open(tmp_path / "part.in-progress", os.O_WRONLY | os.O_APPEND)
    (tmp_path / "part.in-progress").rename(tmp_path / "part")
    fcntl.flock(zombie, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.write(zombie, ZOMBIE)
    os.close(zombie)
    assert (tmp_path / "part").read_bytes() == DATA + ZOMBIE


@pytest.mark.parametrize("call", ["stat_name", "open_existing", "lock"])
def test_a_zombie_that_opened_before_the_publication_is_refused(call: str, tmp_path: Path) -> None:
    """Answer: published while the zombie stands just before or after opening or locking, the part is not resumed."""
    for when in ("before", "after"):
        base = tmp_path / when
        with LocalStore(str(base)) as store:
            handle = _part(store)
            action = ActAt(1, partial(store.publish, handle, "auto"), when, only={call})
            zombie = LocalStore(str(base), calls=intercept(PosixCalls(), action))
            # Where the zombie has the lock already, a copy is published, and the zombie's file loses its name.
            with zombie, pytest.raises(LeaseUnavailable):
                zombie.resume(handle)
            assert store.read_file(handle.path_of(handle.name), 99) == DATA


def test_hazard_without_the_pending_name_a_finished_file_has_its_in_progress_name(tmp_path: Path) -> None:
    """Hazard: link then unlink of the in-progress name; dying between them leaves a door into the finished file."""
    os.link(_written(tmp_path / "part.in-progress"), tmp_path / "part")
    descriptor = os.open(tmp_path / "part.in-progress", os.O_WRONLY | os.O_APPEND)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert os.fstat(descriptor).st_ino == (tmp_path / "part.in-progress").stat().st_ino
    os.write(descriptor, ZOMBIE)
    os.close(descriptor)
    assert (tmp_path / "part").read_bytes() == DATA + ZOMBIE


def test_a_publication_that_died_leaves_no_in_progress_name(tmp_path: Path) -> None:
    """Answer: wherever publish dies, the final name and the in-progress name are never there together."""
    for n in range(1, 10):
        base, calls = tmp_path / str(n), TrackedCalls()
        with LocalStore(str(base)) as store:
            handle = _part(store)
            changing = {"rename", "rename_noreplace", "link", "sync", "sync_directory", "unlink"}
            dying = intercept(calls, CrashAt(n, "after", only=changing))
            try:
                LocalStore(str(base), calls=dying).publish(handle, "auto")
            except SimulatedCrash:
                calls.die()
            names = set(store.list_names(handle.bucket))
            assert not {handle.name, handle.in_progress} <= names
            if handle.name in names:
                with pytest.raises(LeaseUnavailable):
                    store.resume(handle)


class NoRenameWithoutReplacing(TrackedCalls):
    """A file system such as NFS, which has no ``RENAME_NOREPLACE``."""

    def rename_noreplace(self, directory: int, name: str, new_name: str) -> None:  # noqa: ARG002 - whatever it is.
        """Refuse, as the kernel does."""
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), name, None, new_name)


@pytest.mark.parametrize("cut", ["auto", "truncate", "rewrite", "valid-length"])
def test_where_no_rename_refuses_to_replace_a_part_is_linked(
    cut: Cut, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says once what that means; wherever publish dies, the next one ends it, and no file is replaced."""
    crashes = 0
    for n in range(1, 40):
        base, calls = tmp_path / f"{n}", NoRenameWithoutReplacing()
        with LocalStore(str(base), calls=NoRenameWithoutReplacing()) as store:
            handle = write_part(store, DATA, tail=ZOMBIE)
            dying = CrashAt(n, "after", only=CHANGING_CALLS)
            with suppress(SimulatedCrash):
                LocalStore(str(base), calls=intercept(calls, dying)).publish(handle, cut)
            calls.die()
            for _ in range(2):
                store.publish(handle, cut)
            assert finished_bytes(store, handle) == DATA
            assert not store.is_staged(handle)
            other = write_part(store, DATA[::-1])
            assert other.name == handle.name
            with pytest.raises(CommitConflict):
                store.publish(other, cut)
        crashes += dying.has_crashed
    assert 5 < crashes < 39
    assert "cannot rename without replacing" in caplog.text


@pytest.mark.parametrize("is_offered", [True, False])
def test_a_start_tries_whether_a_rename_can_refuse_to_replace(
    is_offered: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An operator reads of the hazard when the sink starts, not with its first part; nothing of the trial stays."""
    calls = TrackedCalls() if is_offered else NoRenameWithoutReplacing()
    recorder = Recorder()
    with LocalStore(str(tmp_path / "_partfile"), calls=intercept(calls, recorder)) as store:
        for number in range(3):
            store.create_file(f"log/{number}", DATA)
            with pytest.raises(AlreadyExists):
                store.create_file(f"log/{number}", DATA)
        assert sorted(store.list_names("log")) == ["0", "1", "2"]
    assert recorder.names.count("rename_noreplace") == 1
    assert caplog.text.count("cannot rename without replacing") == (0 if is_offered else 1)
    # Where no part lies beside the checkpoints, the trial would say nothing of the parts.
    with LocalStore(str(tmp_path / "checkpoints"), calls=intercept(PosixCalls(), recorder)) as store:
        store.create_file("file", DATA)
    assert recorder.names.count("rename_noreplace") == 1


def test_a_copy_is_cut_where_the_sink_went_back_after_it_was_made(tmp_path: Path) -> None:
    """The original has lost its name to it, so it is all that there is of the part."""
    with LocalStore(str(tmp_path)) as store:
        handle = write_part(store, DATA, tail=ZOMBIE)
        calls = TrackedCalls()
        dying = intercept(calls, CrashAt(2, only={"rename_noreplace"}))
        with pytest.raises(SimulatedCrash):
            LocalStore(str(tmp_path), calls=dying).publish(handle, "rewrite")
        calls.die()
        with pytest.raises(PartMissing, match="are gone"):
            store.publish(handle.at(len(DATA) + 1), "rewrite")
        store.publish(handle.at(3), "rewrite")
        assert store.read_file(handle.path_of(handle.name), 99) == DATA[:3]


def test_hazard_rename_overwrites(tmp_path: Path) -> None:
    """Hazard: os.rename replaces a file of the new name without a word."""
    (tmp_path / "part").write_bytes(b"published before")
    _written(tmp_path / "part.pending").rename(tmp_path / "part")
    assert (tmp_path / "part").read_bytes() == DATA


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("call", ["stat_name", "lock", "rename", "rename_noreplace"])
@pytest.mark.fault("F6")
def test_a_final_name_taken_at_the_last_moment_is_not_replaced(call: str, when: str, tmp_path: Path) -> None:
    """Answer: a foreign file that appears between any look and the rename is a conflict, and survives."""
    path = tmp_path / "day=1" / "part-0000abcd-0-0"
    for n in range(1, 4):
        with LocalStore(str(tmp_path / f"{n}")) as store:
            handle = _part(store)
            path = tmp_path / f"{n}" / handle.path_of(handle.name)

            appeared: list[None] = []

            def appear(path: Path = path, appeared: list[None] = appeared) -> None:
                if not path.exists():
                    path.write_bytes(b"foreign")
                    appeared.append(None)

            calls = intercept(PosixCalls(), ActAt(n, appear, "before" if when == "before" else "after", only={call}))
            with LocalStore(str(tmp_path / f"{n}"), calls=calls) as publisher:
                try:
                    publisher.publish(handle, "auto")
                except CommitConflict:
                    assert path.read_bytes() == b"foreign"
                else:
                    assert not appeared, "a foreign file was replaced"
                    assert path.read_bytes() == DATA


def test_hazard_a_fork_keeps_the_lock_alive(tmp_path: Path) -> None:
    """Hazard: a lock that is only dropped by close lives on in every child that inherited the descriptor."""
    mine = os.open(_written(tmp_path / "part"), os.O_RDWR)
    fcntl.flock(mine, fcntl.LOCK_EX)
    inherited = os.dup(mine)
    os.close(mine)
    other = os.open(tmp_path / "part", os.O_RDWR)
    with pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(inherited, fcntl.LOCK_UN)
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(inherited)
    os.close(other)


def _written(path: Path) -> Path:
    path.write_bytes(DATA)
    return path


def _part(store: LocalStore) -> PartHandle:
    stream = store.create(new_part())
    stream.write(DATA)
    handle = stream.persist()
    stream.close()
    return handle


# What the cleaner does on the local file system, where something comes between or the power fails.

ORPHAN_DATA, OTHER = b"valid bytes", b"another file"
AWAY = "_partfile/_quarantine/run/b"


@pytest.mark.parametrize("into", [None, AWAY])
def test_what_takes_the_name_before_the_lock_is_left(tmp_path: Path, into: str | None) -> None:
    """What is taken away is what was leased, not what has come to stand under its name."""
    with LocalStore(str(tmp_path)) as store:
        handle = write_part(store, ORPHAN_DATA)
    name = handle.path_of(handle.in_progress)
    path = tmp_path / name

    def swap() -> None:
        path.rename(tmp_path / "elsewhere")
        path.write_bytes(OTHER)

    with LocalStore(str(tmp_path), calls=intercept(PosixCalls(), ActAt(1, swap, only={"lock"}))) as store:
        assert not store.remove(name, into)
    assert path.read_bytes() == OTHER
    assert (tmp_path / "elsewhere").read_bytes() == ORPHAN_DATA


def test_what_was_moved_away_survives_a_power_loss(tmp_path: Path) -> None:
    """Once the call has returned the file is in the quarantine for good, perhaps under its old name as well."""
    with LocalStore(str(tmp_path)) as store:
        handle = write_part(store, ORPHAN_DATA)
    model = PowerLossCalls()
    with LocalStore(str(tmp_path), calls=model) as store:
        assert store.remove(handle.path_of(handle.in_progress), AWAY)
    survivors = model.all_survivors()
    assert survivors
    assert all(tree.get(f"{AWAY}/{handle.in_progress}") == ORPHAN_DATA for tree in survivors)
    model.stop()


# Names of local files are UTF-8: a process that would read or write others opens no local store.

READ = "import sys, partfile; partfile.read(sys.argv[1], format='json')"
SINK = "import sys, partfile; partfile.FileSink(sys.argv[1], uid='u', format='json').local().open()"
TASK = "import sys; from partfile.stores.registry import open_store; open_store(sys.argv[1])"


def run_plainly(*words: str, utf8: bool) -> subprocess.CompletedProcess[str]:
    """Python in the plain locale, where names are ASCII unless UTF-8 mode is on."""
    environment = {name: value for name, value in os.environ.items() if name not in {"LANG", "PYTHONUTF8"}}
    environment |= {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-X", f"utf8={int(utf8)}", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, encoding="utf-8", check=False)


@pytest.mark.drawn
@pytest.mark.parametrize("code", [READ, SINK, TASK])
def test_only_a_process_that_names_files_in_utf8_opens_a_local_store(tmp_path: Path, code: str) -> None:
    """A reader, a sink and what a task does are refused, with what to set; nothing is made."""
    base = tmp_path / "out"
    base.mkdir()
    done = run_plainly("-c", code, str(base), utf8=False)
    assert "ConfigError" in done.stderr
    assert "PYTHONUTF8=1" in done.stderr
    assert list(base.iterdir()) == []
    assert "PYTHONUTF8" not in run_plainly("-c", code, str(base), utf8=True).stderr


@pytest.mark.drawn
@pytest.mark.parametrize("verb", ["clean", "verify"])
def test_the_command_line_refuses_too(tmp_path: Path, verb: str) -> None:
    """A usage error with the way out, before anything is taken for an orphan; with UTF-8 it works."""
    run_to_the_end(make_sink(tmp_path))
    (tmp_path / "k=Москва").mkdir()
    done = run_plainly("-m", "partfile", verb, str(tmp_path), utf8=False)
    assert done.returncode == 2
    assert "PYTHONUTF8=1" in done.stderr
    assert run_plainly("-m", "partfile", verb, str(tmp_path), utf8=True).returncode == 0


# File systems that are not quite POSIX: names whose case does not count, directories that cannot be synced.


class CaseBlind(PosixCalls):
    """A file system to which ``A`` and ``a`` are one name, as on macOS and many shares."""

    def open_directory(self, directory: int, segment: str) -> int:
        """See ``PosixCalls.open_directory``."""
        return super().open_directory(directory, segment.lower())

    def make_directory(self, directory: int, segment: str) -> None:
        """See ``PosixCalls.make_directory``."""
        super().make_directory(directory, segment.lower())

    def create(self, directory: int, name: str) -> int:
        """See ``PosixCalls.create``."""
        return super().create(directory, name.lower())

    def open_existing(self, directory: int, name: str, access: Access) -> int:
        """See ``PosixCalls.open_existing``."""
        return super().open_existing(directory, name.lower(), access)

    def rename(self, directory: int, name: str, new_name: str) -> None:
        """See ``PosixCalls.rename``."""
        super().rename(directory, name.lower(), new_name.lower())

    def link(self, directory: int, name: str, new_name: str) -> None:
        """See ``PosixCalls.link``."""
        super().link(directory, name.lower(), new_name.lower())

    def unlink(self, directory: int, name: str) -> None:
        """See ``PosixCalls.unlink``."""
        super().unlink(directory, name.lower())

    def stat_name(self, directory: int, name: str) -> os.stat_result | None:
        """See ``PosixCalls.stat_name``."""
        return super().stat_name(directory, name.lower())


@pytest.mark.fault("F15")
@pytest.mark.parametrize("same_length", [True, False])
@pytest.mark.parametrize("shared", [None, 2])
def test_buckets_that_differ_in_case_alone_lose_no_row(
    tmp_path: Path, *, shared: int | None, same_length: bool
) -> None:
    """They share a directory, and their parts have names of their own: also those that one staging file becomes."""
    blind: Any = {"open_store": lambda url, _options: LocalStore(url, calls=CaseBlind())}
    sink = long_sink(tmp_path, buckets_per_staging_file=shared, **blind)
    names = ["A", "a", "B", "b", "A", "a"]
    with sink.local() as out:
        rows = [f"row-{number:0{4 if same_length else number + 4}d}" for number in range(6)]
        out.write(pa.RecordBatch.from_pydict({"bucket": names, "row": rows}))
    files = finished_files(tmp_path)
    assert rows_of(files) == dict.fromkeys(rows, 1)
    assert {name.split("/")[0] for name in files} == {"bucket=a", "bucket=b"}


class WithoutDirectorySync(PosixCalls):
    """A file system that cannot sync a directory."""

    def sync_directory(self, directory: int) -> None:
        """EINVAL, as some network file systems answer."""
        raise OSError(errno.EINVAL, f"no fsync of directory {directory}")


@pytest.mark.fault("F17")
def test_without_syncing_directories_nothing_is_ever_acknowledged(tmp_path: Path) -> None:
    """The first start says so instead of promising what a power loss would take back."""
    sink = make_sink(tmp_path, open_store=lambda url, _options: LocalStore(url, calls=WithoutDirectorySync()))
    with pytest.raises(StoreError, match="sync the directory"):
        sink.local().open()
    assert finished_files(tmp_path) == {}
