"""Which checkpoint storage a job has: a file system, or the memory of its coordinator; and what its streams may do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from pydantic import BaseModel, ConfigDict, ValidationError

from partfile.filesystems.errors import ConfigError, StateTooLarge
from partfile.filesystems.opening import check_url
from partfile.snapshot.stream_factory import (
    DEFAULT_INLINE_THRESHOLD_BYTES,
    DEFAULT_MAX_ACKNOWLEDGEMENT_BYTES,
    DEFAULT_MAX_STATE_BYTES,
    DEFAULT_WRITE_BUFFER_BYTES,
    FileStreamFactory,
    MemoryStreamFactory,
    check_file_streams,
)

if TYPE_CHECKING:
    from partfile.filesystems.metadata_port import MetadataStore
    from partfile.snapshot.model import CheckpointMetadata
    from partfile.snapshot.stream_factory import CheckpointStreamFactory

DEFAULT_MAX_TOTAL_BYTES = 100 << 20


class StreamSettings(Protocol):
    """What a checkpoint storage does with state."""

    def factory(self, store: MetadataStore, directory: str, checkpoint_id: int) -> CheckpointStreamFactory:
        """The streams of one subtask for one checkpoint."""

    def check_total(self, metadata: CheckpointMetadata) -> None:
        """Refuse a checkpoint that is more than the coordinator may hold.

        Raises:
            StateTooLarge: Names the size and the limit.
        """


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(f"{type(self).__name__}: {_problems(error)}") from error


def _problems(error: ValidationError) -> str:
    found = error.errors(include_url=False)
    return "; ".join(": ".join([*map(str, one["loc"]), one["msg"].removeprefix("Value error, ")]) for one in found)


class FileStreamSettings(_Settings):
    """State in files, small state inline."""

    inline_threshold_bytes: int = DEFAULT_INLINE_THRESHOLD_BYTES
    """State of at most this size travels inline and lies in the metadata; at most 1 MiB."""
    write_buffer_bytes: int = DEFAULT_WRITE_BUFFER_BYTES
    """Size of a stream's buffer; at least the threshold is used."""

    def model_post_init(self, _context: object, /) -> None:
        """Refuse sizes that cannot be used."""
        check_file_streams(self.inline_threshold_bytes, self.write_buffer_bytes)

    def factory(self, store: MetadataStore, directory: str, checkpoint_id: int) -> CheckpointStreamFactory:
        """Streams to files below the job's directory."""
        return FileStreamFactory(
            store,
            directory,
            checkpoint_id,
            inline_threshold_bytes=self.inline_threshold_bytes,
            write_buffer_bytes=self.write_buffer_bytes,
        )

    def check_total(self, metadata: CheckpointMetadata) -> None:
        """Nothing to refuse: large state is in files."""


class FileSystemStorageSettings(FileStreamSettings):
    """Checkpoints on a file system, where another coordinator finds them after this one is lost."""

    url: str
    """Base of the checkpoints: a path or a URL that some store serves."""
    create_subdirectory: bool = True
    """False puts ``chk-N``, ``shared`` and ``taskowned`` directly under the URL, which then serves one job."""

    def model_post_init(self, context: object, /) -> None:
        """Refuse sizes and URLs that cannot be used."""
        super().model_post_init(context)
        check_url(self.url)


class DriverMemoryStorageSettings(_Settings):
    """Checkpoints in the coordinator's memory, lost with its process: for development and very small state."""

    max_state_bytes: int = DEFAULT_MAX_STATE_BYTES
    """A larger piece of state fails its checkpoint."""
    max_acknowledgement_bytes: int = DEFAULT_MAX_ACKNOWLEDGEMENT_BYTES
    """More state in one acknowledgement fails its checkpoint, whatever ``max_state_bytes`` is."""
    max_total_bytes: int = DEFAULT_MAX_TOTAL_BYTES
    """More state in all acknowledgements together fails the checkpoint, before its link is created."""

    def model_post_init(self, _context: object, /) -> None:
        """Refuse limits that would fail every checkpoint."""
        for name in type(self).model_fields:
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1")

    def factory(
        self,
        store: MetadataStore,  # noqa: ARG002 - of the protocol, as the other two.
        directory: str,  # noqa: ARG002
        checkpoint_id: int,  # noqa: ARG002
    ) -> CheckpointStreamFactory:
        """Streams into acknowledgements."""
        return MemoryStreamFactory(
            max_state_bytes=self.max_state_bytes, max_acknowledgement_bytes=self.max_acknowledgement_bytes
        )

    def check_total(self, metadata: CheckpointMetadata) -> None:
        """Refuse a checkpoint whose state together is more than ``max_total_bytes``.

        Raises:
            StateTooLarge: Names the size and the limit.
        """
        total = sum(handle.size_bytes for handle in metadata.handles())
        if total > self.max_total_bytes:
            raise StateTooLarge(
                f"the checkpoint has {total} bytes of state, more than max_total_bytes={self.max_total_bytes}",
                hint="Configure a checkpoint directory, or raise the limit.",
                checkpoint_id=metadata.checkpoint_id,
            )


StorageSettings = FileSystemStorageSettings | DriverMemoryStorageSettings


class StorageOptions(_Settings):
    """What a job, or the configuration for all jobs, says of checkpoint storage; None says nothing."""

    checkpoint_directory: str | None = None
    inline_threshold_bytes: int | None = None
    write_buffer_bytes: int | None = None
    create_subdirectory: bool | None = None


def select_storage(
    instance: StorageSettings | None, job: StorageOptions | None = None, defaults: StorageOptions | None = None
) -> StorageSettings:
    """Decide where checkpoints go: a file system if a checkpoint directory is configured, else the driver's memory.

    Args:
        instance: Settings passed in code, which win as a whole.
        job: The job's options; each that says something wins over the same of ``defaults``.
        defaults: Options of all jobs.

    Raises:
        ConfigError: A URL or a size cannot be used.
    """
    if instance is not None:
        return instance
    options = {
        name: value
        for level in (defaults, job)
        if level is not None
        for name, value in level.model_dump(exclude_none=True).items()
    }
    url = options.pop("checkpoint_directory", None)
    return DriverMemoryStorageSettings() if url is None else FileSystemStorageSettings(url=url, **options)
