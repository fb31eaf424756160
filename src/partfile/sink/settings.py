"""Options of a sink: where it lies, how it is restored and published, and how its rows are written.

Modules that load pyarrow are imported by the functions that need them: a command that restores a sink sees no rows.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict

from pydantic import Field, JsonValue, field_validator, model_validator

from partfile.bucketers.base import Bucketer, is_safe_path
from partfile.errors import ConfigError
from partfile.sink.clock import Clock, system_clock_ms
from partfile.sink.policies import Code, Deduplicate, Options, PartNaming, ReplayRules, RollingPolicy
from partfile.sink.progress import BatchProgress
from partfile.snapshot.storage import FileSystemStorageSettings
from partfile.snapshot.streams import DEFAULT_INLINE_THRESHOLD_BYTES, MAX_INLINE_THRESHOLD_BYTES
from partfile.stores.base import STATE_DIRECTORY, Cut, Store
from partfile.stores.registry import (
    check_options,
    is_adrift,
    is_local,
    open_store,
    options_for,
    path_inside,
    resolved,
)
from partfile.stores.urls import local_path, shown_url
from partfile.writers.base import BulkFormat, Format

if TYPE_CHECKING:
    import pyarrow as pa

    from partfile.sink.layout import SinkDescription
    from partfile.sink.states import RowSchema

_LAST_MS = 10**14
"""In the year 5138: a clock that counts microseconds tells more."""
_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_KERNELS = ("/proc", "/sys")
"""Directories whose files are on no disk."""

StoreOpener = Callable[[str, Mapping[str, object]], Store]


class RestoreSettings(Options):
    """Options of a process that takes a sink over: of the sink itself, and of a tool that only restores it."""

    base: str = Field(examples=["landing/events"])
    """Where finished files go: a local path, ``file://``, ``hdfs://`` or ``s3://``."""
    uid: str = Field(examples=["events"])
    """Stable name of the sink; its checkpoints are found by it. Under another one the sink has no state."""
    rolling: RollingPolicy = Field(
        default_factory=RollingPolicy, examples=[Code('partfile.RollingPolicy(max_part_bytes="128 MiB")')]
    )
    """When a part is closed."""
    cut: Cut = "auto"
    """How a part that a crash left too long is cut; ``valid-length`` needs readers that honour sidecars."""
    checkpoint_dir: str | None = Field(default=None, examples=["checkpoints"])
    """Where checkpoints go; None is ``_partfile`` below the base. The uid is a directory in it."""
    inline_threshold_bytes: int = Field(default=DEFAULT_INLINE_THRESHOLD_BYTES, ge=0, le=MAX_INLINE_THRESHOLD_BYTES)
    """State of at most this size lies in the checkpoint's metadata, and a task's travels in its acknowledgement; more
    goes to a file of its own."""
    savepoint_dir: str | None = Field(default=None, examples=["savepoints"])
    """Where savepoints are made unless a call names another directory."""
    storage_options: Mapping[str, object] = Field(
        default_factory=dict, repr=False, examples=[Code('{"region": "eu-west-1"}')]
    )
    """Passed to the store; may hold secrets, so it is never shown."""
    retained_checkpoints: int = Field(default=2, ge=1)
    """Completed checkpoints that are kept."""
    consumers_take_files: bool | None = None
    """Whether consumers move or delete finished files as soon as they see them; None as the sink was told, by its
    checkpoint."""
    on_used_base: Literal["fail", "accept"] = "fail"
    """What a start without a checkpoint does where a sink has written below the base before: refuse, because a changed
    ``uid`` or ``checkpoint_dir`` would write its rows again, or begin beside it."""
    publish_threads: int | None = Field(default=None, ge=1, examples=[8])
    """Parts published at the same time; None takes what suits the store: 8, and 64 on HDFS, where that is waiting."""
    clock: Clock = Field(default=system_clock_ms, examples=[Code("lambda: time.time_ns() // 1_000_000")])
    """The coordinator's clock: milliseconds since 1970."""
    open_store: StoreOpener = open_store
    """Opens the coordinator's stores; replaced in tests that inject faults."""

    @field_validator("base", "checkpoint_dir", "savepoint_dir", "restore_from", mode="before", check_fields=False)
    @classmethod
    def _path_is_text(cls, value: object) -> object:
        path = os.fspath(value) if isinstance(value, os.PathLike) else value
        if isinstance(path, bytes):
            raise ValueError("a path is text, not bytes")  # noqa: TRY004 - pydantic shows a ValueError.
        if isinstance(path, str) and not path.strip():
            raise ValueError("an empty path names no directory")
        return path

    @field_validator("uid")
    @classmethod
    def _uid_is_a_name(cls, value: str) -> str:
        if not _UID.fullmatch(value):
            plain = re.sub(r"[^A-Za-z0-9._-]+", "_", value).lstrip("._-")[:100]
            raise ConfigError(
                "use 1 to 100 letters, digits, '.', '_' or '-', beginning with a letter or a digit",
                hint=f"Write for instance uid={plain or 'events'!r}.",
            )
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.open_store is open_store:
            check_options(self.base, self.storage_options, self.cut)
        for name in ("checkpoint_dir", "savepoint_dir"):
            if getattr(self, name) is not None:
                check_directory(getattr(self, name), self.base, name, self.storage_options)
        return self

    def now_ms(self) -> int:
        """The time by the coordinator's clock, in milliseconds since 1970.

        Raises:
            ConfigError: The clock tells something else, as one that counts microseconds does.
        """
        told: object = self.clock()
        if type(told) is not int or abs(told) > _LAST_MS:
            raise ConfigError(
                f"the clock tells {told!r:.80}, which is no time in milliseconds since 1970",
                hint="Return an integer from clock=, for instance lambda: time.time_ns() // 1_000_000.",
            )
        return told

    @property
    def checkpoint_url(self) -> str:
        """The directory that holds the directories of the uids."""
        return checkpoint_url_of(self.base, self.checkpoint_dir)

    @property
    def checkpoint_options(self) -> Mapping[str, object]:
        """Options of the store of the checkpoints."""
        return options_for(self.checkpoint_url, self.base, self.storage_options)

    def recover_command(self, *options: str) -> str:
        """The command that takes this sink over, as a user types it.

        Args:
            options: Words after the place of the sink. The values of its store's options are left to the user: they may
                be secrets.
        """
        return recover_command(self.base, self.uid, self.checkpoint_dir, self.storage_options, *options)

    def forget_command(self, job: str) -> str:
        """The command that lets a writer of this sink go on without the keys of its rows so far, as a user types it.

        Args:
            job: The name of its checkpoint log.
        """
        return forget_command(self.base, job, self.checkpoint_dir, self.storage_options)

    def command(self, verb: str, job: str, *options: str) -> str:
        """A command about this sink or a writer of it, as a user types it.

        Args:
            verb: What it does.
            job: The name of the checkpoint log.
            options: Words after the place of the sink.
        """
        return _command(verb, self.base, job, self.checkpoint_dir, self.storage_options, *options)

    @property
    def part_prefix(self) -> str:
        """Start of the final names of parts."""
        return PartNaming().part_prefix

    @property
    def part_suffix(self) -> str:
        """End of the final names of parts, behind their numbers; empty if the format says it."""
        return ""

    @property
    def sink_format(self) -> Format | None:
        """Format whose encryption settings are used when a staging file is encoded; None where no rows are written."""
        return None

    @property
    def encode_spec(self) -> Mapping[str, JsonValue] | None:
        """Format spec of the staging files that this run begins; None where it begins none."""
        return None

    @property
    def checkpoints(self) -> FileSystemStorageSettings:
        """How checkpoints are stored: always on a file system, in a directory for each writer."""
        return FileSystemStorageSettings(url=self.checkpoint_url, inline_threshold_bytes=self.inline_threshold_bytes)


