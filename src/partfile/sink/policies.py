"""Rolling and naming of parts, and the base of every option model: frozen, keyword-only, checked when made."""

from __future__ import annotations

import difflib
import hashlib
import re
import unicodedata
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from partfile.errors import ConfigError, plain_words
from partfile.quantities import bytes_in, seconds_in
from partfile.stores.base import PartHandle
from partfile.stores.paths import check_relative_path

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

_MARK_HEX_DIGITS = 8
_MARKED = re.compile(rf"(-[0-9a-f]{{8}}-[0-9]{{1,9}}-[0-9]{{1,18}})-x[0-9a-f]{{{_MARK_HEX_DIGITS}}}(?![0-9a-f])")

SHARED_PARTS = 4
"""A multi-bucket staging file may grow to so many times what one part may have, since it becomes many files."""


class Code(str):
    """An example of an option that is an expression: shown as it is typed."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class Options(BaseModel):
    """Options that a user passes. A value that cannot be used raises ConfigError, which names the field."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, hide_input_in_errors=True)
    shown_as: ClassVar[str] = ""
    """What a user passes the options to; empty if that is the model itself."""

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            told = describe(self.shown_as or type(self).__name__, type(self), error)
            raise ConfigError(told, hint=_meant(type(self), error)) from error


def describe(name: str, model: type[BaseModel], error: ValidationError) -> str:
    """One sentence for what pydantic found wrong with ``name``."""
    problems = []
    for problem in error.errors(include_url=False):
        field = ".".join(str(step) for step in problem["loc"])
        refusal = _refusal(problem)
        text = plain_words(problem) if refusal is None else refusal.message
        if problem["type"] == "extra_forbidden":
            text = f"no such option; there are {', '.join(model.model_fields)}"
        is_shown = field and problem["type"] != "missing" and not _is_secret(model, problem["loc"])
        given = f"={_shown(problem['input'])}" if is_shown else ""
        problems.append(f"{field}{given}: {text}" if field else text)
    return f"{name}: {'; '.join(problems)}"


def _refusal(problem: Mapping[str, Any]) -> ConfigError | None:
    """The error of ours that a validator has raised, or None."""
    error = problem.get("ctx", {}).get("error")
    return error if isinstance(error, ConfigError) else None


def _shown(value: object) -> str:
    try:
        return repr(value)
    except ValueError:
        # Python prints no integer of more than 4 300 digits.
        return f"{type(value).__name__} of too many digits"


def _meant(model: type[BaseModel], error: ValidationError) -> str:
    """What to write instead of the first value that was refused; empty if that is anything but clear."""
    problem = error.errors(include_url=False)[0]
    refusal = _refusal(problem)
    if refusal is not None:
        return refusal.hint
    name = str(problem["loc"][0]) if problem["loc"] else ""
    if problem["type"] == "extra_forbidden":
        near = difflib.get_close_matches(name, model.model_fields, 1)
        return f"Did you mean {near[0]}?" if near else f"Leave {name} out."
    if problem["type"] == "literal_error":
        words = re.findall(r"'([^']*)'", problem["ctx"]["expected"])
        near = difflib.get_close_matches(str(problem["input"]).lower(), words, 1, cutoff=0.4)
        return f"Write {name}={(near or words)[0]!r}." if words else ""
    if name not in model.model_fields:
        return ""
    field = model.model_fields[name]
    example = field.examples[0] if field.examples else field.default
    is_shown = type(example) in {int, float, bool, str, Code}
    return f"Write for instance {name}={example!r}." if is_shown else f"Leave {name} out."


def _is_secret(model: type[BaseModel], location: tuple[int | str, ...]) -> bool:
    field = model.model_fields.get(str(location[0]))
    return field is not None and not field.repr


@dataclass(frozen=True, slots=True)
class PartProgress:
    """The facts about an open part that a rolling policy decides by."""

    size_bytes: int
    """Bytes in the file so far, compressed where the format compresses."""
    rows: int
    created_at_ms: int
    """Batch time of its creation, in milliseconds since 1970."""
    last_write_ms: int
    """Batch time of its last row, in milliseconds since 1970."""


