"""Crashes and power losses of the local store: every fsync is there, and the next process finishes what one left."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

import pytest

from partfile.errors import AlreadyExists
from partfile.stores.local import tree as local_tree
from partfile.stores.local.posix import CHANGING_CALLS
from partfile.stores.local.store import LocalStore
from partfile.stores.parts import staged_names
from partfile.testing import power_loss
from partfile.testing.faults import CrashAt, Recorder, SimulatedCrash, SkipAt, both_sides, intercept
from partfile.testing.power_loss import PowerLossCalls, Violation, Watch, part_in
from partfile.testing.store import new_part

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from partfile.stores.base import Cut, PartHandle
    from partfile.stores.local.posix import PosixCalls

    NewModel = Callable[[], PowerLossCalls]
    Life = Callable[[PowerLossCalls, PosixCalls, Path], None]


# Every fsync is there, in time, and none twice: checked against a model of what survives a power loss.

DATA, TAIL = b"valid bytes", b"a tail that does not count"
SYNCS = frozenset({"sync", "sync_directory"})
METADATA = "_partfile/uid/chk-1/_metadata"


def promise(model: PowerLossCalls, what: str, is_kept: Callable[[dict[str, bytes]], bool]) -> None:
    """Raise Violation unless every tree that could survive keeps the promise."""
    if not all(map(is_kept, model.all_survivors())):
        raise Violation(what)


def life_of_a_part(model: PowerLossCalls, calls: PosixCalls, base: Path) -> None:
    """Create, persist, close, publish."""
    with LocalStore(str(base), calls=calls) as store:
        stream = store.create(new_part("a/b"))
        stream.write(DATA)
        handle = stream.persist()
        promise(model, "after persist", lambda tree: tree.get(handle.path_of(handle.in_progress)) == DATA)
        stream.close_for_commit()
        store.publish(handle, "auto")
        promise(model, "after publish", lambda tree: part_in(tree, handle) == DATA)


def life_of_a_file(model: PowerLossCalls, calls: PosixCalls, base: Path) -> None:
    """Create a metadata file, which is never seen in part."""
    watch = Watch(model, lambda tree: tree.get(METADATA, DATA) == DATA)
    with LocalStore(str(base), calls=intercept(calls, watch)) as store:
        store.create_file(METADATA, DATA)
    promise(model, "after create_file", lambda tree: tree.get(METADATA) == DATA)


def life_with_a_cut(model: PowerLossCalls, calls: PosixCalls, base: Path) -> None:
    """Publish a part that has to be cut first, by a store that never saw it."""
    with LocalStore(str(base), calls=model) as store:
        stream = store.create(new_part("a/b"))
        stream.write(DATA)
        handle = stream.persist()
        stream.write(TAIL)
        stream.close()
    watch = Watch(model, lambda tree: part_in(tree, handle) in {None, DATA})
    with LocalStore(str(base), calls=intercept(calls, watch)) as store:
        store.publish(handle, "truncate")
    promise(model, "after publish", lambda tree: part_in(tree, handle) == DATA)


def life_with_a_copy(model: PowerLossCalls, calls: PosixCalls, base: Path) -> None:
    """Publish, by copying, a part that is leased."""
    with LocalStore(str(base), calls=model) as holder, ExitStack() as stack:
        stream = holder.create(new_part("a/b"))
        stack.callback(stream.close)
        stream.write(DATA)
        handle = stream.persist()
        original, final = (handle.path_of(name) for name in (handle.in_progress, handle.name))
        found = [handle.path_of(name) for name in (*staged_names(handle), handle.name)]
        # At each moment the bytes are found, and the original cannot come back beside the finished file (R5).
        watch = Watch(
            model,
            lambda tree: any(tree.get(path) == DATA for path in found) and not (final in tree and original in tree),
        )
        store = stack.enter_context(LocalStore(str(base), calls=intercept(calls, watch)))
        store.publish(handle, "auto")
        promise(model, "after publish", lambda tree: part_in(tree, handle) == DATA)


@pytest.mark.parametrize(
    ("life", "expected"),
    [
        # The part, the bucket's two names, the part's name; at publication the final name.
        (life_of_a_part, ["sync", "sync_directory", "sync_directory", "sync_directory", "sync_directory"]),
        (life_of_a_file, ["sync", "sync_directory", "sync_directory", "sync_directory", "sync_directory"]),
        (life_with_a_cut, ["sync", "sync_directory"]),
        # The copy, its name, the name that the original has lost, and the final one.
        (life_with_a_copy, ["sync", "sync_directory", "sync_directory", "sync_directory"]),
    ],
)
def test_every_sync_is_needed(life: Life, expected: list[str], new_model: NewModel, tmp_path: Path) -> None:
    """With the expected fsyncs no promise breaks; whichever of them is left out, one does."""
    recorder = Recorder(SYNCS)
    (tmp_path / "0").mkdir()
    model = new_model()
    life(model, intercept(model, recorder), tmp_path / "0")
    assert recorder.names == expected
    for skipped in range(1, len(expected) + 1):
        (tmp_path / str(skipped)).mkdir()
        model = new_model()
        with pytest.raises(Violation):
            life(model, intercept(model, SkipAt(skipped, only=SYNCS)), tmp_path / str(skipped))


def test_the_sidecar_is_durable_before_the_final_name(new_model: NewModel, tmp_path: Path) -> None:
    """Without the fsync of the sidecar, of its name or of the final name, a reader could see the tail."""

    def publish(skipped: int) -> list[str]:
        base, model, recorder = tmp_path / str(skipped), new_model(), Recorder(SYNCS)
        base.mkdir()
        with LocalStore(str(base), calls=model) as store:
            stream = store.create(new_part())
            stream.write(DATA)
            handle = stream.persist()
            stream.write(TAIL)
            stream.close()
        watch = Watch(model, lambda tree: part_in(tree, handle) in {None, DATA})
        calls = intercept(intercept(intercept(model, SkipAt(skipped, only=SYNCS)), recorder), watch)
        with LocalStore(str(base), calls=calls) as store:
            store.publish(handle, "valid-length")
        promise(model, "after publish", lambda tree: part_in(tree, handle) == DATA)
        return recorder.names

    assert publish(0) == ["sync", "sync_directory", "sync_directory", "sync_directory"]
    # The second is that of the base: this store does not know that the bucket's name is durable since the persist.
    assert publish(2)
    for skipped in (1, 3, 4):
        with pytest.raises(Violation):
            publish(skipped)


def test_publishing_a_pending_part_costs_one_sync(tmp_path: Path) -> None:
    """The common case syncs no file again, for its bytes are durable since they were persisted."""
    recorder = Recorder(SYNCS)
    with LocalStore(str(tmp_path), calls=intercept(PowerLossCalls(), recorder)) as store:
        handle = store.create(new_part()).close_for_commit()
        before = recorder.count
        store.publish(handle, "auto")
    assert recorder.names[before:] == ["sync_directory"]


def test_a_persist_without_a_write_costs_nothing(tmp_path: Path) -> None:
    """Neither bytes nor names are synced twice, and a second part of a bucket does not sync the ancestors again."""
    recorder = Recorder(SYNCS)
    with LocalStore(str(tmp_path), calls=intercept(PowerLossCalls(), recorder)) as store, ExitStack() as stack:
        stream = store.create(new_part("a/b"))
        stack.callback(stream.close)
        handle = stream.persist()
        before = recorder.count
        stream.persist()
        assert recorder.count == before
        stream.write(DATA)
        stream.persist()
        assert recorder.names[before:] == ["sync"]
        other = store.create(new_part("a/b", "part-0000abcd-0-1"))
        stack.callback(other.close)
        other.persist()
        assert recorder.names[before:] == ["sync", "sync", "sync_directory"]
        before = recorder.count
        stream.close()
        resumed = store.resume(handle.at(len(DATA)))
        stack.callback(resumed.close)
        assert resumed.persist().valid_length == len(DATA)
        assert recorder.count == before


def test_ancestors_made_by_another_process_are_synced_too(new_model: NewModel, tmp_path: Path) -> None:
    """The process that made the bucket may not have made its name durable."""
    model = new_model()
    with LocalStore(str(tmp_path), calls=model) as first, LocalStore(str(tmp_path), calls=model) as second:
        first.create(new_part("a/b")).close()
        stream = second.create(new_part("a/b"))
        stream.write(DATA)
        handle = stream.persist()
        stream.close()
    promise(model, "after persist", lambda tree: tree.get(handle.path_of(handle.in_progress)) == DATA)


def test_a_directory_that_was_deleted_and_made_again_is_synced_again(new_model: NewModel, tmp_path: Path) -> None:
    """That the name of a checkpoint's directory was durable once says nothing about the next one of that name."""
    model = new_model()
    with LocalStore(str(tmp_path), calls=model) as store:
        for _ in range(2):
            store.create_file(METADATA, DATA)
            promise(model, "after create_file", lambda tree: tree.get(METADATA) == DATA)
            store.delete_directory("_partfile/uid/chk-1")
            # As if the deletion had become durable by itself.
            model.sync_directory(model.open_base(str(tmp_path / "_partfile/uid")))