def checkpoint_url_of(base: str, checkpoint_dir: str | None) -> str:
    """The directory that holds the directories of the uids."""
    return checkpoint_dir or f"{base.rstrip('/')}/{STATE_DIRECTORY}"


def recover_command(
    base: object, uid: object, checkpoint_dir: object, storage_options: Mapping[str, object], *options: str
) -> str:
    """``partfile recover`` for one sink, quoted for a shell."""
    return _command("recover", base, uid, checkpoint_dir, storage_options, *options)


def forget_command(base: object, job: str, checkpoint_dir: object, storage_options: Mapping[str, object]) -> str:
    """``partfile state --forget`` for one sink or writer, quoted for a shell."""
    return _command("state", base, job, checkpoint_dir, storage_options, "--forget")


def savepoint_list_command(directory: str, storage_options: Mapping[str, object]) -> str:
    """``partfile savepoint list`` for a directory of savepoints, quoted for a shell."""
    options = [word for name in sorted(storage_options) for word in ("--storage-option", f"{name}=VALUE")]
    return shlex.join(["partfile", "savepoint", "list", directory, *options])


def _command(
    verb: str, base: object, uid: object, checkpoint_dir: object, storage_options: Mapping[str, object], *options: str
) -> str:
    words = ["partfile", verb, str(base), "--uid", str(uid)]
    if checkpoint_dir is not None:
        words += ["--checkpoint-dir", str(checkpoint_dir)]
    for name in sorted(storage_options):
        words += ["--storage-option", f"{name}=VALUE"]
    return shlex.join([*words, *options])


