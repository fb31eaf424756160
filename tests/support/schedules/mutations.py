"""Single changes of the protocol under which some schedule must lose or double a row."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from partfile.errors import PartfileError
from partfile.recovery import clean, clean_plan
from partfile.recovery.inspect import files as knowledge
from partfile.sink import encode as encoding
from partfile.sink import encoded_files, operator, plan
from partfile.sink.coordinator import SinkCoordinator
from partfile.sink.plan import Action
from partfile.sink.publish import Encoding, Publication, Publisher, StagedParts
from partfile.sink.spark.distinct import KeyPlan
from partfile.snapshot.checkpoint_log import CheckpointLog
from partfile.stores.checksums import crc32_of
from partfile.stores.local.store import LocalStore
from partfile.stores.local.stream import LocalPartStream
from partfile.testing.faults import TrackedCalls

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    import pytest

    from partfile.recovery.inspect.files import KnownPart
    from partfile.sink.encoded_files import EncodedFile
    from partfile.sink.spark.distinct import KeyAnswer
    from partfile.sink.states import EncodedStagingFile, PendingPart, SeenKeys, StagingFile
    from partfile.stores.base import PartHandle, Store

    Mutation = Callable[[pytest.MonkeyPatch], None]


# Single changes of the protocol under which some schedule must lose or double a row: the model can see that.


def no_lock(patch: pytest.MonkeyPatch) -> None:
    """Everybody gets every lock."""
    patch.setattr(TrackedCalls, "lock", lambda *_: True)


def no_length_check(patch: pytest.MonkeyPatch) -> None:
    """A part of any length is resumed, and is not looked at before it is answered for."""
    patch.setattr(LocalStore, "_why_refused", lambda *_: "")
    patch.setattr(LocalPartStream, "verify", lambda _self: None)


def replaced_names(patch: pytest.MonkeyPatch) -> None:
    """Checkpoints and finished files replace what has their name."""

    def rename(_calls: TrackedCalls, directory: int, name: str, new_name: str) -> None:
        os.rename(name, new_name, src_dir_fd=directory, dst_dir_fd=directory)

    for verb in ("link", "rename_noreplace"):
        patch.setattr(TrackedCalls, verb, rename)


def replaced_links(patch: pytest.MonkeyPatch) -> None:
    """A checkpoint is created whether its name is taken or not: two coordinators both win."""
    create = LocalStore.create_file

    def replace(store: LocalStore, path: str, data: bytes) -> None:
        if path.endswith("/_metadata"):
            store.delete_file(path)
        create(store, path, data)

    patch.setattr(LocalStore, "create_file", replace)


def no_predecessor(patch: pytest.MonkeyPatch) -> None:
    """A checkpoint counts although the one before it is gone."""
    patch.setattr(CheckpointLog, "_predecessor_stands", lambda *_: True)
    patch.setattr(CheckpointLog, "_is_last", lambda *_: True)


def published_early(patch: pytest.MonkeyPatch) -> None:
    """Parts are published before their checkpoint is complete."""
    commit: Any = SinkCoordinator._commit

    def early(self: SinkCoordinator, triggered: object, after: plan.SinkSnapshot, now_ms: int) -> object:
        self._publisher.publish(after.pending)
        return commit(self, triggered, after, now_ms)

    patch.setattr(SinkCoordinator, "_commit", early)


def nothing_owed(patch: pytest.MonkeyPatch) -> None:
    """A start forgets what the last one had still to publish."""
    begin = plan.begin_epoch

    def forget(restored: plan.SinkSnapshot, **options: Any) -> plan.SinkSnapshot:
        return begin(restored, **(options | {"published": True}))

    patch.setattr(plan, "begin_epoch", forget)


def everything_kept(patch: pytest.MonkeyPatch) -> None:
    """A start keeps the parts of a crashed run open, and their new owner appends to them whatever their length."""
    begin = plan.begin_epoch

    def keep(restored: plan.SinkSnapshot, **options: Any) -> plan.SinkSnapshot:
        position = restored.position.model_copy(update={"kept": True})
        return begin(replace(restored, position=position), **options)

    patch.setattr(plan, "begin_epoch", keep)
    patch.setattr(LocalStore, "_why_refused", lambda *_: "")


def any_attempt(patch: pytest.MonkeyPatch) -> None:
    """Any attempt of any epoch resumes, without a lock."""
    patch.setattr("partfile.sink.plan.before_resuming", lambda *_, **__: Action.KEEP)
    patch.setattr(TrackedCalls, "lock", lambda *_: True)


def no_look_under_the_lock(patch: pytest.MonkeyPatch) -> None:
    """What has the name of a locked part is not looked at again."""
    patch.setattr("partfile.stores.local.tree.LocalTree.names", lambda *_: True)


def cleaner_without_checkpoints(patch: pytest.MonkeyPatch) -> None:
    """The cleaner takes away what retained checkpoints name."""
    patch.setattr(knowledge, "parts_of", lambda *_: ())


def cleaner_without_age_epoch_and_plan(patch: pytest.MonkeyPatch) -> None:
    """The cleaner takes what is just being written, owns no sink and looks once: any one rule kept saves the rows."""
    for module in (clean, clean_plan):
        patch.setattr(module, "cutoff_ms", lambda *_: sys.maxsize)

    @contextmanager
    def none(*_: object) -> Iterator[SimpleNamespace]:
        log = SimpleNamespace(newest_completed_id=lambda: 0)
        yield SimpleNamespace(storage=log, coordinator=SimpleNamespace(newest_checkpoint_id=0))

    patch.setattr(clean, "_held", none)
    patch.setattr(clean, "check_same", lambda *_: None)


MUTATIONS: dict[Mutation, int] = {
    any_attempt: 0,
    cleaner_without_age_epoch_and_plan: 2,
    cleaner_without_checkpoints: 2,
    everything_kept: 26,
    no_length_check: 0,
    no_lock: 0,
    no_look_under_the_lock: 20,
    no_predecessor: 3,
    nothing_owed: 1,
    published_early: 0,
    replaced_links: 9,
    replaced_names: 85,
}
"""Each with the first seed whose schedule finds it, as the code is; any other may when that changes."""


# Single changes of what becomes of staging files, under which some schedule must lose, double or delete what counts.

_ENCODE = encoding.encode_staging_file


def _replace_encode(patch: pytest.MonkeyPatch, encode: Any) -> None:
    for module in (encoding, operator):
        patch.setattr(module, "encode_staging_file", encode)


def staging_files_deleted_at_once(patch: pytest.MonkeyPatch) -> None:
    """An encoded staging file is deleted although an older retained checkpoint names it as data."""

    def all_of_them(encoded: Iterable[EncodedStagingFile], _oldest_retained_id: int) -> list[EncodedStagingFile]:
        return list(encoded)

    patch.setattr(plan, "disposable", all_of_them)


def encodes_published_at_once(patch: pytest.MonkeyPatch) -> None:
    """The process that has encoded a staging file publishes the file, before a checkpoint names it."""

    def encode(
        store: Store, part: PartHandle, staging_file: StagingFile, rows: int, **options: Any
    ) -> tuple[EncodedFile, ...]:
        files = _ENCODE(store, part, staging_file, rows, **options)
        for file in files:
            store.publish(file.part, "auto")
        return files

    _replace_encode(patch, encode)


def every_encode_has_a_name_of_its_own(patch: pytest.MonkeyPatch) -> None:
    """Two encodes of one staging file can both be published: neither takes the other one's name, and both are kept."""
    target_of, after_encoding = encoded_files.target_of, plan.after_encoding

    def own(part: PartHandle) -> PartHandle:
        target = target_of(part)
        token = target.pending.rsplit(".", 2)[1]
        return target.model_copy(update={"name": f"{token}-{target.name}"})

    def again(before: plan.SinkSnapshot, *arguments: Any) -> plan.SinkSnapshot:
        return replace(after_encoding(before, *arguments), closed=before.closed)

    patch.setattr(encoding, "target_of", own)
    patch.setattr(plan, "after_encoding", again)