def _as_seconds(value: object) -> object:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bool | str):
        found = seconds_in(value) if isinstance(value, str) else None
        if found is None:
            raise ValueError("it is no duration; write seconds, a timedelta, or for instance '15m'")
        return found
    return value


def _as_bytes(value: object) -> object:
    if isinstance(value, bool | str):
        found = bytes_in(value) if isinstance(value, str) else None
        if found is None:
            raise ValueError("it is no size; write bytes, or for instance '128 MiB'")
        return found
    return value


_MAX_TTL_S = 100 * 365 * 86_400
_Seconds = Annotated[float, BeforeValidator(_as_seconds)]
_Bytes = Annotated[int, BeforeValidator(_as_bytes)]


class RollingPolicy(Options):
    """Rolls a part when it is large enough, old enough or idle for long enough. Subclass it to decide otherwise.

    Intervals are seconds, a ``timedelta``, or text such as ``"15m"``.

    The three hooks are asked before rows are added, at a checkpoint, and when time has passed. They must be pure: the
    same part and time give the same answer in every process.
    """

    max_part_bytes: _Bytes = Field(default=128 << 20, gt=0, examples=["128 MiB"])
    """A part that has reached this many bytes gets no more rows. It may exceed it by the rows of one record batch.

    A number, or text such as ``"128 MiB"``."""
    rollover_interval_s: _Seconds = Field(default=900, gt=0, examples=["15m"])
    """A part this many seconds old is rolled, so that readers see its rows; larger means fewer files, seen later."""
    inactivity_interval_s: _Seconds = Field(default=60, gt=0, examples=["1m"])
    """A part without new rows for this many seconds is rolled."""
    on_checkpoint: bool = False
    """Roll every part at every checkpoint: rows are seen at once, at the price of one file a part and checkpoint."""

    if TYPE_CHECKING:
        # A type checker knows the types after validation alone.
        def __init__(
            self,
            *,
            max_part_bytes: int | str = ...,
            rollover_interval_s: float | str | timedelta = ...,
            inactivity_interval_s: float | str | timedelta = ...,
            on_checkpoint: bool = ...,
        ) -> None: ...

    def should_roll_on_event(self, part: PartProgress) -> bool:
        """Whether to roll before adding the next rows."""
        return part.size_bytes >= self.max_part_bytes

    def should_roll_on_checkpoint(self, part: PartProgress) -> bool:
        """Whether to roll instead of keeping the part open over this checkpoint."""
        return self.on_checkpoint or part.size_bytes >= self.max_part_bytes

    def should_roll_on_time(self, part: PartProgress, now_ms: int) -> bool:
        """Whether the part is too old or has been idle for too long at ``now_ms``.

        A time before the part's own means that the clock was set back. By how much is not known, so the part is due
        (R8).
        """
        age_ms = now_ms - part.created_at_ms
        idle_ms = now_ms - part.last_write_ms
        if age_ms < 0 or idle_ms < 0:
            return True
        return age_ms >= self.rollover_interval_s * 1000 or idle_ms >= self.inactivity_interval_s * 1000

    @property
    def check_interval_s(self) -> float:
        """The interval of a timer, in seconds: short enough that a part overstays by a quarter at most."""
        return max(0.05, min(self.rollover_interval_s, self.inactivity_interval_s, 60.0) / 4)


class Earliest(Options):
    """Of several rows of one key in one record batch, the one with the lowest value of a column is written."""

    column: str = Field(min_length=1, examples=["ts"])
    """The column: numbers, text, dates or times. Null comes last."""

    if TYPE_CHECKING:

        def __init__(self, column: str) -> None: ...

    else:

        def __init__(self, column: object = "", **options: object) -> None:
            super().__init__(column=column, **options)


class Latest(Earliest):
    """The same of the highest value."""

    if TYPE_CHECKING:

        def __init__(self, column: str) -> None: ...


