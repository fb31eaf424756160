"""The plan for each file that Flink's BucketingSink has left: decided from names, sizes and sidecars alone. Pure.

Which checkpoints Flink has completed is in Flink's own state, so it is unknown here whether the rows of a pending
part, or the beginning of one in progress, come again. What can be known: a finished part with a valid length counts up
to there, since Flink writes that when it restores a checkpoint. Flink gives the part its final name first, so the
sidecar is the younger of the two; where it is not, the name was used again, since Flink looks for a free name among the
parts, not among the sidecars. A staged part with a sidecar is one whose cut was killed here. A pending part is closed
and whole.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from partfile.readers.files import is_hidden
from partfile.recovery.adopt.plan import AdoptedItem, AdoptionPlan, FileTotal, within
from partfile.stores.parts import rewritten

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from partfile.recovery.adopt.flink_names import FlinkNames, FlinkRole
    from partfile.recovery.adopt.plan import AdoptionOptions, ForeignAction, StoreAbilities
    from partfile.stores.base import StoredFile


_STAGED: tuple[FlinkRole, ...] = ("pending", "in-progress")
_UNDECIDED = (
    "it is closed and whole; whether its checkpoint was completed is known to Flink's state alone. --publish-pending "
    "publishes it: right if that job never runs again from an older checkpoint"
)
_OPEN = (
    "Flink's state alone knows whether its last checkpoint vouches for the beginning of it; if so, a restart publishes "
    "that, and cannot once it is moved. --quarantine-in-progress moves it: right if that job never runs again"
)
_USED_AGAIN = (
    "Flink may have used the name again, when a consumer had moved away the file that the sidecar is about. If so move "
    "the sidecar away"
)


@dataclass(slots=True)
class FlinkPart:
    """The files of one part."""

    bucket: str
    final_name: str
    files: dict[FlinkRole, StoredFile] = field(default_factory=dict)
    copied: list[StoredFile] = field(default_factory=list)
    checksums: dict[str, str] = field(default_factory=dict)
    """Paths of Hadoop's checksum files that are there, by the path of what each is about."""

    @property
    def final_path(self) -> str:
        """Its path when it is finished."""
        return _path(self.bucket, self.final_name)


def flink_parts(files: Iterable[StoredFile], names: FlinkNames) -> tuple[list[FlinkPart], FileTotal]:
    """Sort a listing by parts; what is none of Flink's is counted.

    Args:
        files: Every file below the base.
        names: How Flink's sink calls them.
    """
    parts: dict[str, FlinkPart] = {}
    checksums: dict[str, str] = {}
    ignored = FileTotal()
    for file in files:
        bucket, _, name = file.path.rpartition("/")
        about = name[1:-4] if name.startswith(".") and name.endswith(".crc") else ""
        found = None if bucket and is_hidden(bucket) else names.role_of(about or name)
        if found is None:
            ignored = ignored.with_file(file)
        elif about:
            checksums[_path(bucket, about)] = file.path
        else:
            part = FlinkPart(bucket, found.final_name)
            part = parts.setdefault(part.final_path, part)
            if found.role == "copied":
                part.copied.append(file)
            else:
                part.files[found.role] = file
    for part in parts.values():
        paths = [file.path for file in part.files.values()]
        part.checksums = {path: checksums[path] for path in paths if path in checksums}
    return [parts[path] for path in sorted(parts)], ignored


def plan_flink(
    parts: Iterable[FlinkPart],
    ignored: FileTotal,
    lengths: Mapping[str, int | None],
    options: AdoptionOptions,
    abilities: StoreAbilities,
) -> AdoptionPlan:
    """Decide.

    Args:
        parts: Every part.
        ignored: What else there is.
        lengths: What each sidecar says, by its path; None is one that is damaged.
        options: What was told.
        abilities: What the store allows.
    """
    finished, newest_ms = FileTotal(), 0
    items: list[AdoptedItem] = []
    for part in parts:
        found = [within(item, abilities) for item in _items(part, lengths, options)]
        items += found
        final = part.files.get("finished")
        if final is not None and final.path not in {item.path for item in found}:
            finished = finished.with_file(final)
        newest_ms = max(newest_ms, *(file.modified_at_ms for file in (*part.files.values(), *part.copied)))
    return AdoptionPlan(options=options, finished=finished, ignored=ignored, newest_ms=newest_ms, items=tuple(items))


def _items(part: FlinkPart, lengths: Mapping[str, int | None], options: AdoptionOptions) -> Iterator[AdoptedItem]:
    sidecar = part.files.get("sidecar")
    if sidecar is not None and lengths[sidecar.path] is None:
        yield _item(part, "sidecar", "leave", "it holds no length as Flink writes it")
        for role in part.files:
            if role != "sidecar":
                yield _item(part, role, "leave", "its sidecar is damaged; put that back from a copy")
        return
    length = lengths[sidecar.path] if sidecar is not None else None
    if "finished" in part.files:
        yield from _beside_finished(part, length, options)
    elif length is not None:
        yield from _with_length(part, length, options)
    else:
        yield from _without_length(part, options)


