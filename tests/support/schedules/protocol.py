"""A model of the commit protocol on a local store: drivers, tasks and a consumer, one storage call at a time.

The model follows docs/PROTOCOL.md and shares no code with partfile. Each process is a generator that yields its next
storage call. The schedule draws from a seed which process goes on, dies, sleeps or meets a failing store.

Files hold rows in place of bytes, so a length is a number of rows. What was written is durable: there is no power loss.
Staging files, sidecars, savepoints and the command line are left out.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")
Call = tuple[Callable[..., Any], *tuple[Any, ...]]
"""A call on what processes share, and its arguments."""
Steps = Generator[Call, Any, T]
"""A process, or a piece of one: it yields a call, is sent what the call returns, and ends with a result."""
Row = tuple[int, int, int]
"""Its batch, its subtask and its number there."""

SUBTASKS = 2
ROWS_OF_A_SUBTASK = 2
MOST_STEPS = 2500
"""Before the last driver starts."""
MOST_LAST_STEPS = 20_000
"""From the start of the last driver to its end."""
MOST_DRIVERS = 4
MOST_RIVALS = 3
MOST_ATTEMPTS = 3
MOST_LOOKS = 100
"""A driver looks so often for a part that keeps moving, or at a log that keeps changing."""
SHOWN_STEPS = 60
_CHANGING_CALLS = {"lock", "append", "truncate", "rename", "rename_to_new", "link_to_new", "create_entry", "mark"}


class Mutation(Enum):
    """The single changes of the protocol under which some schedule breaks a promise."""

    NO_FENCE = "no_fence"
    """A driver creates its entry although another driver has the id (R7)."""
    NO_PREDECESSOR_CHECK = "no_predecessor_check"
    """An entry counts although its predecessor is gone (R7)."""
    TAKEOVER_COMES_LAST = "takeover_comes_last"
    """A start publishes what the last driver left, and creates its takeover after that (R7)."""
    PUBLISH_EARLY = "publish_early"
    """A driver publishes the parts of a checkpoint before it creates the checkpoint (R1)."""
    OWED_PARTS_FORGOTTEN = "owed_parts_forgotten"
    """A start drops the parts that the last driver had still to publish (R5)."""
    REPLAY_NOT_RECOGNISED = "replay_not_recognised"
    """A driver writes a batch again that the newest checkpoint holds."""
    NO_LOCK = "no_lock"
    """Every process gets every lease (R2)."""
    NO_LENGTH_CHECK = "no_length_check"
    """A task appends to a part of any length, and looks at no length before it answers (R2)."""
    NO_INODE_CHECK = "no_inode_check"
    """No process looks whether a name still means the file that it has locked (R2)."""
    LEFT_PARTS_FORGOTTEN = "left_parts_forgotten"
    """A task does not report the part that it had to leave alone (R2)."""
    RESUME_AFTER_CRASH = "resume_after_crash"
    """A start after a crash keeps parts open, and tasks append to them whatever their length (R2)."""
    CUT_WITHOUT_LEASE = "cut_without_lease"
    """A driver cuts and publishes a part whose lease another process holds (R3)."""
    COPY_KEEPS_ORIGINAL = "copy_keeps_original"
    """The original of a copy keeps its staged name (R3)."""
    COPY_IS_SHOWN_FIRST = "copy_is_shown_first"
    """A copy becomes visible before its original loses its staged name (R3)."""
    COPY_BY_ANY_DRIVER = "copy_by_any_driver"
    """A driver publishes its new copy although another driver has taken the name of the original (R3)."""
    COPIER_STOPS_BESIDE_A_RIVAL = "copier_stops_beside_a_rival"
    """Every rule is kept; the schedule has the deaths and failures that ``World`` spares copying drivers."""
    NAMES_COLLIDE = "names_collide"
    """Staged names have no token; a task takes the next number whose in-progress name is free (R4)."""
    REPLACE_FINISHED = "replace_finished"
    """A driver publishes what has a staged name although the final name is taken (R4)."""
    PUBLISH_LEAVES_SOURCE = "publish_leaves_source"
    """A part becomes visible before it loses its staged name, where a consumer takes files (R5)."""
    FIRST_MISS_IS_LOSS = "first_miss_is_loss"
    """A driver takes a part for lost that it misses once (R5)."""
    PUBLISHED_MARK_FORGOTTEN = "published_mark_forgotten"
    """A start looks for the parts of a checkpoint that is marked as published (R5)."""
    FINISHED_STAYS_IN_STATE = "finished_stays_in_state"
    """No checkpoint takes the finished parts out of the state while others are owed (R5)."""


class Violation(AssertionError):
    """A promise of the protocol was broken."""


class Fenced(Exception):
    """Another driver has taken the log over."""


class Refused(Exception):
    """A start goes on from no such position."""


class StoreFailure(Exception):
    """The store did not do a call, or the part is another driver's at this moment."""


class Moved(Exception):
    """A part is no longer under the name at which it was seen, or has been published."""


class TaskFailed(Exception):
    """A task has lost the name of its part, so its answer would vouch for nothing."""


# What checkpoints hold.


class Name(NamedTuple):
    """The name of a file of a part."""

    subtask: int
    number: int
    token: str
    state: str

    def __str__(self) -> str:
        return ".".join(filter(None, (f"{self.subtask}-{self.number}", self.token, self.state)))


class Part(NamedTuple):
    """A part as a state holds it: its handle, and what decides who may append."""

    subtask: int
    number: int
    token: str
    length: int
    """The valid length."""
    epoch: int
    """Tasks of this epoch alone append to it."""
    since: int = 0
    """The first checkpoint that holds the part as pending."""

    def __repr__(self) -> str:
        return f"{self.subtask}-{self.number}.{self.token}[:{self.length}]"

    @property
    def in_progress(self) -> Name:
        """The name under which a task writes the part."""
        return Name(self.subtask, self.number, self.token, "in-progress")

    @property
    def pending(self) -> Name:
        """The name under which the part waits for its publication."""
        return Name(self.subtask, self.number, self.token, "pending")

    @property
    def copy(self) -> Name:
        """The pending name of the cut copy; it follows from the handle."""
        return Name(self.subtask, self.number, f"{self.token}'", "pending")

    @property
    def final(self) -> Name:
        """The name that readers see."""
        return Name(self.subtask, self.number, "", "finished")

    @property
    def staged_names(self) -> tuple[Name, Name, Name]:
        """The names before the final one, in the order in which a part moves."""
        return self.in_progress, self.pending, self.copy


