"""Descriptors of keyed states: name, kind, codecs and time to live. Pure rules.

Source: Flink's ``StateDescriptor`` and its subclasses, as of 1.20.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from partfile.errors import ConfigError, SnapshotCorrupt, SnapshotVersionError, UnencodableState
from partfile.snapshot.keyed.codecs import encode_checked
from partfile.snapshot.keyed.keys import KeyCodec
from partfile.snapshot.keyed.ttl import Ttl
from partfile.snapshot.operator_state import check_same_state
from partfile.snapshot.state_file import StateMetaInfo, check_codec

if TYPE_CHECKING:
    from collections.abc import Callable

    from partfile.snapshot.state_file import Codec


Value = TypeVar("Value")
Added = TypeVar("Added")
Accumulator = TypeVar("Accumulator")
Result = TypeVar("Result")
Kind = Literal["value", "list", "map", "reducing", "aggregating"]


def _as_it_is(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class Earlier:
    """A codec that an earlier program gave the values of a state, and how they become those of today."""

    codec: Codec[Any]
    """As it was then: its name and version are those in the snapshot."""
    convert: Callable[[Any], Any] = _as_it_is
    """Makes a value of today's codec of one of that codec."""

    def __post_init__(self) -> None:
        check_codec(self.codec, "Earlier")
        if not callable(self.convert):
            raise ConfigError(
                f"Earlier: convert={self.convert!r} is no function", hint="Write for instance convert=float."
            )

    def value_of_today(self, data: bytes, begin: int, codec: Codec[Any]) -> bytes:
        """A value that was written in the earlier codec, in today's.

        Args:
            data: As it was written.
            begin: Where it begins, behind a time that stays as it is.
            codec: Today's.

        Raises:
            SnapshotCorrupt: It is none of the earlier codec, or has no time.
            UnencodableState: ``convert`` raised, or returned what today's codec has no form for.
        """
        if len(data) < begin:
            raise SnapshotCorrupt("a value has no time")
        value = self.codec.decode(data[begin:])
        try:
            converted = self.convert(value)
        except Exception as error:
            raise UnencodableState(f"the function convert raised {error!r} for {value!r}") from error
        if converted is None:
            raise UnencodableState(f"the function convert returned None for {value!r}")
        return data[:begin] + encode_checked(codec, converted)


_FUNCTIONS = {"reduce", "create", "add", "result"}
"""Fields of descriptors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    ttl: Ttl | None = None
    """How long values live; None is for ever."""
    namespace: KeyCodec | None = None
    """The kind of the namespaces, by which one key has several values; None if the state has none."""
    formerly: str | None = None
    """The name that the state had in earlier snapshots."""
    earlier: tuple[Earlier, ...] = ()
    """Codecs that its values had in earlier snapshots. A restore turns such values into those of today's codec."""

    def __post_init__(self) -> None:
        name: Any = getattr(self, "name", None)
        codec: Any = getattr(self, "codec", None)
        self._check_fields(name, codec)
        if self.ttl is not None and not isinstance(self.ttl, Ttl):
            raise ConfigError(
                f"state {name!r}: ttl={self.ttl!r} is no time to live", hint=f"Write ttl=Ttl({self.ttl!r})."
            )
        self._check_earlier(name, codec)
        if self.formerly is not None and self.formerly == name:
            raise ConfigError(f"state {name!r} has its own name as its former one", hint="Leave it out: formerly=None")

    def _check_fields(self, name: Any, codec: Any) -> None:
        """Refuse names, codecs, functions and kinds of keys that are none; raises ConfigError."""
        for field, text in (("name", name), ("formerly", "-" if self.formerly is None else self.formerly)):
            if not isinstance(text, str) or not text:
                raise ConfigError(
                    f"state {name!r}: {field}={text!r} is no name of a state",
                    hint=f"Write for instance {field}='count'.",
                )
        check_codec(codec, f"state {name!r}")
        for field in sorted(_FUNCTIONS & set(type(self).__dataclass_fields__)):
            if not callable(getattr(self, field)):
                raise ConfigError(
                    f"state {name!r}: {field}={getattr(self, field)!r} is no function",
                    hint=f"Give a function: {field}=FUNCTION",
                )
        kinds: dict[str, object] = {"key_codec": self.key_codec} if isinstance(self, MapStateDescriptor) else {}
        for field, kind in (kinds if self.namespace is None else {**kinds, "namespace": self.namespace}).items():
            if not isinstance(kind, KeyCodec):
                shown = kind if isinstance(kind, str) else "string"
                raise ConfigError(
                    f"state {name!r}: {field}={kind!r} is no kind of keys", hint=f"Write {field}=KeyCodec({shown!r})."
                )

    def _check_earlier(self, name: str, codec: Codec[Any]) -> None:
        """Refuse earlier codecs that are none, or that cannot be told from today's; raises ConfigError."""
        if not isinstance(self.earlier, tuple):
            raise ConfigError(
                f"state {name!r}: earlier={self.earlier!r} is no tuple of codecs",
                hint="Write earlier=(Earlier(CODEC, convert),), with the comma.",
            )
        known = [codec.info]
        given: tuple[object, ...] = self.earlier
        for one in given:
            if not isinstance(one, Earlier):
                raise ConfigError(
                    f"state {name!r}: earlier has {one!r}, which is no earlier codec",
                    hint="Write earlier=(Earlier(CODEC, convert),).",
                )
            if one.codec.info in known:
                raise ConfigError(
                    f"state {name!r}: the codec {one.codec.info.name!r} of version {one.codec.info.version} is in it "
                    "twice, so that values of the one would pass for those of the other",
                    hint="Leave one out. Where their bytes differ, raise the version of today's codec: version=2",
                )
            known.append(one.codec.info)


