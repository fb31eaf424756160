"""The snapshot of an operator's state: copied while the operator waits, written while it goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from partfile.snapshot.operator_state import ListState, encode_map
from partfile.snapshot.result import EMPTY
from partfile.snapshot.state_file import encode_states
from partfile.snapshot.strategy import SnapshotOptions, StrategyRunner
from partfile.snapshot.stream_providers import open_result_stream
from partfile.snapshot.streams import Scope

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from partfile.snapshot.closing import CloseableRegistry
    from partfile.snapshot.model import StateHandle
    from partfile.snapshot.operator_state import BroadcastState, OperatorStateStore
    from partfile.snapshot.result import SnapshotResult
    from partfile.snapshot.state_info import NamedState, StateMetaInfo
    from partfile.snapshot.strategy import FullSnapshotResources, Supplier
    from partfile.snapshot.stream_factory import CheckpointStreamFactory

    Encoder = Callable[[], Iterator[bytes]]


class CopiedStates:
    """The states of an operator as they were at the synchronous part: copies, which nobody else changes."""

    def __init__(self, states: OperatorStateStore) -> None:
        self._copies = [
            *(_list_copy(state) if isinstance(state, ListState) else _map_copy(state) for state in states.registered),
            *(_carried(state) for state in states.carried),
        ]

    @property
    def infos(self) -> tuple[StateMetaInfo, ...]:
        """What is said of each state."""
        return tuple(info for info, _ in self._copies)

    def entries(self) -> Iterator[tuple[int, bytes]]:
        """State id and encoded element, in the order of the ids."""
        for state_id, (_, encoded) in enumerate(self._copies):
            for element in encoded():
                yield state_id, element

    def release(self) -> None:
        """Forget the copies."""
        self._copies = []


class OperatorStateStrategy:
    """Full snapshots of an operator's state. Source: Flink's ``DefaultOperatorStateBackendSnapshotStrategy``, 1.20.

    Args:
        states: The live states.
    """

    def __init__(self, states: OperatorStateStore) -> None:
        self._states = states

    def sync_prepare_resources(self, checkpoint_id: int) -> CopiedStates:  # noqa: ARG002 - of the protocol.
        """Copy every state with its own codec; elements that cannot change are not copied but shared."""
        return CopiedStates(self._states)

    def async_snapshot(
        self,
        resources: FullSnapshotResources,
        checkpoint_id: int,
        timestamp_ms: int,  # noqa: ARG002 - of the protocol.
        streams: CheckpointStreamFactory,
        options: SnapshotOptions,
    ) -> Supplier:
        """Return what writes the copies to one stream of exclusive scope."""

        def write(registry: CloseableRegistry) -> SnapshotResult:
            if not resources.infos:
                return EMPTY
            provider = open_result_stream(streams, Scope.EXCLUSIVE, checkpoint_id, options)
            registry.register(provider)
            try:
                provider.stream.write(encode_resources(resources))
                registry.unregister(provider)
                return provider.close_and_finalize()
            except BaseException:
                provider.close()
                raise

        return write


def encode_resources(resources: FullSnapshotResources) -> bytes:
    """The whole view as a state file, whichever backend it is of.

    Raises:
        UnencodableState: A codec has no form for a value.
    """
    elements: list[list[bytes]] = [[] for _ in resources.infos]
    for state_id, element in resources.entries():
        elements[state_id].append(element)
    return encode_states(zip(resources.infos, elements, strict=True))


def write_operator_state(
    states: OperatorStateStore,
    streams: CheckpointStreamFactory,
    checkpoint_id: int,
    timestamp_ms: int,
) -> StateHandle | None:
    """Snapshot the states in the caller's thread and return what the checkpoint names; None if there is no state.

    Durability: a file is durable before its handle exists. Idempotence: none; each call writes a new file, and one that
    no link comes to name is deleted together with the directory.

    Args:
        states: The live states.
        streams: Where it goes.
        checkpoint_id: The checkpoint.
        timestamp_ms: The coordinator's time, in milliseconds since the epoch.

    Raises:
        StateTooLarge: The storage does not take that much; nothing was written.
    """
    runner = StrategyRunner(OperatorStateStrategy(states))
    return runner.snapshot(checkpoint_id, timestamp_ms, streams, SnapshotOptions()).result().primary


def _list_copy(state: ListState[Any]) -> tuple[StateMetaInfo, Encoder]:
    codec = state.codec
    copies = [codec.copy(element) for element in state.get()]
    return state.info, lambda: (codec.encode(element) for element in copies)


def _map_copy(state: BroadcastState[Any, Any]) -> tuple[StateMetaInfo, Encoder]:
    keys, values = state.descriptor.key_codec, state.descriptor.value_codec
    copies = [(keys.copy(key), values.copy(value)) for key, value in state.entries()]
    return state.info, lambda: iter((encode_map(state.descriptor, copies),))


def _carried(state: NamedState) -> tuple[StateMetaInfo, Encoder]:
    return state.info, lambda: iter(state.elements)