class Deduplicate(Options):
    """Keeps one row of each key: of the rows with it that come within ``ttl`` of the first, that one alone is written.

    The keys that were seen are in the sink's own checkpoint, so no crash parts them from the files.

    Args:
        columns: The column that is the key, or several. A row of which all are null has no key.
        ttl: How long a key is remembered; seconds, a ``timedelta``, or text such as ``"7 days"``. None is for ever.
        on_null: What rows without a key do: ``keep`` writes each, ``drop`` leaves each out, ``fail`` refuses them.
        refresh: What begins the time of a key anew: ``write``, the row that was written, or ``read``, any row with it.
        keep: Which of several rows with a new key in one record batch, in Spark in one micro-batch, is written:
            ``any``, ``Earliest("ts")`` or ``Latest("ts")``.
    """

    columns: tuple[str, ...] = Field(min_length=1, examples=["event_id"])
    """The column that is the key, or several. A row of which all are null has no key."""
    ttl: _Seconds | None = Field(default=None, gt=0, le=_MAX_TTL_S, examples=["7 days"])
    """How long a key is remembered since its time began, by the sink's clock; None is for ever."""
    on_null: Literal["keep", "drop", "fail"] = "keep"
    """What rows without a key do: ``keep`` writes each, ``drop`` leaves each out, ``fail`` refuses them."""
    refresh: Literal["write", "read"] = "write"
    """What begins the time of a key anew: ``write``, the row that was written, or ``read``, any row with it."""
    keep: Literal["any"] | Earliest | Latest = Field(default="any", examples=[Code('partfile.Latest("ts")')])
    """Which of several rows with a new key in one record batch, in Spark in one micro-batch, is written: ``any``, or
    that with the lowest or highest value of a column."""

    if TYPE_CHECKING:
        # A type checker knows the types after validation alone.
        def __init__(
            self,
            columns: str | Sequence[str],
            *,
            ttl: float | str | timedelta | None = ...,
            on_null: Literal["keep", "drop", "fail"] = ...,
            refresh: Literal["write", "read"] = ...,
            keep: Literal["any"] | Earliest | Latest = ...,
        ) -> None: ...

    else:

        def __init__(self, columns: object = (), **options: object) -> None:
            super().__init__(columns=columns, **options)

    @field_validator("columns", mode="before")
    @classmethod
    def _one_column_is_a_key(cls, value: object) -> object:
        columns = (value,) if isinstance(value, str) else value
        if not isinstance(columns, list | tuple) or not all(isinstance(one, str) and one for one in columns):
            raise ConfigError("it must be the name of a column, or a list of names", hint="Write Deduplicate('id').")
        if not columns:
            raise ConfigError("it names no column", hint="Write Deduplicate('id').")
        if len(set(columns)) < len(columns):
            raise ConfigError("a column is in it twice", hint=f"Write Deduplicate({list(dict.fromkeys(columns))}).")
        return tuple(columns)

    @field_validator("keep", mode="before")
    @classmethod
    def _keeps_any_or_one(cls, value: object) -> object:
        if value != "any" and not isinstance(value, Earliest):
            raise ConfigError(
                "it must be 'any', Earliest(COLUMN) or Latest(COLUMN)", hint="Write keep=partfile.Latest('ts')."
            )
        return value

    @property
    def ttl_ms(self) -> int | None:
        """How long a key is remembered, in milliseconds; None is for ever."""
        return None if self.ttl is None else max(1, round(self.ttl * 1000))

    @property
    def enters_again(self) -> bool:
        """Whether a known key is entered with each row that has it: without a ttl there is no time to begin anew."""
        return self.refresh == "read" and self.ttl is not None


HIDING_PREFIXES = ("_", ".")


@dataclass(frozen=True, slots=True)
class PartNumber:
    """The numbers that make a final name unique under a base path."""

    chain: str
    """8 hexadecimal digits made with the first checkpoint of the checkpoint log."""
    subtask: int
    count: int
    """The part counter: one beyond the committed union maximum, then upwards (R4)."""


_NUMBER = re.compile(r"(?=-([0-9a-f]{8})-([0-9]{1,9})-([0-9]{1,18})(?![0-9]))")
"""Looks ahead, because a prefix may end in something that looks like a chain."""


_PART = r"-[0-9a-f]{8}-[0-9]{1,9}-[0-9]{1,18}(-x[0-9a-f]+)?"
"""A number with nothing behind it but the mark of a bucket and suffixes."""