class PartMissing(Exception):
    """A part that a checkpoint holds is under none of its names.

    Args:
        part: The part.
    """

    def __init__(self, part: Part) -> None:
        super().__init__(part.final)
        self.part = part


class State(NamedTuple):
    """The state of the sink as of one checkpoint."""

    batch: int = 0
    """The last batch that it holds."""
    open: Mapping[int, Part] = {}
    """The open part of each subtask that has one."""
    pending: tuple[Part, ...] = ()
    max_number: int = 0
    kept: bool = False
    """A clean stop has kept the open parts for the next driver."""


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """One entry of the checkpoint log; two of them are never equal, as if each had a nonce."""

    number: int
    epoch: int
    predecessor: Entry | None
    state: State | None
    """None in a tombstone."""

    def __repr__(self) -> str:
        return f"chk-{self.number} of epoch {self.epoch} with {self.state or 'no state'}"


# The disk, the checkpoint log on it, and who looks at finished files.


@dataclass(slots=True, eq=False)
class File:
    """The rows of a file, and who has locked it."""

    number: int
    rows: list[Row] = field(default_factory=list)
    links: int = 0
    holder: Actor | None = None
    is_finished: bool = False
    """A reader has seen it; it must never change again."""

    def __repr__(self) -> str:
        return f"file {self.number}"


class Readers:
    """What readers have seen, and what they must never see.

    Args:
        consumes: Whether a consumer takes each finished file the instant it is visible.
    """

    def __init__(self, *, consumes: bool) -> None:
        self.consumes = consumes
        self.shown: set[Name] = set()
        """Final names that a file has had."""
        self.rows: set[Row] = set()
        """The rows of finished files, whether a consumer has taken them or they lie there."""
        self._promised: set[tuple[Name, int]] = set()

    def promise(self, parts: Iterable[Part]) -> None:
        """Note what a completed checkpoint holds as pending: nothing else may be published."""
        self._promised.update((part.final, part.length) for part in parts)

    def see(self, name: Name, file: File) -> None:
        """Look at a file that has just got a final name."""
        if (name, len(file.rows)) not in self._promised:
            raise Violation(f"{name} is visible with {file.rows}, and no completed checkpoint holds it so")
        doubled = self.rows.intersection(file.rows)
        if doubled:
            raise Violation(f"{name} is visible with rows that were seen before: {sorted(doubled)}")
        self.rows.update(file.rows)
        self.shown.add(name)
        file.is_finished = True


class Disk:
    """The parts. Each method is one storage call.

    Args:
        readers: They look at each finished file the instant it is visible.
        mutation: What is changed.
    """

    def __init__(self, readers: Readers, mutation: Mutation | None) -> None:
        self._readers = readers
        self._has_locks = mutation is not Mutation.NO_LOCK
        self._replaces = mutation is Mutation.REPLACE_FINISHED
        self._names: dict[Name, File] = {}
        self._numbers = itertools.count(1)

    def look(self, name: Name) -> File | None:
        """Find what has a name."""
        return self._names.get(name)

    def status(self, file: File) -> tuple[int, int]:
        """The length of an open file, and how many names it has."""
        return len(file.rows), file.links

    def create(self, name: Name) -> File | None:
        """Create a file under a free name; None if the name is taken."""
        if name in self._names:
            return None
        file = File(next(self._numbers))
        self._give(name, file)
        return file

    def lock(self, file: File, actor: Actor) -> bool:
        """Lock an open file without waiting."""
        if file.holder is not None and self._has_locks:
            return False
        file.holder = actor
        actor.locked.append(file)
        return True

    def unlock(self, file: File, actor: Actor) -> None:
        """Release the lock of an open file."""
        actor.locked.remove(file)
        if file.holder is actor:
            file.holder = None

    def append(self, file: File, rows: Iterable[Row]) -> None:
        """Add rows to an open file."""
        self._check_unfinished(file)
        file.rows.extend(rows)

    def truncate(self, file: File, length: int) -> None:
        """Cut an open file."""
        self._check_unfinished(file)
        del file.rows[length:]

    def rename(self, name: Name, new_name: Name) -> bool:
        """Rename a file to a staged name and replace what has it; False if there is no file."""
        file = self._names.get(name)
        if file is None:
            return False
        self._take(name)
        if new_name in self._names:
            self._take(new_name)
        self._give(new_name, file)
        return True

    def rename_to_new(self, name: Name, new_name: Name) -> bool:
        """Rename a file and replace nothing; False if there is no file, or the new name is taken."""
        if new_name in self._names and not self._replaces:
            return False
        return self.rename(name, new_name)

    def link_to_new(self, name: Name, new_name: Name) -> bool:
        """Give a file a second name; False if there is no file, or the new name is taken."""
        file = self._names.get(name)
        if file is None or (new_name in self._names and not self._replaces):
            return False
        self.unlink(new_name)
        self._give(new_name, file)
        return True

    def unlink(self, name: Name) -> None:
        """Take a name away; a name that is not there counts as done."""
        if name in self._names:
            self._take(name)

    def _give(self, name: Name, file: File) -> None:
        self._names[name] = file
        file.links += 1
        if name.state == "finished":
            self._readers.see(name, file)
            if self._readers.consumes:
                del self._names[name]
                file.links -= 1

    def _take(self, name: Name) -> None:
        if name.state == "finished":
            raise Violation(f"the finished file {name} is deleted or replaced")
        self._names.pop(name).links -= 1

    def _check_unfinished(self, file: File) -> None:
        if file.is_finished:
            raise Violation(f"{file} is finished, and changes")