def _beside_finished(part: FlinkPart, length: int | None, options: AdoptionOptions) -> Iterator[AdoptedItem]:
    final = part.files["finished"]
    staged = [role for role in _STAGED if role in part.files]
    for role in staged:
        file = part.files[role]
        if file.identity is not None and file.identity == final.identity:
            why = "it is another name of the finished file, which publishing had not removed yet"
            # Its sidecar may still be needed.
            yield _committed(part, role, "publish", why, final.size).model_copy(update={"then": ()})
        elif role == "in-progress":
            yield _in_progress(part, "its name is taken by a finished file", options)
        else:
            yield _item(part, role, "leave", "its name is taken by another finished file, and nothing is ever replaced")
    for copy in part.copied:
        yield _item(part, "copied", "quarantine", "it is left of a cut by a copy, and its part is finished", copy)
    if length is not None:
        yield _finished_with_length(part, length, is_staged=bool(staged))


def _finished_with_length(part: FlinkPart, length: int, *, is_staged: bool) -> AdoptedItem:
    final = part.files["finished"]
    if final.size == length:
        why = "its part is exactly as long as it says, so it says nothing, and only readers of Flink's form can read it"
        return _item(part, "sidecar", "quarantine", why)
    if _is_younger_than_its_sidecar(part, "finished"):
        return _item(part, "finished", "leave", _younger(length))
    if final.size < length:
        return _item(part, "finished", "leave", _too_short(length))
    if is_staged:
        why = f"only its first {length} bytes count; it is cut when no staged file of the same name is left"
        return _item(part, "finished", "leave", why)
    why = "Flink could not cut it when it restored a checkpoint; only readers of its sidecar see where it ends"
    return _committed(part, "finished", "cut", why, length)


def _with_length(part: FlinkPart, length: int, options: AdoptionOptions) -> Iterator[AdoptedItem]:
    role = next((role for role in _STAGED if role in part.files), None)
    if role is None:
        # Where it was cut by a copy, that has taken over from it.
        copy = _path(part.bucket, rewritten(options.names.part(part.bucket, part.final_name, length)).pending)
        found = next((file for file in part.copied if file.path == copy and file.size == length), None)
        if found is not None:
            part.files["copied"] = found
            yield _committed(
                part, "copied", "publish", "it is the valid part of a file that was about to be cut", length
            )
            return
        yield _item(part, "sidecar", "leave", f"its part {part.final_path!r} is under none of its names")
        return
    if role == "pending" and "in-progress" in part.files:
        yield _in_progress(part, "its part is the pending file beside it", options)
    # As long as the sidecar says: a cut of ours that was killed, which has changed the time of the file.
    if part.files[role].size != length and _is_younger_than_its_sidecar(part, role):
        if role == "in-progress":
            yield _in_progress(part, _younger(length), options)
        else:
            yield _item(part, role, "leave", _younger(length))
    elif part.files[role].size < length:
        yield _item(part, role, "leave", _too_short(length))
    else:
        yield _committed(part, role, "publish", "a restored checkpoint vouches for it up to its valid length", length)


def _without_length(part: FlinkPart, options: AdoptionOptions) -> Iterator[AdoptedItem]:
    if "in-progress" in part.files:
        yield _in_progress(part, "it was not closed", options)
    pending = part.files.get("pending")
    if pending is not None and options.publish_pending:
        why = "it is closed and whole, and --publish-pending was given"
        yield _committed(part, "pending", "publish", why, pending.size)
    elif pending is not None:
        yield _item(part, "pending", "leave", _UNDECIDED)


def _in_progress(part: FlinkPart, why: str, options: AdoptionOptions) -> AdoptedItem:
    """A file that was being written: it stays unless the operator says that Flink does not come back to it."""
    if options.quarantine_in_progress:
        return _item(part, "in-progress", "quarantine", f"{why}, and --quarantine-in-progress was given")
    return _item(part, "in-progress", "leave", f"{why}; {_OPEN}")


def _is_younger_than_its_sidecar(part: FlinkPart, role: FlinkRole) -> bool:
    return part.files[role].modified_at_ms > part.files["sidecar"].modified_at_ms


def _younger(length: int) -> str:
    return f"it was changed after its sidecar, which says {length} bytes, was written: {_USED_AGAIN}"


def _too_short(length: int) -> str:
    return f"it is shorter than its valid length of {length} bytes: data is missing"


def _item(
    part: FlinkPart, role: FlinkRole, action: ForeignAction, why: str, file: StoredFile | None = None
) -> AdoptedItem:
    file = part.files[role] if file is None else file
    checksum = part.checksums.get(file.path)
    return AdoptedItem(
        path=file.path,
        kind=role,
        action=action,
        why=why,
        size=file.size,
        modified_at_ms=file.modified_at_ms,
        first=(checksum,) if checksum and action != "leave" else (),
    )


def _committed(part: FlinkPart, role: FlinkRole, action: ForeignAction, why: str, length: int) -> AdoptedItem:
    """The item of a part that is published or cut; afterwards its sidecar says nothing any more."""
    file, final = part.files[role], part.files.get("finished")
    if file.identity is not None and (final is None or final.identity != file.identity or role == "finished"):
        return _item(part, role, "leave", f"{why}; but it has another name, so it may be another program's file")
    sidecar = part.files.get("sidecar")
    paths = () if sidecar is None else (sidecar.path, part.checksums.get(sidecar.path))
    return _item(part, role, action, why).model_copy(
        update={
            "valid_length": length,
            "final_path": part.final_path,
            "then": tuple(path for path in paths if path is not None),
        }
    )


def _path(bucket: str, name: str) -> str:
    return f"{bucket}/{name}" if bucket else name