def numbers_in(name: str) -> list[PartNumber]:
    """Each place in a name that can be the number of a part, whatever its affixes, hidden or not."""
    return [PartNumber(match[1], int(match[2]), int(match[3])) for match in _NUMBER.finditer(name)]


def is_part_path(path: str, prefix: str, suffix: str = "") -> bool:
    """Whether a file is called as a part of some sink is, finished or staged; a UUID in a name makes no part of it.

    Args:
        path: Relative to the base. Nothing in a hidden directory is a part.
        prefix: Start of final names.
        suffix: What the sink puts behind the number, if it begins with no dot.
    """
    ends = "|".join(re.escape(end) for end in (suffix, ".") if end)
    directory, _, name = path.rpartition("/")
    is_hidden = any(step.startswith(HIDING_PREFIXES) for step in directory.split("/"))
    return (
        not is_hidden and name.startswith((prefix, f"_{prefix}")) and re.search(f"{_PART}({ends}|$)", name) is not None
    )


def number_in(name: str, chains: Container[str]) -> PartNumber | None:
    """The number in the name of a finished file of one of these chains; None for any other file.

    Args:
        name: The name, without its directory.
        chains: Ids of chains.
    """
    if name.startswith(HIDING_PREFIXES):
        return None
    return next((number for number in numbers_in(name) if number.chain in chains), None)


def with_mark(name: str, mark: str) -> str:
    """A name with a mark behind its number."""
    found = [match.end(3) for match in _NUMBER.finditer(name)]
    at = found[-1] if found else len(name)
    return name[:at] + mark + name[at:]


def clashing(buckets: Iterable[str]) -> frozenset[str]:
    """The buckets of a staging file that some file system takes for one another.

    It ignores case, or how accents are spelt.

    Args:
        buckets: All of a staging file, those that have their files among them: each start has to find the same ones.
    """
    folded = {bucket: _folded(bucket) for bucket in buckets}
    counts = Counter(folded.values())
    return frozenset(bucket for bucket, fold in folded.items() if counts[fold] > 1)


def own_name(name: str, bucket: str) -> str:
    """The name that a staging file's file has in a bucket that clashes with another one.

    Args:
        name: The name of the staging file.
        bucket: Where the file goes.
    """
    return with_mark(name, _mark(bucket))


def own_path(path: str) -> str:
    """The longest path that a file of a staging file can have for one of its final name: as if its bucket clashed."""
    bucket, slash, name = path.rpartition("/")
    return f"{bucket}{slash}{own_name(name, bucket)}"


def unmarked(name: str) -> str:
    """The final name without the mark of a bucket, which all files of one multi-bucket staging file have in common.

    Compare it with other unmarked names only, because any suffix may look like a mark.
    """
    return _MARKED.sub(r"\1", name)


def _mark(bucket: str) -> str:
    return f"-x{hashlib.sha256(bucket.encode()).hexdigest()[:_MARK_HEX_DIGITS]}"


def _folded(path: str) -> str:
    """Equal for all paths that some file system holds for one.

    Case, composition and compatible forms are nothing to macOS, Windows and folding directories of ext4, which does not
    see characters that format nothing either; Windows drops dots and blanks at the end of a name.
    """
    plain = path.lower() if path.isascii() else _plain(path)
    return "/".join(step.rstrip(". ") for step in plain.split("/"))


def _plain(path: str) -> str:
    folded = unicodedata.normalize("NFKC", path).upper().casefold()
    return "".join(one for one in unicodedata.normalize("NFKC", folded) if not _is_ignored(one))


def _is_ignored(character: str) -> bool:
    return unicodedata.category(character) == "Cf" or "\ufe00" <= character <= "\ufe0f"