def check_base(base: str) -> None:
    """Refuse a base among the checkpoints of sinks, or where the kernel shows what it knows as files.

    Args:
        base: A path or URL.

    Raises:
        ConfigError: It lies there, as it is written or once its links are followed.
    """
    spellings = (local_path(base), resolved(base)) if is_local(base) else (base,)
    kernels = next((one for one in _KERNELS if f"{spellings[-1]}/".startswith(f"{one}/")), None)
    if kernels is not None:
        raise ConfigError(
            f"base={shown_url(base)} lies in {kernels}, where the kernel shows what it knows, and keeps no file",
            hint="Choose a directory of a disk, for instance base='/data/events'.",
        )
    for spelling in spellings:
        above, state, _ = f"{spelling}/".partition(f"/{STATE_DIRECTORY}/")
        if state:
            raise ConfigError(
                f"base={shown_url(base)} lies in a directory called {STATE_DIRECTORY}, which holds the checkpoints of "
                f"the sinks whose base is {above or '/'!r}",
                hint=f"Write that base, with a uid of its own, or a directory elsewhere: base={above or '/'!r}",
            )


def check_directory(path: str, base: str, name: str, storage_options: Mapping[str, object]) -> None:
    """Refuse a directory for partfile's own files that the next run may not find, or that readers of the base would.

    Args:
        path: The directory.
        base: The base path.
        name: What it was given as, for the message.
        storage_options: Of the sink.

    Raises:
        ConfigError: It is relative although the base is remote, or lies visibly below the base.
    """
    if is_adrift(path, base):
        raise ConfigError(
            f"{name}={path!r} is relative to the working directory, but the base is not on this host",
            hint=f"Write a URL beside the base, or an absolute path that every start of this sink finds: {name}=URL",
        )
    check_hidden(path, base, name, storage_options)


def check_hidden(path: str, base: str, name: str, storage_options: Mapping[str, object]) -> None:
    """Refuse a directory whose files readers of the base would take for data; arguments as of ``check_directory``.

    Raises:
        ConfigError: It lies visibly below the base.
    """
    inside = path_inside(path, base, storage_options)
    if inside is not None and not any(step.startswith(("_", ".")) for step in inside):
        raise ConfigError(
            f"{name}={path!r} lies visibly below the base, where readers would take its files for data",
            hint=(
                "Choose a directory elsewhere, or one that begins with '_', for instance "
                f"{name}={base.rstrip('/') + '/_' + name!r}."
            ),
        )