class LogDirectory:
    """The checkpoint log on the disk. Each method is one storage call.

    Args:
        readers: They are told which parts a completed checkpoint holds.
        mutation: What is changed.
    """

    def __init__(self, readers: Readers, mutation: Mutation | None) -> None:
        self._readers = readers
        self._replaces = mutation is Mutation.NO_FENCE
        self._entries: dict[int, Entry] = {}
        self._marks: set[int] = set()

    @property
    def newest(self) -> int:
        """The id of the newest entry: the truth, which no process knows."""
        return max(self._entries, default=0)

    def list_directories(self) -> list[int]:
        """The ids that have a directory."""
        return sorted(self._entries.keys() | self._marks)

    def list_directory(self, number: int) -> tuple[bool, bool]:
        """Whether the directory of an id holds an entry, and whether it holds a mark."""
        return number in self._entries, number in self._marks

    def read(self, number: int) -> Entry | None:
        """Read an entry; None if it is not there."""
        return self._entries.get(number)

    def create_entry(self, entry: Entry) -> bool:
        """Create an entry whole or not at all; False if the id is taken."""
        if entry.number in self._entries and not self._replaces:
            return False
        self._entries[entry.number] = entry
        before = entry.predecessor
        if entry.state is not None and (before is None or self._entries.get(before.number) is before):
            self._readers.promise(entry.state.pending)
        return True

    def mark(self, number: int) -> None:
        """Note that every part of a checkpoint has its final name."""
        self._marks.add(number)

    def is_marked(self, number: int) -> bool:
        """Whether that is noted."""
        return number in self._marks

    def delete_entry(self, number: int) -> None:
        """Delete an entry; absent counts as done."""
        self._entries.pop(number, None)

    def delete_directory(self, number: int) -> None:
        """Delete the directory of an id with whatever is in it."""
        self.delete_entry(number)
        self._marks.discard(number)


class Engine:
    """The engine's own record of completed batches, from which it says which batch comes next."""

    def __init__(self) -> None:
        self._completed = 0

    def completed(self) -> int:
        """The last batch that the engine knows to be complete."""
        return self._completed

    def complete(self, batch: int) -> None:
        """Note that a driver has returned from a batch."""
        self._completed = max(self._completed, batch)


# Processes.


@dataclass(slots=True, eq=False)
class Actor:
    """One process as the schedule sees it."""

    name: str
    process: Steps[None] | None = None
    """None until it is started."""
    next_call: Call | None = None
    """The call that it makes in its next turn."""
    locked: list[File] = field(default_factory=list)
    submission: Submission | None = None
    """The batch that it is a task of; None for a driver."""
    subtask: int = 0
    is_publishing: bool = False
    """The store may fail now; the driver knows what to do then."""
    copied: Name | None = None
    """The final name of the part that the driver copies, from the naming of the copy to its publication."""

    def __repr__(self) -> str:
        return self.name

    def is_about_to_change(self) -> bool:
        """Whether the next call changes what others see, so that a sleep before it matters."""
        return self.next_call is not None and self.next_call[0].__name__ in _CHANGING_CALLS


class Answer(NamedTuple):
    """What a task tells its driver."""

    open: Part | None
    pending: tuple[Part, ...]
    max_number: int


@dataclass(slots=True)
class Submission:
    """One run of a batch by a driver."""

    batch: int
    checkpoint: int
    """The id of the checkpoint that will hold the answers."""
    epoch: int
    state: State
    answers: dict[int, Answer] = field(default_factory=dict)
    attempts: Counter[int] = field(default_factory=Counter)
    running: Counter[int] = field(default_factory=Counter)

    def take(self, subtask: int, answer: Answer) -> None:
        """Take the first answer of a subtask."""
        self.answers.setdefault(subtask, answer)


class Task:
    """One attempt of a subtask: it appends to the open part as its sole owner, or else creates a part.

    Args:
        world: Where it runs.
        actor: The process that it is.
        submission: Its batch.
        attempt: The attempt number that the engine tells it.
    """

    def __init__(self, world: World, actor: Actor, submission: Submission, attempt: int) -> None:
        self._world, self._disk, self._actor = world, world.disk, actor
        self._submission, self._subtask, self._attempt = submission, actor.subtask, attempt
        self._assigned = submission.state.open.get(actor.subtask)
        self._max_number = submission.state.max_number
        self._left: list[Part] = []
        """Parts that take no more rows."""

    def run(self) -> Steps[None]:
        """Write the rows, release every lease, and answer; the first answer of a subtask counts."""
        try:
            opened = yield from self._write(self._world.rows_of(self._submission.batch, self._subtask))
        except TaskFailed:
            return
        pending = tuple(part._replace(since=self._submission.checkpoint) for part in self._left)
        answer = Answer(opened, pending, self._max_number)
        yield self._submission.take, self._subtask, answer

    def _write(self, rows: list[Row]) -> Steps[Part | None]:
        """Write rows to a part or two, and return the one that stays open."""
        rng = self._world.rng
        if not rows:
            opened = self._assigned
            if opened is not None and rng.random() < 0.2:
                # A part without new rows is rolled in the state alone.
                self._left.append(opened)
                return None
            return opened
        part, file = yield from self._first_part()
        for number, row in enumerate(rows):
            if number and rng.random() < 0.1:
                self._left.append((yield from self._end(part, file)))
                part, file = yield from self._create()
            yield self._disk.append, file, (row,)
            part = part._replace(length=part.length + 1)
        if rng.random() < 0.4:
            self._left.append((yield from self._end(part, file)))
            return None
        yield from self._verify(part, file)
        yield self._disk.unlock, file, self._actor
        return part

    def _first_part(self) -> Steps[tuple[Part, File]]:
        part = self._assigned
        if part is not None:
            file = yield from self._resume(part)
            if file is not None:
                return part, file
            if self._world.mutation is not Mutation.LEFT_PARTS_FORGOTTEN:
                self._left.append(part)
        return (yield from self._create())

    def _resume(self, part: Part) -> Steps[File | None]:
        """Open a part to append to it; None if the task has to leave it alone (R2)."""
        if part.epoch != self._submission.epoch or self._attempt:
            return None
        file: File | None = yield self._disk.look, part.in_progress
        if file is None or not (yield self._disk.lock, file, self._actor):
            return None
        if not (yield from self._is_under_its_name(part, file)):
            yield self._disk.unlock, file, self._actor
            return None
        length, links = yield self._disk.status, file
        if links > 1 or (length != part.length and self._world.checks_lengths):
            yield self._disk.unlock, file, self._actor
            return None
        return file

    def _create(self) -> Steps[tuple[Part, File]]:
        """Create a part under a number beyond the committed ones, with a token of its own (R4)."""
        file: File | None = None
        while file is None:
            self._max_number += 1
            part = Part(self._subtask, self._max_number, self._world.new_token(), 0, self._submission.epoch)
            file = yield self._disk.create, part.in_progress
        if not (yield self._disk.lock, file, self._actor):
            raise TaskFailed
        return part, file

    def _is_under_its_name(self, part: Part, file: File) -> Steps[bool]:
        named: File | None = yield self._disk.look, part.in_progress
        return named is file or self._world.mutation is Mutation.NO_INODE_CHECK

    def _verify(self, part: Part, file: File) -> Steps[None]:
        """See that the part is under its name with no rows but the task's; release it otherwise."""
        length, _ = yield self._disk.status, file
        is_named = yield from self._is_under_its_name(part, file)
        if not is_named or (length != part.length and self._world.checks_lengths):
            yield self._disk.unlock, file, self._actor
            raise TaskFailed

    def _end(self, part: Part, file: File) -> Steps[Part]:
        """Make a part pending and release it."""
        yield from self._verify(part, file)
        is_renamed = yield self._disk.rename, part.in_progress, part.pending
        yield self._disk.unlock, file, self._actor
        if not is_renamed:
            raise TaskFailed
        return part