class PartNaming(Options):
    """Affixes of part files. The defaults hide every staged file from Spark, Hive, Trino and pyarrow datasets."""

    part_prefix: str = "part"
    """Start of every final name; must not hide the file."""
    part_suffix: str | None = None
    """End of every final name; None takes the suffix of the format, compression included."""
    in_progress_prefix: str = "_"
    """Start of the name of a part that is being written; must hide the file: begin with ``_`` or ``.``."""
    in_progress_suffix: str = ".in-progress"
    """End of the name of a part that is being written."""
    pending_prefix: str = "_"
    """Start of the name of a closed part that waits for its checkpoint; must hide the file."""
    pending_suffix: str = ".pending"
    """End of the name of a closed part that waits for its checkpoint."""
    valid_length_prefix: str = "_"
    """Start of the name of a sidecar; must hide the file."""
    valid_length_suffix: str = ".valid-length"
    """End of the name of a sidecar."""

    @model_validator(mode="after")
    def _names_keep_their_meaning(self) -> Self:
        for field in ("in_progress_prefix", "pending_prefix", "valid_length_prefix"):
            if not getattr(self, field).startswith(HIDING_PREFIXES):
                raise ConfigError(
                    f"{field}={getattr(self, field)!r} would show unfinished files to readers, for a suffix hides none",
                    hint=f"Begin it with '_' or '.', for instance {field}='_'.",
                )
        if not self.part_prefix or self.part_prefix.startswith(HIDING_PREFIXES):
            raise ConfigError(
                f"part_prefix={self.part_prefix!r} would hide finished files",
                hint="Begin it with a letter, for instance part_prefix='part'.",
            )
        for field in type(self).model_fields:
            if not _is_affix(getattr(self, field) or ""):
                raise ConfigError(
                    f"{field}={getattr(self, field)!r} cannot stand in the name of a file",
                    hint=f"Leave out '/' and control characters, as in {field}='events'.",
                )
        part = self.handle("", PartNumber("0" * 8, 0, 0), suffix="", token="0" * 32)
        names = (part.name, part.in_progress, part.pending, part.sidecar)
        if len(set(names)) < len(names):
            raise ConfigError(
                "in-progress, pending and valid-length files need affixes that differ",
                hint="Leave out what is not meant; the defaults are in_progress_suffix='.in-progress', "
                "pending_suffix='.pending' and valid_length_suffix='.valid-length'.",
            )
        for name in names:
            check_relative_path(name)
        return self

    def handle(self, bucket: str, number: PartNumber, *, suffix: str, token: str) -> PartHandle:
        """Name a new part.

        Args:
            bucket: Its bucket, relative to the base.
            number: What makes its final name unique.
            suffix: The format's suffix, used unless ``part_suffix`` is set.
            token: 128 random bits drawn by this attempt, for its staged names.
        """
        end = suffix if self.part_suffix is None else self.part_suffix
        final = f"{self.part_prefix}-{number.chain}-{number.subtask}-{number.count}{end}"
        return PartHandle(
            bucket=bucket,
            name=final,
            in_progress=f"{self.in_progress_prefix}{final}.{token}{self.in_progress_suffix}",
            pending=f"{self.pending_prefix}{final}.{token}{self.pending_suffix}",
            sidecar=f"{self.valid_length_prefix}{final}{self.valid_length_suffix}",
            valid_length=0,
        )


def _is_affix(text: str) -> bool:
    """Whether a text can stand in the name of a file."""
    try:
        check_relative_path(f"a{text}a")
    except ConfigError:
        return False
    return "/" not in text


DEFAULT_AFFIXES = ("part", "")
"""Start of the final names of parts, and their end behind the number, unless ``naming`` says others."""

ADOPT = "adopt:"
_ADOPTED = re.compile(rf"{ADOPT}\S+")


class ReplayRules(Options):
    """The choices of a user for a query that does not simply continue."""

    shown_as = "FileSink"

    on_new_query: str = "fail"
    """``fail``, or ``adopt:<query id>``: the new query takes over from that one, whose id is refused from then on."""
    on_gap: Literal["fail", "accept"] = "fail"
    """``fail``, or ``accept``: batch ids may skip ahead."""

    @field_validator("on_new_query")
    @classmethod
    def _adopts_a_query_by_its_id(cls, value: str) -> str:
        if value != "fail" and not _ADOPTED.fullmatch(value):
            raise ValueError(f"it must be 'fail' or '{ADOPT}' and the id of a query")
        return value