class SinkSettings(RestoreSettings):
    """Options of a sink."""

    shown_as = "FileSink"

    format: Format
    """How rows become bytes."""
    bucketer: Bucketer = Field(default_factory=lambda: _base_path())  # noqa: PLW0108 - it is defined below.
    """Which directory a row goes to."""
    naming: PartNaming = Field(default_factory=PartNaming, examples=[Code('partfile.PartNaming(part_prefix="part")')])
    """Affixes of part files."""
    consumers_take_files: bool = False
    """Whether consumers move or delete finished files as soon as they see them. Then a part that a checkpoint promises
    and of which nothing is left counts as taken; without it the sink stops with ``PartMissing``."""
    deduplicate: Deduplicate | None = Field(
        default=None, examples=[Code('partfile.Deduplicate("event_id", ttl="7 days")')]
    )
    """Which rows are duplicates of others, and are left out; None writes every row."""
    distribution: Literal["none", "hash"] = "none"
    """``none`` keeps the batch's partitions; ``hash`` sends each bucket to one subtask: a shuffle, but fewer files."""
    hash_partitions: int | None = Field(default=None, ge=1, examples=[8])
    """Subtasks that buckets are hashed over, or keys with ``deduplicate``; None takes the engine's default parallelism,
    and keeps it for buckets."""
    max_open_parts: int = Field(default=1000, ge=1)
    """Parts a subtask holds open at once; beyond it the least recently used one is rolled, or released if it is a
    staging file."""
    columnar: Literal["staged", "per_checkpoint"] = "staged"
    """``staged`` keeps parts of a columnar format open over checkpoints and encodes each once, when it is rolled;
    ``per_checkpoint`` writes a file a checkpoint. Stores that cannot append to a part and read it back do the latter.
    """
    staging_compression: Literal["auto", "lz4", "zstd", "none"] = "auto"
    """What the bytes of staging files are compressed with; ``auto`` is lz4 where they go over a network, and none on a
    local disk, which takes them faster than they are compressed."""
    buckets_per_staging_file: int | None = Field(default=64, ge=1)
    """Up to so many buckets in one record batch of a subtask each gets a part of its own; of more, those with small
    slices and no open part share one staging file a subtask, which becomes a file a bucket when it is rolled. None
    never shares."""
    on_stop: Literal["publish", "keep"] = "publish"
    """What a clean end does with open parts: publish them, or keep them for the next run to go on with."""
    on_bad_bucket: str = "fail"
    """``fail``, or the bucket for rows whose own bucket cannot be named."""
    on_schema_change: Literal["roll", "fail", "evolve"] = "roll"
    """What rows with other columns than before do: ``roll`` takes them into new parts, ``fail`` refuses them, and
    ``evolve`` lets columns be added and types widened."""
    rules: ReplayRules = Field(default_factory=ReplayRules)
    """The choices for a query that does not simply continue."""
    restore_from: str | None = Field(default=None, examples=["/data/savepoints/savepoint-events-1"])
    """A savepoint to begin with where the sink has no checkpoint yet: its directory or the ``_metadata`` in it. It may
    stay set: a sink that was restored from it goes on from its own checkpoints."""
    on_progress: Callable[[BatchProgress], None] | None = Field(default=None, examples=[Code("print")])
    """Called with the progress of each batch, on the driver."""
    open_store_in_tasks: StoreOpener = open_store
    """Opens the stores of Spark's tasks; must be picklable."""

    @field_validator("bucketer", mode="before")
    @classmethod
    def _bucketer_may_be_a_callable(cls, value: Any) -> Bucketer:
        from partfile.bucketers.builtin import resolve_bucketer  # noqa: PLC0415

        return resolve_bucketer(value)

    @field_validator("on_bad_bucket")
    @classmethod
    def _fallback_is_a_bucket(cls, value: str) -> str:
        if value != "fail" and not is_safe_path(value):
            raise ConfigError(
                "it cannot stand as a path below the base", hint="Write on_bad_bucket='bad', or 'country=bad'."
            )
        return value

    @model_validator(mode="after")
    def _base_is_no_other_sinks_state(self) -> Self:
        check_base(self.base)
        return self

    @model_validator(mode="after")
    def _hashes_only_by_hash(self) -> Self:
        if self.hash_partitions is not None and self.distribution != "hash" and self.deduplicate is None:
            raise ConfigError(
                f"hash_partitions={self.hash_partitions} has no effect without distribution='hash' or deduplicate",
                hint="Write distribution='hash' as well, or leave hash_partitions out.",
            )
        if self.distribution == "hash" and self.deduplicate is not None:
            raise ConfigError(
                "deduplicate sends rows to tasks by their keys, and distribution='hash' by their buckets",
                hint="Leave distribution out; hash_partitions=NUMBER says over how many tasks keys are hashed.",
            )
        return self

    @field_validator("format")
    @classmethod
    def _staging_files_can_be_encoded(cls, value: Format) -> Format:
        from partfile.writers.registry import check_spec  # noqa: PLC0415

        check_spec(value)
        return value

    @property
    def part_prefix(self) -> str:
        """Start of the final names of parts."""
        return self.naming.part_prefix

    @property
    def part_suffix(self) -> str:
        """End of the final names of parts, behind their numbers; empty if the format says it."""
        return self.naming.part_suffix or ""

    @property
    def sink_format(self) -> Format:
        """Format whose encryption settings are used when a staging file is encoded."""
        return self.format

    @property
    def encode_spec(self) -> Mapping[str, JsonValue] | None:
        """Format spec of staged parts; None where parts are not staged: a row format, or one of the user's own."""
        if self.columnar != "staged" or not isinstance(self.format, BulkFormat):
            return None
        if getattr(self.format, "encryption", None) is not None and "columnar" not in self.model_fields_set:
            # A staging file is not encrypted: a user who encrypts the finished files has to allow that.
            return None
        return _spec_of(self.format)

    def row_schema_after(self, known: RowSchema | None, schema: pa.Schema) -> RowSchema:
        """What the next checkpoint holds of the schema of the rows.

        Args:
            known: What the newest checkpoint holds; None before the first rows.
            schema: Of the rows that come now.

        Raises:
            CheckpointMismatch: ``on_schema_change`` does not let them pass; names each column.
        """
        from partfile.sink.schema import row_schema_after  # noqa: PLC0415

        return row_schema_after(
            known,
            schema,
            path_columns=self.bucketer.dropped_columns,
            format=_spec_of(self.format) or {},
            on_change=self.on_schema_change,
            uid=self.uid,
        )

    @property
    def multi_bucket_spec(self) -> Mapping[str, JsonValue] | None:
        """Format spec of multi-bucket staging files; None where buckets share none."""
        # A part that is closed at each checkpoint would be written twice for nothing.
        if self.buckets_per_staging_file is None or self.rolling.on_checkpoint:
            return None
        return self.encode_spec if isinstance(self.format, BulkFormat) else _spec_of(self.format)

    @property
    def description(self) -> SinkDescription:
        """The settings that every operator of the sink gets."""
        from partfile.sink.layout import SinkDescription  # noqa: PLC0415

        return SinkDescription(
            format=self.format,
            bucketer=self.bucketer,
            rolling=self.rolling,
            naming=self.naming,
            max_open_parts=self.max_open_parts,
            on_bad_bucket=self.on_bad_bucket,
            spec=self.encode_spec,
            multi_bucket_spec=self.multi_bucket_spec,
            staging_compression=self.staging_compression,
            buckets_per_staging_file=self.buckets_per_staging_file or 0,
        )