class Publisher:
    """Gives the parts of a driver their final names: the verb *publish* of the local store.

    Args:
        world: Where it works.
        actor: Its driver.
    """

    def __init__(self, world: World, actor: Actor) -> None:
        self._world, self._disk, self._actor, self._mutation = world, world.disk, actor, world.mutation

    def publish(self, part: Part) -> Steps[None]:
        """Cut a part under its lease, and rename it to pending and to its final name (R5).

        Raises:
            PartMissing: Nothing is left of it.
            StoreFailure: The part is owed.
        """
        allowed_misses = 0 if self._mutation is Mutation.FIRST_MISS_IS_LOSS else 1
        for _ in range(MOST_LOOKS):
            found: Name | None = None
            # In the order in which a part moves, so that one that moves meanwhile is still seen.
            for name in part.staged_names:
                if (yield self._disk.look, name) is not None:
                    found = name
            finished: File | None = yield self._disk.look, part.final
            if finished is not None and (found is None or self._mutation is not Mutation.REPLACE_FINISHED):
                yield from self._accept(part, finished)
                return
            if found is None:
                allowed_misses -= 1
                if allowed_misses < 0:
                    raise PartMissing(part)
                continue
            try:
                yield from self._publish_found(part, found)
            except Moved:
                continue
            return
        raise StoreFailure

    def is_staged(self, part: Part) -> Steps[bool]:
        """Whether anything has a staged name of the part."""
        for name in part.staged_names:
            if (yield self._disk.look, name) is not None:
                return True
        return False

    def _accept(self, part: Part, finished: File) -> Steps[None]:
        """Check that a finished file is the part, and take a staged name of the same file away."""
        length, _ = yield self._disk.status, finished
        if length != part.length:
            raise Violation(f"{part.final} has {length} rows, the checkpoint says {part.length}")
        for name in part.staged_names:
            file: File | None = yield self._disk.look, name
            if file is finished:
                yield self._disk.unlink, name
            elif file is not None and file.rows[:length] != finished.rows[: len(file.rows)]:
                raise Violation(f"{part.final} holds other rows than {name}")

    def _publish_found(self, part: Part, name: Name) -> Steps[None]:
        """Publish what has a staged name, under its lease or as a copy."""
        file: File | None = yield self._disk.look, name
        if file is None:
            raise Moved
        is_leased = yield self._disk.lock, file, self._actor
        try:
            yield from self._publish_open(part, name, file, is_leased=is_leased)
        except (Moved, StoreFailure):
            if is_leased:
                yield self._disk.unlock, file, self._actor
            raise
        if is_leased:
            yield self._disk.unlock, file, self._actor

    def _publish_open(self, part: Part, name: Name, file: File, *, is_leased: bool) -> Steps[None]:
        # A rival may have moved or published the file before the lease was there.
        if is_leased and self._mutation is not Mutation.NO_INODE_CHECK and (yield self._disk.look, name) is not file:
            raise Moved
        if self._mutation is not Mutation.REPLACE_FINISHED and (yield self._disk.look, part.final) is not None:
            raise Moved
        if name == part.copy:
            if not is_leased:
                # Another driver is publishing it.
                raise StoreFailure
            yield from self._publish_copy(part)
            return
        if is_leased or self._mutation is Mutation.CUT_WITHOUT_LEASE:
            cut_name = yield from self._cut(part, name, file)
            if cut_name is not None:
                if cut_name == part.in_progress:
                    yield from self._rename(part.in_progress, part.pending)
                yield from self._show(part.pending, part.final)
                return
        yield from self._copy(part, file)

    def _cut(self, part: Part, name: Name, file: File) -> Steps[Name | None]:
        """Cut a file to its valid length, and return the name that it has then; None if it has to be copied (R3)."""
        length, links = yield self._disk.status, file
        if length < part.length:
            raise Violation(f"{name} has {length} rows, the checkpoint says {part.length}")
        is_long = length > part.length
        if links != 1 or (is_long and self._world.cuts_by_copy):
            return None
        if name == part.pending:
            if not is_long:
                return name
            # A driver cuts a file under the in-progress name alone.
            if (yield self._disk.look, part.in_progress) is not None:
                return None
            yield from self._rename(part.pending, part.in_progress)
        if is_long:
            yield self._disk.truncate, file, part.length
        return part.in_progress

    def _copy(self, part: Part, source: File) -> Steps[None]:
        """Copy the valid prefix of a file, and publish the copy."""
        length, _ = yield self._disk.status, source
        if length < part.length:
            raise Violation(f"{source} has {length} rows, the checkpoint says {part.length}")
        own = part.pending._replace(token=self._world.new_token())
        copy: File | None = yield self._disk.create, own
        if copy is None:
            raise StoreFailure
        yield self._disk.lock, copy, self._actor
        try:
            yield self._disk.append, copy, source.rows[: part.length]
            yield from self._name_copy(own, part.copy)
            self._actor.copied = part.final
            yield from self._publish_copy(part, is_new=True)
        except (Moved, StoreFailure):
            self._actor.copied = None
            yield self._disk.unlock, copy, self._actor
            raise
        self._actor.copied = None
        yield self._disk.unlock, copy, self._actor

    def _name_copy(self, own: Name, name: Name) -> Steps[None]:
        if not (yield self._disk.rename_to_new, own, name):
            yield self._disk.unlink, own
            raise Moved

    def _publish_copy(self, part: Part, *, is_new: bool = False) -> Steps[None]:
        """Publish a leased copy, after its original has lost its staged name (R3).

        The driver that takes the name from the original is the only one that publishes a copy that it has just made.
        """
        if self._mutation in {Mutation.COPY_KEEPS_ORIGINAL, Mutation.COPY_IS_SHOWN_FIRST}:
            yield from self._show(part.copy, part.final)
        if self._mutation is Mutation.COPY_KEEPS_ORIGINAL:
            return
        is_ours = False
        for name in (part.in_progress, part.pending):
            aside = part.pending._replace(token=self._world.new_token())
            is_ours |= yield self._disk.rename, name, aside
        if self._mutation is Mutation.COPY_IS_SHOWN_FIRST:
            return
        if is_new and not is_ours and self._mutation is not Mutation.COPY_BY_ANY_DRIVER:
            yield self._disk.unlink, part.copy
            raise StoreFailure
        yield from self._show(part.copy, part.final)

    def _rename(self, name: Name, new_name: Name) -> Steps[None]:
        if not (yield self._disk.rename, name, new_name):
            raise Moved

    def _show(self, name: Name, final: Name) -> Steps[None]:
        """Give a file its final name and take the staged one away: in one step, if the file system can do that."""
        call = self._disk.rename_to_new if self._world.renames_to_new else self._disk.link_to_new
        if not (yield call, name, final):
            raise Moved
        if not self._world.renames_to_new:
            yield self._disk.unlink, name


