"""Every option of a FileSink, checked when the sink is made."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any, Literal, Self

from pydantic import Field, JsonValue, field_validator, model_validator

from partfile.bucketers.base_path import BasePathBucketer
from partfile.bucketers.escaping import is_safe_path
from partfile.bucketers.port import Bucketer
from partfile.bucketers.resolve import resolve_bucketer
from partfile.filesystems.errors import ConfigError
from partfile.filesystems.opening import open_store
from partfile.sink.admission import AdmissionRules
from partfile.sink.description import SinkDescription
from partfile.sink.naming import PartNaming
from partfile.sink.progress import BatchProgress
from partfile.sink.restore_settings import RestoreSettings, StoreOpener
from partfile.writers.formats import format_option_names, resolve_format
from partfile.writers.port import BulkFormat, Format
from partfile.writers.recipes import check_recipe, recipe_of


class SinkSettings(RestoreSettings):
    """Options of a sink."""

    format: Format
    """How rows become bytes."""
    bucketer: Bucketer = Field(default_factory=BasePathBucketer)
    """Which directory a row goes to."""
    naming: PartNaming = Field(default_factory=PartNaming)
    """Affixes of part files."""
    distribution: Literal["none", "hash"] = "none"
    """``none`` keeps the batch's partitions; ``hash`` sends each bucket to one subtask: a shuffle, but fewer files."""
    hash_partitions: int | None = Field(default=None, ge=1)
    """Subtasks that buckets are hashed over; None takes the engine's default parallelism once and keeps it."""
    max_open_parts: int = Field(default=1000, ge=1)
    """Parts a subtask holds open at once; beyond it the least recently used one is rolled, or set aside if it is a
    stage."""
    columnar: Literal["staged", "per_checkpoint"] = "staged"
    """``staged`` keeps parts of a columnar format open over checkpoints and encodes each once, when it is rolled;
    ``per_checkpoint`` writes a file a checkpoint. Stores that cannot append to a part and read it back do the latter.
    """
    stage_compression: Literal["auto", "lz4", "zstd", "none"] = "auto"
    """What the bytes of stages are compressed with; ``auto`` is lz4 where they go over a network, and none on a local
    disk, which takes them faster than they are compressed."""
    shared_stage_buckets: int | None = Field(default=64, ge=1)
    """Up to so many buckets in one record batch of a subtask each gets a part of its own; of more, those with small
    slices and no open part share one stage a subtask, which becomes a file a bucket when it is rolled. None never
    shares."""
    on_stop: Literal["publish", "keep"] = "publish"
    """What a clean end does with open parts: publish them, or keep them for the next run to go on with."""
    on_bad_bucket: str = "fail"
    """``fail``, or the bucket for rows whose own bucket cannot be named."""
    rules: AdmissionRules = Field(default_factory=AdmissionRules)
    """What is allowed when a query does not simply continue."""
    on_progress: Callable[[BatchProgress], None] | None = None
    """Called with the progress of each batch, on the driver."""
    open_store_in_tasks: StoreOpener = open_store
    """Opens the stores of Spark's tasks; must be picklable."""

    @field_validator("bucketer", mode="before")
    @classmethod
    def _bucketer_may_be_a_callable(cls, value: Any) -> Bucketer:
        return resolve_bucketer(value)

    @field_validator("on_bad_bucket")
    @classmethod
    def _fallback_is_a_bucket(cls, value: str) -> str:
        if value != "fail" and not is_safe_path(value):
            raise ValueError("it cannot stand as a path below the base; use for instance 'bad' or 'country=bad'")
        return value

    @model_validator(mode="after")
    def _hashes_only_by_hash(self) -> Self:
        if self.hash_partitions is not None and self.distribution != "hash":
            raise ValueError("hash_partitions has no effect without distribution='hash'")
        return self

    @field_validator("format")
    @classmethod
    def _stages_can_be_encoded(cls, value: Format) -> Format:
        check_recipe(value)
        return value

    @property
    def sink_format(self) -> Format:
        """What lends its encryption to whoever encodes a stage."""
        return self.format

    @property
    def stage_recipe(self) -> Mapping[str, JsonValue] | None:
        """How staged parts are encoded; None where parts are not staged: a row format, or one of the user's own."""
        if self.columnar != "staged" or not isinstance(self.format, BulkFormat):
            return None
        if getattr(self.format, "encryption", None) is not None and "columnar" not in self.model_fields_set:
            # A stage is not encrypted: who encrypts files has to say that it may be.
            return None
        return _recipe_of(self.format)

    @property
    def shared_recipe(self) -> Mapping[str, JsonValue] | None:
        """How stages are encoded that buckets share; None where none do, as with a format of the user's own."""
        # A part that is closed at each checkpoint would be written twice for nothing.
        if self.shared_stage_buckets is None or self.rolling.on_checkpoint:
            return None
        return self.stage_recipe if isinstance(self.format, BulkFormat) else _recipe_of(self.format)

    @property
    def description(self) -> SinkDescription:
        """What every operator of the sink does with rows."""
        return SinkDescription(
            format=self.format,
            bucketer=self.bucketer,
            rolling=self.rolling,
            naming=self.naming,
            max_open_parts=self.max_open_parts,
            on_bad_bucket=self.on_bad_bucket,
            recipe=self.stage_recipe,
            shared_recipe=self.shared_recipe,
            stage_compression=self.stage_compression,
            shared_stage_buckets=self.shared_stage_buckets or 0,
        )


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
    _check_names(options)
    rules = AdmissionRules(
        **{name: options.pop(name) for name in ("on_new_query", "on_gap") if name in options},
    )
    return SinkSettings(
        base=base,
        format=resolve_format(format, compression, **options.pop("format_options", {})),
        bucketer=BasePathBucketer() if bucketer is None else bucketer,
        rules=rules,
        **options,
    )


def _recipe_of(format: Format) -> Mapping[str, JsonValue] | None:
    try:
        return recipe_of(format)
    except ConfigError:
        return None


def _check_names(options: Mapping[str, Any]) -> None:
    """Refuse an option that a user cannot pass, and show the one that was probably meant."""
    known = {*SinkSettings.model_fields, *AdmissionRules.model_fields, "compression", "format_options"} - {"rules"}
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            meant = f"Did you mean {near[0]}? " if near else ""
            if name in format_option_names():
                meant = "It is an option of a format: pass it in format_options. "
            raise ConfigError(f"FileSink has no option {name!r}.", hint=f"{meant}There are {', '.join(sorted(known))}.")