class SinkOptions(TypedDict, total=False):
    """The keywords of FileSink beyond those of its signature, for editors and type checkers.

    SinkSettings and ReplayRules say what each does, and check it.
    """

    format_options: Mapping[str, object]
    naming: PartNaming
    on_bad_bucket: str
    on_schema_change: Literal["roll", "fail", "evolve"]
    columnar: Literal["staged", "per_checkpoint"]
    staging_compression: Literal["auto", "lz4", "zstd", "none"]
    buckets_per_staging_file: int | None
    max_open_parts: int
    deduplicate: Deduplicate | None
    distribution: Literal["none", "hash"]
    hash_partitions: int | None
    on_stop: Literal["publish", "keep"]
    cut: Cut
    checkpoint_dir: str | os.PathLike[str] | None
    inline_threshold_bytes: int
    retained_checkpoints: int
    savepoint_dir: str | os.PathLike[str] | None
    restore_from: str | os.PathLike[str] | None
    on_used_base: Literal["fail", "accept"]
    consumers_take_files: bool
    publish_threads: int | None
    on_new_query: str
    on_gap: Literal["fail", "accept"]
    on_progress: Callable[[BatchProgress], None] | None
    storage_options: Mapping[str, object]
    clock: Clock
    open_store: StoreOpener
    open_store_in_tasks: StoreOpener


