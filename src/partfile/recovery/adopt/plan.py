"""The plan for adopting a tree that another sink has written, as it is printed and as JSON. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from partfile.recovery.adopt.flink_names import FlinkNames
from partfile.recovery.documents import Json, Plan

if TYPE_CHECKING:
    from partfile.stores.base import StoredFile


NOT_COMMITTED = ".not-committed"
"""Ends the names of files in the quarantine that readers would see by their own: a glob looks into any directory."""

Layout = Literal["flink", "spark"]
ForeignKind = Literal["finished", "pending", "in-progress", "sidecar", "copied", "not committed", "missing"]
ForeignAction = Literal["publish", "cut", "quarantine", "leave"]


class AdoptionOptions(Json):
    """Options of ``recover --adopt-layout``."""

    layout: Layout
    """The sink that wrote the tree."""
    publish_pending: bool = False
    """Publish closed parts of Flink although only its own state knows whether their checkpoints were completed."""
    quarantine_in_progress: bool = False
    """Move open parts of Flink away although only its own state knows whether a checkpoint vouches for some of them."""
    names: FlinkNames = FlinkNames()
    """The affixes that Flink's sink was given."""


class AdoptedItem(Json):
    """One file that is not simply finished, and what becomes of it."""

    path: str
    """Relative to the base."""
    kind: ForeignKind
    """The kind of the item."""
    action: ForeignAction
    """leave: nothing is done, and the operator has to look."""
    why: str
    """Why it is there, and why this becomes of it."""
    size: int
    """In bytes, as stored; of a missing file what the log says."""
    modified_at_ms: int
    """By the store's clock, in milliseconds since 1970."""
    valid_length: int | None = None
    """The bytes that count, where it is published or cut."""
    final_path: str | None = None
    """Its name afterwards, where it is published or cut."""
    first: tuple[str, ...] = ()
    """Files that go to the quarantine before it: Hadoop's checksums, which would not fit it any more."""
    then: tuple[str, ...] = ()
    """Files that go to the quarantine after it: its sidecar, which says nothing any more."""


class FileTotal(Json):
    """Files of one kind."""

    files: int = 0
    """Number of files."""
    bytes: int = 0
    """Of all of them, as stored."""

    def with_file(self, file: StoredFile) -> FileTotal:
        """The total with one file more."""
        return FileTotal(files=self.files + 1, bytes=self.bytes + file.size)


class AdoptionPlan(Plan):
    """The plan of ``recover --adopt-layout``."""

    options: AdoptionOptions
    """The options that were given."""
    finished: FileTotal
    """Files that are finished, or committed, and stay as they are."""
    ignored: FileTotal
    """Files that are none of that sink's, and stay as they are."""
    newest_ms: int
    """When the sink last changed anything, as far as its files tell, in milliseconds since 1970; 0 if never."""
    items: tuple[AdoptedItem, ...]
    """Everything else, by paths."""

    @property
    def to_do(self) -> tuple[AdoptedItem, ...]:
        """The items that are not left as they are."""
        return tuple(item for item in self.items if item.action != "leave")


@dataclass(frozen=True, slots=True)
class StoreAbilities:
    """The changes that the store allows on files of other programs."""

    cuts: bool
    """A staged file can be cut and published under a lease."""
    moves: bool
    """A file can be moved to the quarantine."""


def within(item: AdoptedItem, abilities: StoreAbilities) -> AdoptedItem:
    """The item as the store allows it: left, with the reason, where it cannot be done."""
    if item.action in {"publish", "cut"} and not abilities.cuts:
        return _left(item, "this store cannot cut or publish a file of another sink")
    if item.kind == "not committed" and item.action == "quarantine" and not abilities.cuts:
        return _left(item, "this store cannot give it a name that readers pass over")
    if (item.action == "quarantine" or item.first or item.then) and not abilities.moves:
        return _left(item, "this store cannot move a file to the quarantine")
    return item


def _left(item: AdoptedItem, reason: str) -> AdoptedItem:
    return item.model_copy(update={"action": "leave", "why": f"{item.why}; {reason}", "first": (), "then": ()})