class LogEnd(NamedTuple):
    """The end of the log as a start has read it."""

    newest: Entry | None
    restored: Entry | None
    """The newest entry that holds a state."""


class DriverLog:
    """The log as one driver knows it: what it has read, and the newest entry, which is its own (R7).

    Args:
        world: Where the log is.
    """

    def __init__(self, world: World) -> None:
        self._world, self._directory = world, world.log
        self._own: Entry | None = None
        self._known: list[tuple[int, bool]] = []
        """The id of each entry that is there, oldest first, and whether it holds a state."""

    @property
    def newest(self) -> Entry:
        """The newest entry; this driver has created it."""
        assert self._own is not None
        return self._own

    def see(self) -> Steps[LogEnd]:
        """Read the end of the log."""
        for _ in range(MOST_LOOKS):
            completed, lost = [], 0
            for number in (yield (self._directory.list_directories,)):
                has_entry, has_mark = yield self._directory.list_directory, number
                if has_entry:
                    completed.append(number)
                elif has_mark:
                    lost = number
            if lost > max(completed, default=0) and lost > (yield from self._newest_number()):
                raise Violation(f"a start takes checkpoint {lost} for deleted")
            read = []
            for number in reversed(completed):
                entry: Entry | None = yield self._directory.read, number
                read.append(entry)
                if entry is None or entry.state is not None:
                    break
            if None not in read:
                entries = [entry for entry in read if entry is not None]
                # Those that were not read count as if they held a state.
                self._known = [(number, True) for number in completed[: len(completed) - len(entries)]]
                self._known += [(entry.number, entry.state is not None) for entry in reversed(entries)]
                if not entries:
                    return LogEnd(None, None)
                return LogEnd(entries[0], entries[-1])
        raise Violation("the log changes faster than a start can read it")

    def take_over(self, end: LogEnd, state: State) -> Steps[bool]:
        """Create a takeover as the successor of what was read; False if it does not count."""
        number = 1 if end.newest is None else end.newest.number + 1
        epoch = 1 if end.restored is None else end.restored.epoch + 1
        takeover = Entry(number, epoch, end.newest, state)
        if not (yield self._directory.create_entry, takeover):
            return False
        if not (yield from self._counts(takeover, is_takeover=True)):
            return False
        self._take_in(takeover)
        return True

    def extend(self, state: State | None) -> Steps[None]:
        """Create the direct successor of the newest entry; a tombstone if there is no state.

        Raises:
            Fenced: Another driver has the id, or the entry does not count.
        """
        entry = Entry(self.newest.number + 1, self.newest.epoch, self.newest, state)
        if not (yield self._directory.create_entry, entry):
            raise Fenced
        if not (yield from self._counts(entry)):
            raise Fenced
        self._take_in(entry)

    def subsume(self) -> Steps[None]:
        """Delete the entries that retention does not keep, oldest first."""
        holders = [number for number, holds_state in self._known if holds_state]
        if len(holders) <= self._world.retained:
            return
        oldest_kept = holders[-self._world.retained]
        for number in [number for number, _ in self._known if number < oldest_kept]:
            yield self._directory.delete_entry, number
            yield self._directory.delete_directory, number
            del self._known[0]

    def _take_in(self, entry: Entry) -> None:
        self._own = entry
        self._known.append((entry.number, entry.state is not None))

    def _counts(self, entry: Entry, *, is_takeover: bool = False) -> Steps[bool]:
        """Whether the predecessor of a new entry is still there, and nothing is above a takeover."""
        if self._world.mutation is Mutation.NO_PREDECESSOR_CHECK:
            return True
        before = entry.predecessor
        if before is None:
            for number in (yield (self._directory.list_directories,)):
                has_entry, _ = yield self._directory.list_directory, number
                if has_entry and number != entry.number:
                    return False
        elif (yield self._directory.read, before.number) is not before:
            return False
        return not is_takeover or (yield from self._newest_number()) == entry.number

    def _newest_number(self) -> Steps[int]:
        for number in reversed((yield (self._directory.list_directories,))):
            has_entry, _ = yield self._directory.list_directory, number
            if has_entry:
                return int(number)
        return 0