def make_settings(
    base: Any,
    *,
    format: str | Format,
    compression: str | None,
    bucketer: Any,
    **options: Any,
) -> SinkSettings:
    """Check a sink's options.

    Raises:
        ConfigError: An option cannot be used; the message names it.
    """
    from partfile.writers.registry import resolve_format  # noqa: PLC0415

    _check_names(base, options)
    format_options = options.pop("format_options", {})
    if not isinstance(format_options, Mapping) or not all(isinstance(name, str) for name in format_options):
        raise ConfigError(
            f"format_options must be a mapping of a format's options, not {format_options!r:.80}",
            hint='Write for instance format_options={"header": False}.',
        )
    if "compression" in format_options:
        raise ConfigError(
            "compression is an option of the sink, not of its format",
            hint=f"Pass compression={format_options['compression']!r} beside format_options.",
        )
    rules = ReplayRules(
        **{name: options.pop(name) for name in ("on_new_query", "on_gap") if name in options},
    )
    return SinkSettings(
        base=base,
        format=resolve_format(format, compression, **format_options),
        bucketer=_base_path() if bucketer is None else bucketer,
        rules=rules,
        **options,
    )


def _base_path() -> Bucketer:
    from partfile.bucketers.builtin import BasePathBucketer  # noqa: PLC0415

    return BasePathBucketer()


def _spec_of(format: Format) -> Mapping[str, JsonValue] | None:
    from partfile.writers.registry import spec_of  # noqa: PLC0415

    try:
        return spec_of(format)
    except ConfigError:
        return None


_OF_RECOVER: Mapping[str, tuple[str, ...]] = {
    "accept_missing": ("--accept-missing",),
    "accept_newer": ("--restore-from", "WHERE", "--accept-newer"),
    "moved_from": ("--moved-from", "OLD"),
}
"""Options of the command alone, because a user has to see its plan first."""

_HIVE = "Did you mean bucketer? Pass for instance bucketer=partfile.HiveBucketer('country')."
_OF_OTHERS = {
    "partition_by": _HIVE,
    "partitionBy": _HIVE,
    "partitions": _HIVE,
    "partition_cols": _HIVE,
    "checkpoint_location": "Spark's checkpoint goes to start(..., checkpoint_location=...).",
    "checkpointLocation": "Spark's checkpoint goes to start(..., checkpoint_location=...).",
    "path": "The path is the first argument, base.",
    "rolling_policy": "Did you mean rolling?",
}
"""What users of Spark, Flink and Arrow call things, and what to write here."""


def _check_names(base: object, options: Mapping[str, Any]) -> None:
    """Refuse an option that a user cannot pass, and show the one that was probably meant."""
    from partfile.writers.registry import format_option_names  # noqa: PLC0415

    known = {*SinkSettings.model_fields, *ReplayRules.model_fields, "compression", "format_options"} - {"rules"}
    for name in options:
        if name in _OF_RECOVER:
            place = (base, options.get("uid"), options.get("checkpoint_dir"), options.get("storage_options") or {})
            raise ConfigError(
                f"FileSink has no option {name!r}: it is one of the command that takes a stopped sink over.",
                hint=f"Stop the sink and type: {recover_command(*place, *_OF_RECOVER[name])}. It prints what it would "
                "do, and --apply does it; then start the sink without the option.",
            )
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            meant = f"Did you mean {near[0]}? " if near else ""
            if name in _OF_OTHERS:
                meant = f"{_OF_OTHERS[name]} "
            elif name in format_option_names():
                meant = f"It is an option of a format: pass format_options={{{name!r}: ...}}. "
            listed = "" if meant else f"There are {', '.join(sorted(known))}."
            raise ConfigError(f"FileSink has no option {name!r}.", hint=f"{meant}{listed}".strip())