def encoded_beyond_the_valid_length(patch: pytest.MonkeyPatch) -> None:
    """Whatever a staging file holds is encoded.

    What a zombie has added, and what no checkpoint holds, counts as well.
    """
    patch.setattr(encoding, "check_rows", lambda *_: None)

    def encode(
        store: Store, part: PartHandle, staging_file: StagingFile, rows: int, **options: Any
    ) -> tuple[EncodedFile, ...]:
        seen = store.look_at(part.path_of(part.in_progress))
        length = part.valid_length if seen is None else seen.size
        longer = part.model_copy(update={"valid_length": length})
        try:
            with store.open_staging_file(longer) as file:
                agreeing = staging_file.model_copy(update={"crc32": crc32_of(file.read())})
            return _ENCODE(store, longer, agreeing, rows, **options)
        except PartfileError:
            return _ENCODE(store, part, staging_file, rows, **options)

    _replace_encode(patch, encode)


def restored_staging_files_are_gone_on_with(patch: pytest.MonkeyPatch) -> None:
    """A start hands the staging files of a crashed run to its tasks, which a zombie of that run may still append to."""
    begin = plan.begin_epoch

    def keep(restored: plan.SinkSnapshot, **options: Any) -> plan.SinkSnapshot:
        position = restored.position.model_copy(update={"kept": True})
        return begin(replace(restored, position=position), **options)

    patch.setattr(plan, "begin_epoch", keep)
    any_attempt(patch)
    no_length_check(patch)