@dataclass(frozen=True, slots=True)
class ValueStateDescriptor(_Options, Generic[Value]):
    """Names a state of one value a key, and the codec of the values."""

    name: str
    codec: Codec[Value]
    kind = "value"


@dataclass(frozen=True, slots=True)
class ListStateDescriptor(_Options, Generic[Value]):
    """Names a state of one list a key, and the codec of the elements."""

    name: str
    codec: Codec[Value]
    kind = "list"


@dataclass(frozen=True, slots=True)
class MapStateDescriptor(_Options, Generic[Value]):
    """Names a state of one map a key, and the codecs of the map's own keys and of its values."""

    name: str
    key_codec: KeyCodec
    codec: Codec[Value]
    kind = "map"


@dataclass(frozen=True, slots=True)
class ReducingStateDescriptor(_Options, Generic[Value]):
    """Names a state of one value a key, its codec, and the function that makes one value of two."""

    name: str
    codec: Codec[Value]
    reduce: Callable[[Value, Value], Value]
    kind = "reducing"


@dataclass(frozen=True, slots=True)
class AggregatingStateDescriptor(_Options, Generic[Added, Accumulator, Result]):
    """Names a state of one accumulator a key, the codec of the accumulators, and the functions around them."""

    name: str
    codec: Codec[Accumulator]
    create: Callable[[], Accumulator]
    """Makes an accumulator to which nothing was added."""
    add: Callable[[Accumulator, Added], Accumulator]
    """Adds a value; the accumulator that is returned takes the place of the other."""
    result: Callable[[Accumulator], Result]
    """Finds the result of an accumulator, which it leaves as it is."""
    kind = "aggregating"


Descriptor = (
    ValueStateDescriptor[Any]
    | ListStateDescriptor[Any]
    | MapStateDescriptor[Any]
    | ReducingStateDescriptor[Any]
    | AggregatingStateDescriptor[Any, Any, Any]
)


def info_of(descriptor: Descriptor) -> StateMetaInfo:
    """The description of a state in a snapshot. Its functions and how long its values live are not in it."""
    codecs = {"element": descriptor.codec.info}
    if isinstance(descriptor, MapStateDescriptor):
        codecs["key"] = descriptor.key_codec.info
    if descriptor.namespace is not None:
        codecs["namespace"] = descriptor.namespace.info
    options = {"kind": descriptor.kind, "expires": "no" if descriptor.ttl is None else "yes"}
    return StateMetaInfo(name=descriptor.name, type="KEY_VALUE", mode="key-groups", codecs=codecs, options=options)


_KINDS = {"value", "list", "map", "reducing", "aggregating"}


def is_keyed_state(info: StateMetaInfo) -> bool:
    """Whether a description in a snapshot is one that ``info_of`` makes."""
    is_map = info.options.get("kind") == "map"
    return (
        info.type == "KEY_VALUE"
        and info.options.keys() == {"kind", "expires"}
        and info.options["kind"] in _KINDS
        and info.options["expires"] in {"yes", "no"}
        and info.codecs.keys() - {"namespace"} == ({"element", "key"} if is_map else {"element"})
    )


def codec_in_snapshot(known: StateMetaInfo, descriptor: Descriptor) -> Earlier | None:
    """The earlier codec that a snapshot has the values of a state in; None if it is that of today, or no such one."""
    written = known.codecs.get("element")
    if written == descriptor.codec.info:
        return None
    return next((one for one in descriptor.earlier if one.codec.info == written), None)


def check_same_keyed_state(known: StateMetaInfo, asked: StateMetaInfo, where: str) -> None:
    """Refuse a name that stands for another state already.

    Args:
        known: What the name stands for.
        asked: What it is asked for as.
        where: What knows it, for the message: ``registered`` or ``in the snapshot``.

    Raises:
        ConfigError: Kind, namespaces, expiry or codec is another one.
        SnapshotVersionError: A codec is the same, in another version.
    """
    kind, wanted = known.options.get("kind"), asked.options["kind"]
    if kind != wanted:
        raise ConfigError(
            f"state {asked.name!r} is {where} as {kind} state and asked for as {wanted} state",
            hint="A name keeps its kind; use another one: name=NAME",
        )
    if known.options.get("expires") != asked.options["expires"]:
        has, asks = ("a", "no") if known.options.get("expires") == "yes" else ("no", "a")
        raise ConfigError(
            f"state {asked.name!r} is {where} with {has} time to live and asked for with {asks}",
            hint=(
                f"The times lie beside the values. Write {'ttl=Ttl(DURATION)' if has == 'a' else 'ttl=None'}, or take "
                "another name: name=NAME"
            ),
        )
    try:
        check_same_state(known, asked, where)
    except (ConfigError, SnapshotVersionError) as error:
        if where == "in the snapshot" and known.codecs.get("element") != asked.codecs["element"]:
            error.hint = (
                "Name the codec that its values had, and what turns them into those of today: "
                "earlier=(Earlier(CODEC, convert),)"
            )
        raise
    if "namespace" in known.codecs and "namespace" not in asked.codecs:
        raise ConfigError(
            f"state {asked.name!r} is {where} with namespaces and asked for without",
            hint="A name keeps its namespaces; use another one: name=NAME",
        )