class Driver:
    """A driver: it restores, has batch after batch written, and publishes what completed checkpoints hold.

    Args:
        world: Where it runs.
        actor: The process that it is.
        may_stop: Whether it may end before the last batch.
        takes_files: Whether its user has set ``consumers_take_files``.
    """

    def __init__(self, world: World, actor: Actor, *, may_stop: bool, takes_files: bool) -> None:
        self._world, self._actor, self._may_stop, self._takes_files = world, actor, may_stop, takes_files
        self._log = DriverLog(world)
        self._publisher = Publisher(world, actor)
        self._state = State()
        self._completed = 0
        """The id of the checkpoint that this state is of."""
        self.is_finished = False
        """The driver has come to the end of the last batch and leaves nothing open or owed."""

    def run(self) -> Steps[None]:
        """Work until the batches are done, until a clean stop, or until another driver or a missing part ends it."""
        try:
            yield from self._work()
        except Fenced:
            self._world.check_rivals(f"{self._actor} is fenced")
        except Refused:
            self._world.check_rivals(f"{self._actor} refuses to go on from the newest checkpoint")
        except PartMissing as missing:
            if not self._world.readers.consumes:
                raise Violation(f"{self._actor} misses {missing.part}") from missing
            if self._takes_files:
                self._world.check_rivals(f"{self._actor} takes {missing.part} for lost")

    def _work(self) -> Steps[None]:
        world = self._world
        batch = 1 + (yield (world.engine.completed,))
        yield from self._start(batch)
        while batch <= world.batches:
            chance = world.rng.random()
            if chance < 0.12:
                yield from self._close_due()
            elif chance < 0.2 and self._may_stop:
                yield from self._close_all(keep=world.rng.random() < 0.7)
                return
            elif self._state.batch >= batch and world.mutation is not Mutation.REPLAY_NOT_RECOGNISED:
                yield from self._publish_owed()
                yield world.engine.complete, batch
                batch += 1
            elif (yield from self._batch(batch)):
                yield world.engine.complete, batch
                batch += 1
        yield from self._close_all(keep=False)
        self.is_finished = not self._state.open and not self._state.pending

    # Beginning an epoch.

    def _start(self, batch: int) -> Steps[None]:
        """Create a takeover, then publish what the last driver left.

        Raises:
            Refused: The batch is neither the last one of the newest checkpoint nor the next one.
        """
        for _ in range(MOST_LOOKS):
            end = yield from self._log.see()
            state = yield from self._restored(end, batch)
            number = 1 if end.newest is None else end.newest.number + 1
            yield from self._check_staged(state, number)
            if self._world.mutation is Mutation.TAKEOVER_COMES_LAST:
                yield from self._try_each(state.pending)
            if (yield from self._log.take_over(end, state)):
                break
        else:
            raise Fenced
        self._take_in(state)
        yield from self._publish_and_subsume()

    def _restored(self, end: LogEnd, batch: int) -> Steps[State]:
        """The state that a takeover holds: parts that must not be appended to are pending."""
        if end.restored is None or end.restored.state is None:
            return State()
        restored, mutation = end.restored.state, self._world.mutation
        if restored.batch not in {batch - 1, batch}:
            raise Refused
        number, epoch = (end.newest or end.restored).number + 1, end.restored.epoch + 1
        pending = restored.pending
        is_published = yield self._world.log.is_marked, end.restored.number
        if (is_published and mutation is not Mutation.PUBLISHED_MARK_FORGOTTEN) or (
            mutation is Mutation.OWED_PARTS_FORGOTTEN
        ):
            pending = ()
        if restored.kept or mutation is Mutation.RESUME_AFTER_CRASH:
            opened = {subtask: part._replace(epoch=epoch) for subtask, part in restored.open.items()}
            return restored._replace(open=opened, pending=pending, kept=False)
        pending += tuple(part._replace(since=number) for part in restored.open.values())
        return restored._replace(open={}, pending=pending, kept=False)

    def _check_staged(self, state: State, number: int) -> Steps[None]:
        """See that parts are there before a checkpoint first holds them as pending, where consumers take files."""
        if self._takes_files:
            for part in state.pending:
                if part.since == number and not (yield from self._publisher.is_staged(part)):
                    raise PartMissing(part)

    # A batch.

    def _batch(self, batch: int) -> Steps[bool]:
        """Have a batch written, and complete its checkpoint; False if the checkpoint was given up."""
        number, rng = self._log.newest.number + 1, self._world.rng
        submission = Submission(batch, number, self._log.newest.epoch, self._state)
        while len(submission.answers) < SUBTASKS:
            yield self.oversee, submission
        if rng.random() < 0.05:
            yield from self._log.extend(None)
            return False
        answers = submission.answers.values()
        opened = {subtask: answer.open for subtask, answer in submission.answers.items() if answer.open is not None}
        fresh = [part for answer in answers for part in answer.pending]
        max_number = max(answer.max_number for answer in answers)
        yield from self._commit(State(batch, opened, (*self._state.pending, *fresh), max_number))
        return True

    def oversee(self, submission: Submission) -> None:
        """Run a task again that has died; one that lives may get a twin, at times with its attempt number."""
        rng = self._world.rng
        for subtask in range(SUBTASKS):
            if subtask in submission.answers:
                continue
            attempts = submission.attempts[subtask]
            if not submission.running[subtask] or (attempts < MOST_ATTEMPTS and rng.random() < self._world.twins):
                self._world.start_task(submission, subtask, attempts if rng.random() < 0.5 else 0)

    def _commit(self, state: State) -> Steps[None]:
        """Complete a checkpoint, publish its parts, and subsume older ones. This order is the protocol (R1)."""
        yield from self._check_staged(state, self._log.newest.number + 1)
        if self._world.mutation is Mutation.PUBLISH_EARLY:
            yield from self._try_each(state.pending)
        yield from self._log.extend(state)
        self._take_in(state)
        yield from self._publish_and_subsume()

    def _take_in(self, state: State) -> None:
        self._state, self._completed = state, self._log.newest.number

    # Publishing.

    def _publish_and_subsume(self) -> Steps[None]:
        missing = yield from self._publish()
        yield from self._log.subsume()
        if missing is not None:
            raise missing

    def _publish_owed(self) -> Steps[None]:
        if self._state.pending:
            missing = yield from self._publish()
            if missing is not None:
                raise missing

    def _publish(self) -> Steps[PartMissing | None]:
        """Publish what the newest checkpoint owes, and note in the log what no start has to look for again (R5)."""
        parts = self._state.pending
        owed, missing = yield from self._try_each(parts)
        self._state = self._state._replace(pending=tuple(owed))
        if len(owed) < len(parts) and (yield from self._note(owed)):
            self._world.note(part for part in parts if part not in owed)
        return missing

    def _try_each(self, parts: Iterable[Part]) -> Steps[tuple[list[Part], PartMissing | None]]:
        """Publish parts, and return those that are owed, and which of them is missing."""
        owed: list[Part] = []
        missing: PartMissing | None = None
        for part in parts:
            self._actor.is_publishing = True
            try:
                yield from self._publisher.publish(part)
            except StoreFailure:
                owed.append(part)
            except PartMissing as error:
                self._world.check_not_noted(part)
                if not self._takes_files:
                    owed.append(part)
                    missing = missing or error
            self._actor.is_publishing = False
        return owed, missing

    def _note(self, owed: list[Part]) -> Steps[bool]:
        """Note which parts are finished: by a mark, or by a checkpoint that holds the owed parts alone.

        Returns:
            False if the store has failed; then the next checkpoint says it.
        """
        if owed:
            if self._world.mutation is not Mutation.FINISHED_STAYS_IN_STATE:
                yield from self._log.extend(self._state)
                self._take_in(self._state)
            return True
        self._actor.is_publishing = True
        try:
            yield self._world.log.mark, self._completed
        except StoreFailure:
            return False
        finally:
            self._actor.is_publishing = False
        return True

    # Closing.

    def _close_due(self) -> Steps[None]:
        """Close parts whose time has come by a checkpoint of its own; else try again what is owed."""
        rng = self._world.rng
        due = [part for part in self._state.open.values() if rng.random() < 0.5]
        if due:
            yield from self._commit(self._without(due))
        else:
            yield from self._publish_owed()

    def _close_all(self, *, keep: bool) -> Steps[None]:
        """End cleanly: every open part is closed, or all are kept for the next driver."""
        if self._state.open or self._state.pending:
            kept = self._state._replace(kept=True)
            yield from self._commit(kept if keep else self._without(self._state.open.values()))

    def _without(self, over: Iterable[Part]) -> State:
        """The state with open parts closed."""
        number, gone = self._log.newest.number + 1, {part.subtask for part in over}
        opened = {subtask: part for subtask, part in self._state.open.items() if subtask not in gone}
        closed = [part._replace(since=number) for subtask, part in self._state.open.items() if subtask in gone]
        return self._state._replace(open=opened, pending=(*self._state.pending, *closed))