def closed_staging_files_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A start forgets what the last one had still to encode."""
    begin = plan.begin_epoch

    def forget(restored: plan.SinkSnapshot, **options: Any) -> plan.SinkSnapshot:
        return begin(replace(restored, closed=()), **options)

    patch.setattr(plan, "begin_epoch", forget)


def spent_without_a_checkpoint(patch: pytest.MonkeyPatch) -> None:
    """A staging file is deleted once it is encoded, before a checkpoint names the file."""
    encode = StagedParts.encode

    def early(self: StagedParts, before: plan.SinkSnapshot, *arguments: Any, **options: Any) -> Encoding:
        done = encode(self, before, *arguments, **options)
        left = {staging_file.part.in_progress for staging_file in done.after.closed}
        for staging_file in before.closed:
            if staging_file.part.in_progress not in left:
                self._store.discard(staging_file.part)
        return done

    patch.setattr(StagedParts, "encode", early)


def cleaner_without_staging_files(patch: pytest.MonkeyPatch) -> None:
    """The cleaner takes the staging files that checkpoints name for orphans."""
    parts_of = knowledge.parts_of

    def others(*arguments: Any) -> Iterator[KnownPart]:
        return (part for part in parts_of(*arguments) if not part.is_staging_file)

    patch.setattr(knowledge, "parts_of", others)


def cleaner_without_staging_files_of_older_checkpoints(patch: pytest.MonkeyPatch) -> None:
    """The cleaner goes by the newest checkpoint alone."""
    parts_of = knowledge.parts_of

    def of_the_newest(log: Any, checkpoint_id: int, state: Any) -> Iterator[KnownPart]:
        newest = log.newest.checkpoint.checkpoint_id if log.newest is not None else 0
        named = parts_of(log, checkpoint_id, state)
        return (part for part in named if checkpoint_id == newest and part.state != "encoded-staging-file")

    patch.setattr(knowledge, "parts_of", of_the_newest)


STAGING_MUTATIONS: dict[Mutation, int] = {
    cleaner_without_staging_files: 3,
    cleaner_without_staging_files_of_older_checkpoints: 10,
    encoded_beyond_the_valid_length: 0,
    encodes_published_at_once: 0,
    every_encode_has_a_name_of_its_own: 0,
    nothing_owed: 10,
    restored_staging_files_are_gone_on_with: 0,
    closed_staging_files_forgotten: 3,
    spent_without_a_checkpoint: 0,
    staging_files_deleted_at_once: 0,
}
"""Each with the first seed whose schedule of staged parts finds it; see ``MUTATIONS``."""


# Single changes under which some schedule shows a row again that a consumer has taken, or stops for what it has taken.


def shown_by_link(patch: pytest.MonkeyPatch) -> None:
    """The call that shows a part leaves its staged name, which goes by the next one."""

    def refuse(_calls: TrackedCalls, _directory: int, _name: str, _new_name: str) -> None:
        raise OSError(errno.EINVAL, "deliberate")

    patch.setattr(TrackedCalls, "rename_noreplace", refuse)


def originals_keep_their_names(patch: pytest.MonkeyPatch) -> None:
    """The copy of a part is shown while the original still has its staged name."""
    patch.setattr(LocalStore, "_put_aside", lambda *_: True)


def taken_is_missing(patch: pytest.MonkeyPatch) -> None:
    """A part of which nothing is left is lost, whatever the sink was told of consumers."""
    publish = Publisher.publish

    def insist(self: Publisher, parts: Sequence[PendingPart], gives_up: Collection[str] = (), **_: bool) -> Publication:
        return publish(self, parts, gives_up)

    patch.setattr(Publisher, "publish", insist)


CONSUMER_MUTATIONS: dict[Mutation, int] = {
    originals_keep_their_names: 202,
    shown_by_link: 107,
    taken_is_missing: 10,
}
"""Each with the first seed whose schedule beside a consumer finds it; see ``MUTATIONS``."""


# Single changes of what becomes of the keys of a sink that deduplicates, under which a row comes twice, or a run goes.


def runs_deleted_at_once(patch: pytest.MonkeyPatch) -> None:
    """A run that was merged is deleted although an older retained checkpoint names it."""
    patch.setattr(plan, "disposable_runs", lambda seen, _oldest_id: list(seen.unneeded if seen is not None else ()))


def keys_forgotten_by_a_start(patch: pytest.MonkeyPatch) -> None:
    """A start begins without the keys of the checkpoint that it goes on from."""
    begin = plan.begin_epoch

    def forget(restored: plan.SinkSnapshot, **options: Any) -> plan.SinkSnapshot:
        position = restored.position.model_copy(update={"seen_keys": None})
        return begin(replace(restored, position=position), **options)

    patch.setattr(plan, "begin_epoch", forget)


def keys_of_a_task_lost(patch: pytest.MonkeyPatch) -> None:
    """A checkpoint names the parts of a task, and not the run of their keys."""
    after = KeyPlan.after

    def without(self: KeyPlan, answers: Sequence[KeyAnswer], checkpoint_id: int) -> SeenKeys:
        return after(self, [answers[0].model_copy(update={"fresh": ()}), *answers[1:]], checkpoint_id)

    patch.setattr(KeyPlan, "after", without)


def cleaner_takes_every_run(patch: pytest.MonkeyPatch) -> None:
    """The cleaner takes the run files that checkpoints name."""
    patch.setattr(clean, "run_paths", lambda _state: [])


def what_a_rival_has_deleted_is_damage(patch: pytest.MonkeyPatch) -> None:
    """A driver that misses a run, or the state of one of its tasks, does not look whether it was taken over."""
    patch.setattr(SinkCoordinator, "check_fence", lambda _self: None)


DISTINCT_MUTATIONS: dict[Mutation, int] = {
    cleaner_takes_every_run: 20,
    keys_forgotten_by_a_start: 0,
    keys_of_a_task_lost: 0,
    runs_deleted_at_once: 0,
    what_a_rival_has_deleted_is_damage: 0,
}
"""Each with the first seed whose schedule of a sink that deduplicates finds it; see ``MUTATIONS``."""
