"""Single changes of the protocol under which some schedule must lose or double a row: the model can see that."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from partfile.recovery import clean, clean_plan
from partfile.recovery.inspect import files as knowledge
from partfile.sink import plan
from partfile.sink.coordinator import SinkCoordinator
from partfile.sink.plan import Action
from partfile.snapshot.checkpoint_log import Chain
from partfile.stores.local import stream
from partfile.stores.local import tree as local_files
from partfile.testing.faults import TrackedCalls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pytest

    from partfile.stores.local.tree import LocalTree

    Mutation = Callable[[pytest.MonkeyPatch], None]


def no_lock(patch: pytest.MonkeyPatch) -> None:
    """Everybody gets every lock."""
    patch.setattr(TrackedCalls, "lock", lambda *_: True)


def no_length_check(patch: pytest.MonkeyPatch) -> None:
    """A part of any length is resumed, and is not looked at before it is answered for."""
    patch.setattr(stream, "_why_refused", lambda *_: "")
    patch.setattr(stream.LocalPartStream, "verify", lambda _self: None)


def replaced_names(patch: pytest.MonkeyPatch) -> None:
    """Links and finished files replace what has their name."""

    def rename(_calls: TrackedCalls, directory: int, name: str, new_name: str) -> None:
        os.rename(name, new_name, src_dir_fd=directory, dst_dir_fd=directory)

    patch.setattr(TrackedCalls, "link", rename)


def replaced_links(patch: pytest.MonkeyPatch) -> None:
    """A link is created whether its name is taken or not: two coordinators both win."""
    create: Callable[..., None] = local_files.create_whole

    def replace(tree: LocalTree, path: str, data: bytes) -> None:
        if path.endswith("/_metadata"):
            local_files.delete_one(tree, path)
        create(tree, path, data)

    patch.setattr(local_files, "create_whole", replace)


def no_predecessor(patch: pytest.MonkeyPatch) -> None:
    """A link counts although the one before it is gone."""
    patch.setattr(Chain, "_predecessor_stands", lambda *_: True)
    patch.setattr(Chain, "_is_last", lambda *_: True)


def published_early(patch: pytest.MonkeyPatch) -> None:
    """Parts are published before their checkpoint is complete."""
    complete: Any = SinkCoordinator._complete

    def early(self: SinkCoordinator, after: plan.SinkSnapshot) -> object:
        self._publisher.publish(after.pending)
        return complete(self, after)

    patch.setattr(SinkCoordinator, "_complete", early)


def nothing_owed(patch: pytest.MonkeyPatch) -> None:
    """A start forgets what the last one had still to publish."""
    begin = plan.begin_generation

    def forget(restored: plan.SinkSnapshot, **options: Any) -> plan.SinkSnapshot:
        return begin(restored, **(options | {"published": True}))

    patch.setattr(plan, "begin_generation", forget)


def everything_kept(patch: pytest.MonkeyPatch) -> None:
    """A start keeps the parts of a crashed run open, and their new owner appends to them whatever their length."""
    begin = plan.begin_generation

    def keep(restored: plan.SinkSnapshot, **options: Any) -> plan.SinkSnapshot:
        position = restored.position.model_copy(update={"kept": True})
        return begin(replace(restored, position=position), **options)

    patch.setattr(plan, "begin_generation", keep)
    patch.setattr(stream, "_why_refused", lambda *_: "")


def any_attempt(patch: pytest.MonkeyPatch) -> None:
    """Any attempt of any generation resumes, without a lock."""
    patch.setattr("partfile.sink.plan.before_resuming", lambda *_, **__: Action.KEEP)
    patch.setattr(TrackedCalls, "lock", lambda *_: True)


def no_look_under_the_lock(patch: pytest.MonkeyPatch) -> None:
    """What has the name of a locked part is not looked at again."""
    patch.setattr("partfile.stores.local.tree.LocalTree.names", lambda *_: True)


def cleaner_without_checkpoints(patch: pytest.MonkeyPatch) -> None:
    """The cleaner takes away what retained checkpoints name."""
    patch.setattr(knowledge, "parts_of", lambda *_: ())


def cleaner_without_age_generation_and_plan(patch: pytest.MonkeyPatch) -> None:
    """The cleaner takes what is just being written, owns no sink and looks once: any one rule kept saves the rows."""
    for module in (clean, clean_plan):
        patch.setattr(module, "cutoff_ms", lambda *_: sys.maxsize)

    @contextmanager
    def nobody(*_: object) -> Iterator[SimpleNamespace]:
        chain = SimpleNamespace(newest_linked_id=lambda: 0)
        yield SimpleNamespace(storage=chain, coordinator=SimpleNamespace(newest_checkpoint_id=0))

    patch.setattr(clean, "_held", nobody)
    patch.setattr(clean, "check_same", lambda *_: None)


MUTATIONS: dict[Mutation, int] = {
    any_attempt: 12,
    cleaner_without_age_generation_and_plan: 7,
    cleaner_without_checkpoints: 0,
    everything_kept: 3,
    no_length_check: 24,
    no_lock: 31,
    no_look_under_the_lock: 25,
    no_predecessor: 28,
    nothing_owed: 1,
    published_early: 0,
    replaced_links: 23,
    replaced_names: 85,
}
"""Each with the first seed whose schedule finds it, as the code is; any other may when that changes."""