def test_a_directory_that_another_process_made_again_is_synced_again(new_model: NewModel, tmp_path: Path) -> None:
    """What this store remembers of a name is worth nothing once another directory has taken it."""
    model = new_model()
    with LocalStore(str(tmp_path), calls=model) as store, LocalStore(str(tmp_path), calls=model) as other:
        store.create_file("a/first", DATA)
        (tmp_path / "a").rename(tmp_path / "moved")
        model.sync_directory(model.open_base(str(tmp_path)))
        other.create(new_part("a")).close()
        store.create_file("a/second", DATA)
        promise(model, "after create_file", lambda tree: tree.get("a/second") == DATA)


def test_a_directory_with_the_inode_of_its_predecessor_is_synced_again(
    new_model: NewModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system gives the number of a directory that was deleted to the next one: it proves nothing of the name."""
    base = tmp_path.stat().st_ino
    monkeypatch.setattr(
        local_tree, "identity", lambda status: (status.st_dev, status.st_ino if status.st_ino == base else 7)
    )
    model = new_model()
    with LocalStore(str(tmp_path), calls=model) as store, LocalStore(str(tmp_path), calls=model) as other:
        store.create_file("a/first", DATA)
        other.delete_directory("a")
        model.sync_directory(model.open_base(str(tmp_path)))
        other.create(new_part("a")).close()
        store.create_file("a/second", DATA)
        promise(model, "after create_file", lambda tree: tree.get("a/second") == DATA)


def test_the_model_takes_no_file_for_a_directory_of_the_same_inode(
    new_model: NewModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file may get the number of a directory that was deleted, and is a file all the same."""
    base = tmp_path.stat().st_ino
    monkeypatch.setattr(
        power_loss, "identity", lambda status: (status.st_dev, status.st_ino if status.st_ino == base else 7)
    )
    model = new_model()
    with LocalStore(str(tmp_path), calls=model) as store:
        directory = model.open_base(str(tmp_path))
        model.make_directory(directory, "a")
        model.sync_directory(directory)
        store.delete_directory("a")
        model.close(model.create(directory, "file"))
        model.sync_directory(directory)
        promise(model, "after the sync", lambda tree: tree == {"file": b""})


def test_a_name_whose_author_died_is_durable_when_it_is_found(new_model: NewModel, tmp_path: Path) -> None:
    """A final name that was given but not synced is durable once the next process says that the part is published."""
    model = new_model()
    with LocalStore(str(tmp_path), calls=model) as store:
        stream = store.create(new_part())
        stream.write(DATA)
        handle = stream.close_for_commit()
    with pytest.raises(SimulatedCrash):
        LocalStore(str(tmp_path), calls=intercept(model, CrashAt(1, only={"sync_directory"}))).publish(handle, "auto")
    model.die()
    with pytest.raises(Violation):
        promise(model, "after the crash", lambda tree: part_in(tree, handle) == DATA)
    with LocalStore(str(tmp_path), calls=model) as store:
        store.publish(handle, "auto")
    promise(model, "after the next", lambda tree: part_in(tree, handle) == DATA)


def test_a_copy_whose_author_died_has_a_durable_name_before_the_original_loses_its_own(
    new_model: NewModel, tmp_path: Path
) -> None:
    """The next process finds the copy and puts the original aside: no power loss leaves the part without a name."""
    model = new_model()
    with LocalStore(str(tmp_path), calls=model) as store:
        stream = store.create(new_part())
        stream.write(DATA)
        handle = stream.persist()
        stream.write(TAIL)
        stream.close()
    named = intercept(model, CrashAt(1, "after", only={"rename_noreplace"}))
    with pytest.raises(SimulatedCrash):
        LocalStore(str(tmp_path), calls=named).publish(handle, "rewrite")
    model.die()
    names = [handle.path_of(name) for name in (*staged_names(handle), handle.name)]
    watch = Watch(model, lambda tree: any(tree.get(name, b"").startswith(DATA) for name in names))
    with LocalStore(str(tmp_path), calls=intercept(model, watch)) as store:
        store.publish(handle, "rewrite")
    promise(model, "after the next", lambda tree: part_in(tree, handle) == DATA)


def test_names_whose_author_died_are_durable_when_they_are_listed(new_model: NewModel, tmp_path: Path) -> None:
    """A start builds on the checkpoints that it lists: none of them may be gone when what was built on it is there."""
    model = new_model()
    with LocalStore(str(tmp_path), calls=model) as store:
        store.create_file("a/seed", DATA)
    with pytest.raises(SimulatedCrash):
        LocalStore(str(tmp_path), calls=intercept(model, CrashAt(1, "after", only={"link"}))).create_file(
            METADATA, DATA
        )
    model.die()
    with LocalStore(str(tmp_path), calls=model) as store:
        for depth in range(len(METADATA.split("/"))):
            store.list_names("/".join(METADATA.split("/")[:depth]))
    promise(model, "after the list", lambda tree: tree.get(METADATA) == DATA)


def test_the_model_itself_loses_what_is_not_synced(new_model: NewModel, tmp_path: Path) -> None:
    """Without an fsync neither bytes nor names are promised, and everything may survive all the same."""
    model = new_model()
    with LocalStore(str(tmp_path), calls=model) as store:
        stream = store.create(new_part("a"))
        stream.write(DATA)
        path = stream.handle.path_of(stream.handle.in_progress)
        assert {tree.get(path) for tree in model.all_survivors()} == {None, b"", DATA[:6], DATA}
        stream.persist()
        assert all(tree == {path: DATA} for tree in model.all_survivors())
        stream.write(TAIL)
        assert {tree.get(path) for tree in model.all_survivors()} == {DATA, (DATA + TAIL)[:24], DATA + TAIL}
        stream.close()
        model.truncate(descriptor := model.open_existing(model.open_base(str(tmp_path / "a")), path[2:], "modify"), 3)
        assert {tree.get(path) for tree in model.all_survivors()} == {DATA[:3], DATA, DATA + TAIL}
        model.sync(descriptor)
        assert {tree.get(path) for tree in model.all_survivors()} == {DATA[:3]}


# A process that dies at any system call, with or without power loss, leaves what the next one can finish.


class Case(NamedTuple):
    """A part as a crash may leave it, and how it is to be cut."""

    state: str
    cut: Cut


CUTS: tuple[Cut, ...] = ("auto", "truncate", "rewrite", "valid-length")
CASES = [Case(state, cut) for state in ("in-progress", "pending", "leased") for cut in CUTS]


def prepare(model: PowerLossCalls, base: Path, state: str) -> PartHandle:
    """A part with a tail, in a state; where it is leased, by descriptors that stay open."""
    base.mkdir()
    store = LocalStore(str(base), calls=model)
    stream = store.create(new_part("a/b"))
    stream.write(DATA)
    handle = stream.persist()
    stream.write(TAIL)
    if state == "in-progress":
        stream.close()
    if state == "pending":
        stream.close_for_commit()
    if state != "leased":
        store.close()
    return handle


def is_recoverable(model: PowerLossCalls, handle: PartHandle) -> bool:
    """Whether the valid bytes are under one of the part's names after any power loss."""
    names = (*staged_names(handle), handle.name)
    return all(
        any(tree.get(handle.path_of(name), b"").startswith(DATA) for name in names) for tree in model.all_survivors()
    )


def watch_part(model: PowerLossCalls, handle: PartHandle) -> Watch:
    """Watches that no power loss could show anything but no part or its valid bytes."""
    return Watch(model, lambda tree: part_in(tree, handle) in {None, DATA})


def is_published(model: PowerLossCalls, handle: PartHandle) -> bool:
    """Whether the part is finished after any power loss."""
    return all(part_in(tree, handle) == DATA for tree in model.all_survivors())


def count_of_calls(new_model: NewModel, base: Path, case: Case) -> int:
    """How many calls that change something publishing makes."""
    model, recorder = new_model(), Recorder(CHANGING_CALLS)
    handle = prepare(model, base, case.state)
    with LocalStore(str(base), calls=intercept(model, recorder)) as store:
        store.publish(handle, case.cut)
    return recorder.count


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_dies_anywhere_is_finished_by_the_next(case: Case, new_model: NewModel, tmp_path: Path) -> None:
    """Killed before or after any changing call: no moment shows a wrong part, and the next publish finishes it."""
    calls = count_of_calls(new_model, tmp_path / "count", case)
    assert calls > 2
    for n, when in both_sides(calls):
        model, base = new_model(), tmp_path / f"{n}-{when}"
        handle = prepare(model, base, case.state)
        holder = set(model.open_descriptors)
        watch = watch_part(model, handle)
        dying = intercept(intercept(model, watch), CrashAt(n, when, only=CHANGING_CALLS))
        with pytest.raises(SimulatedCrash):
            LocalStore(str(base), calls=dying).publish(handle, case.cut)
        for descriptor in model.open_descriptors - holder:
            model.close(descriptor)
        assert is_recoverable(model, handle)
        with LocalStore(str(base), calls=intercept(model, watch)) as store:
            for _ in range(2):
                store.publish(handle, case.cut)
                assert is_published(model, handle)
        model.stop()


def test_a_task_that_dies_anywhere_loses_nothing_it_has_persisted(new_model: NewModel, tmp_path: Path) -> None:
    """Killed at any changing call of a task's life, a part is published at the length of its last persist."""
    for n, when in both_sides(20):
        model, base = new_model(), tmp_path / f"{n}-{when}"
        base.mkdir()
        vouched: list[PartHandle] = []
        try:
            store = LocalStore(str(base), calls=intercept(model, CrashAt(n, when, only=CHANGING_CALLS)))
            stream = store.create(new_part("a/b"))
            stream.write(DATA)
            vouched.append(stream.persist())
            stream.write(TAIL)
            stream.close_for_commit()
        except SimulatedCrash:
            model.die()
            with LocalStore(str(base), calls=model) as store:
                for handle in vouched:
                    assert is_recoverable(model, handle)
                    store.publish(handle, "auto")
                    assert is_published(model, handle)
        else:
            return
    raise AssertionError("20 calls were not enough; look at the range")


def test_a_creation_that_dies_anywhere_is_whole_or_absent(new_model: NewModel, tmp_path: Path) -> None:
    """Kill create_file at each changing call: no prefix is ever seen, the next attempt finds or makes the file."""
    for n, when in both_sides(40):
        model, base = new_model(), tmp_path / f"{n}-{when}"
        base.mkdir()
        watch = Watch(model, lambda tree: tree.get(METADATA, DATA) == DATA)
        dying = intercept(intercept(model, watch), CrashAt(n, when, only=CHANGING_CALLS))
        try:
            LocalStore(str(base), calls=dying).create_file(METADATA, DATA)
        except SimulatedCrash:
            model.die()
        else:
            return
        with LocalStore(str(base), calls=intercept(model, watch)) as store:
            try:
                store.create_file(METADATA, DATA)
            except AlreadyExists:
                assert store.read_file(METADATA, len(DATA)) == DATA
        # Also where it was there already: the caller reads it back and acts on it.
        assert all(tree.get(METADATA) == DATA for tree in model.all_survivors())
        model.stop()
    raise AssertionError("40 calls were not enough; look at the range")