# The schedule.


class World:
    """One schedule, from its first driver to its last.

    Args:
        seed: Of everything that is drawn.
        mutation: What is changed of the protocol; None changes nothing.
        shown: How many of its last steps the schedule keeps as text.
    """

    def __init__(self, seed: int, mutation: Mutation | None = None, shown: int = 0) -> None:
        self.rng = rng = random.Random(seed)
        self.mutation = mutation
        consumes = rng.random() < 0.5
        self.readers = Readers(consumes=consumes)
        self.disk = Disk(self.readers, mutation)
        self.log = LogDirectory(self.readers, mutation)
        self.engine = Engine()
        self.batches = rng.randrange(2, 5)
        self.retained = rng.choice((1, 2, 2, 3))
        self.cuts_by_copy = rng.random() < 0.4
        self.renames_to_new = rng.random() < 0.8 or consumes
        if mutation is Mutation.PUBLISH_LEAVES_SOURCE:
            self.renames_to_new = False
        self.checks_lengths = mutation not in {Mutation.NO_LENGTH_CHECK, Mutation.RESUME_AFTER_CRASH}
        self._takes_files = consumes and rng.random() < 0.7
        self._failures = rng.choice((0.0, 0.02))
        """How likely a call of a driver that publishes is to fail."""
        self._trouble = rng.choice((0.02, 0.04, 0.08))
        """How likely a process is to die, to sleep or to get a rival before a step."""
        self._wakes = rng.choice((0.005, 0.03))
        """How likely a sleeping process is to wake up before a step."""
        self._rivals = rng.choice((0.0, 0.2, 0.5))
        """How likely trouble is to be a rival."""
        self.twins = rng.choice((0.05, 0.2))
        """How likely a task that lives is to get a twin, whenever its driver looks."""
        self._awake: list[Actor] = []
        self._asleep: list[Actor] = []
        self._drivers = self._living_drivers = 0
        self._had_rivals = False
        self._noted: set[Name] = set()
        self._tokens = itertools.count(1)
        self._tasks = itertools.count(1)
        self.steps: deque[str] | None = deque(maxlen=shown) if shown else None
        """The last steps, as text; None if they are not kept."""

    def rows_of(self, batch: int, subtask: int) -> list[Row]:
        """The rows of a subtask in a batch: the same whenever the batch is run, and none at times."""
        count = 0 if (batch + subtask) % 4 == 0 else ROWS_OF_A_SUBTASK
        return [(batch, subtask, number) for number in range(count)]

    def new_token(self) -> str:
        """A token that no other file has."""
        return "" if self.mutation is Mutation.NAMES_COLLIDE else f"t{next(self._tokens)}"

    def start_task(self, submission: Submission, subtask: int, attempt: int) -> None:
        """Begin an attempt of a subtask."""
        name = f"task {next(self._tasks)} (batch {submission.batch}, subtask {subtask}, attempt {attempt})"
        submission.attempts[subtask] += 1
        submission.running[subtask] += 1
        actor = Actor(name, submission=submission, subtask=subtask)
        self._begin(actor, Task(self, actor, submission, attempt).run())

    def note(self, parts: Iterable[Part]) -> None:
        """A driver has noted in the log that parts are finished."""
        self._noted.update(part.final for part in parts)

    def check_not_noted(self, part: Part) -> None:
        """See that the log has not said already that a part is finished which a driver looks for.

        Two drivers that run at once may both look for one part, so this holds where one ran after the other.
        """
        if part.final in self._noted and not self._had_rivals:
            raise Violation(f"a driver looks for {part.final}, which the log has said to be finished")

    def check_rivals(self, event: str) -> None:
        """See that what only rivals can bring about has not happened without any."""
        if not self._had_rivals:
            raise Violation(f"{event}, and there was no other driver beside it")

    def run(self) -> None:
        """Let everything happen.

        Raises:
            Violation: A promise was broken.
        """
        for _ in range(MOST_STEPS):
            if not self._living_drivers:
                if self._drivers == MOST_DRIVERS:
                    break
                self._start_driver(may_stop=True)
            self._take_turn()
        self._end()

    def _end(self) -> None:
        """Kill every driver; a last one comes to its end beside the zombies, and then they do."""
        for actor in self._all_drivers():
            self._kill(actor)
        self._failures = self._trouble = 0.0
        last = self._start_driver(may_stop=False)
        for _ in range(MOST_LAST_STEPS):
            if not self._living_drivers:
                break
            self._take_turn()
        if not last.is_finished:
            raise Violation("the last driver does not come to its end")
        self._awake += self._asleep
        self._asleep.clear()
        while self._awake:
            self._take_turn()
        batches, subtasks = range(1, self.batches + 1), range(SUBTASKS)
        expected = {row for batch in batches for subtask in subtasks for row in self.rows_of(batch, subtask)}
        if self.readers.rows != expected:
            raise Violation(f"in the end these rows are lost: {sorted(expected - self.readers.rows)}")

    def _make_trouble(self) -> None:
        """Begin a rival, kill a process, or let one sleep before a call that matters."""
        rng = self.rng
        if rng.random() < self._rivals:
            if self._living_drivers < MOST_RIVALS and self._drivers < MOST_DRIVERS:
                self._start_driver(may_stop=True)
        elif rng.random() < 0.4:
            drivers = self._all_drivers()
            self._kill(rng.choice(drivers if rng.random() < 0.5 and drivers else self._awake))
        else:
            actor = rng.choice([actor for actor in self._awake if actor.is_about_to_change()] or self._awake)
            self._awake.remove(actor)
            self._asleep.append(actor)

    def _start_driver(self, *, may_stop: bool) -> Driver:
        self._had_rivals |= self._living_drivers > 0
        self._drivers += 1
        self._living_drivers += 1
        actor = Actor(f"driver {self._drivers}")
        takes_files = self._takes_files or (self.readers.consumes and not may_stop)
        driver = Driver(self, actor, may_stop=may_stop, takes_files=takes_files)
        self._begin(actor, driver.run())
        return driver

    def _begin(self, actor: Actor, process: Steps[None]) -> None:
        actor.process, actor.next_call = process, next(process)
        self._awake.append(actor)

    def _all_drivers(self) -> list[Actor]:
        return [actor for actor in (*self._awake, *self._asleep) if actor.submission is None]

    def _take_turn(self) -> None:
        """Let one process make its next call, rather one of the latest; before that there may be trouble."""
        rng, awake = self.rng, self._awake
        chance = rng.random()
        if chance < self._trouble and awake:
            self._make_trouble()
        if self._asleep and (chance > 1 - self._wakes or not awake):
            awake.append(self._asleep.pop(rng.randrange(len(self._asleep))))
        if awake:
            place = int(rng.random() * (len(awake) + 1))
            self._step(awake[place if place < len(awake) else -1])

    def _step(self, actor: Actor) -> None:
        assert actor.process is not None
        assert actor.next_call is not None
        function, *arguments = actor.next_call
        is_failing = actor.is_publishing and self.rng.random() < self._failures and not self._is_spared(actor)
        if self.steps is not None and function.__name__ != "oversee":
            said = ", ".join(map(str, arguments))
            self.steps.append(f"{actor}: {function.__name__}({said}){' fails' if is_failing else ''}")
        try:
            if is_failing:
                actor.next_call = actor.process.throw(StoreFailure())
            else:
                actor.next_call = actor.process.send(function(*arguments))
        except StopIteration:
            self._remove(actor)

    def _is_spared(self, actor: Actor) -> bool:
        """Whether a driver has named its copy of a part whose original a rival may show or has shown.

        If the driver stops there and a consumer takes the original, a later start publishes the copy. The rows come
        twice then, which section 7 of the protocol does not promise away.
        """
        is_watched = actor.copied is not None and (self._living_drivers > 1 or actor.copied in self.readers.shown)
        return is_watched and self.readers.consumes and self.mutation is not Mutation.COPIER_STOPS_BESIDE_A_RIVAL

    def _kill(self, actor: Actor) -> None:
        """SIGKILL: a task or driver ends where it stands, and the kernel releases its locks."""
        if self._is_spared(actor):
            return
        if self.steps is not None:
            self.steps.append(f"{actor} is killed")
        self._remove(actor)

    def _remove(self, actor: Actor) -> None:
        (self._awake if actor in self._awake else self._asleep).remove(actor)
        for file in actor.locked:
            if file.holder is actor:
                file.holder = None
        if actor.submission is None:
            self._living_drivers -= 1
        else:
            actor.submission.running[actor.subtask] -= 1


def violation_of(seed: int, mutation: Mutation | None = None) -> str | None:
    """Run the schedule of a seed, and return what has gone wrong with its last steps; None if nothing has."""
    try:
        World(seed, mutation).run()
    except Violation:
        pass
    else:
        return None
    # The same run again, with its steps.
    world = World(seed, mutation, SHOWN_STEPS)
    try:
        world.run()
    except Violation as violation:
        return "\n".join((f"seed {seed}: {violation}; the last steps:", *(world.steps or ())))
    return f"seed {seed}: a violation that does not come again"
