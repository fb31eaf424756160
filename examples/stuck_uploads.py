"""The mess of ``examples/stuck.sh`` on S3: an upload that no sink will complete, and one that a checkpoint names.

    python stuck_uploads.py serve|restart DIRECTORY

``serve`` starts moto, lets two sinks die in it, writes what the command line needs to ``DIRECTORY/s3.env``, and stays
until its standard input ends; ``restart`` runs the stream to its end.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

import partfile as pf

if TYPE_CHECKING:
    from collections.abc import Sequence

ROWS = 8
ROWS_A_CHECKPOINT = 4
ROW_BYTES = 3 << 20
"""Two rows are more than the 5 MiB that an upload part must have."""


@dataclass(frozen=True, slots=True)
class Uploads:
    """Where the stream on S3 is, and what reads it there."""

    endpoint_url: str
    bucket: str
    access_key: str
    secret_key: str

    @classmethod
    def of(cls, root: Path) -> Self | None:
        """As ``serve`` has written it down; None without a server."""
        place = root / "s3.json"
        return cls(**json.loads(place.read_text())) if place.exists() else None

    @property
    def base(self) -> str:
        """The base path of the sink."""
        return f"s3://{self.bucket}/landing"

    def environment(self) -> dict[str, str]:
        """What every AWS client finds."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL_S3": self.endpoint_url,
        }

    def rows(self) -> Counter[int]:
        """The rows of every object that no reader passes over."""
        client = self._client()
        keys = [key for key in client.find(f"{self.bucket}/landing") if "/_" not in key]
        return Counter(int(line.split()[0]) for key in keys for line in client.cat_file(key).splitlines())

    def expected(self) -> Counter[int]:
        """Each row once."""
        return Counter(range(ROWS))

    def left(self) -> list[str]:
        """Uploads that are neither completed nor aborted, and what belongs to them."""
        client = self._client()
        answer = client.call_s3("list_multipart_uploads", Bucket=self.bucket)
        uploads = [f"upload of {one['Key']}" for one in answer.get("Uploads") or ()]
        kept = ("/_partfile/_sides/", "/_partfile/_claims/")
        return uploads + [key for key in client.find(f"{self.bucket}/landing") if any(name in key for name in kept)]

    def _client(self) -> Any:
        from support.s3.server import client_without_retries, storage_options  # noqa: PLC0415 - needs the extra dev

        return client_without_retries(storage_options(self.endpoint_url, self.access_key, self.secret_key))


def main() -> int:
    """Do one step of the demo."""
    step, root = sys.argv[1], Path(sys.argv[2]).absolute()
    steps = {"serve": serve, "die": die, "restart": restart}
    return steps[step](root, sys.argv[3:])


def serve(root: Path, _words: Sequence[str]) -> int:
    """Be the S3 server until its output is closed; returns 1 where there is no moto."""
    if importlib.util.find_spec("moto") is None:
        print("no moto here (pip install 'partfile[dev]'), so nothing is stuck on S3", flush=True)
        return 1
    from support.s3.server import MotoServer  # noqa: PLC0415 - needs the extra dev

    with MotoServer(root / "s3") as server:
        place = Uploads(server.endpoint_url, server.bucket(), server.access_key, server.secret_key)
        (root / "s3.json").write_text(json.dumps(asdict(place)))
        for rows in (0, ROWS_A_CHECKPOINT):
            command = (sys.executable, __file__, "die", str(root), str(rows))
            died = subprocess.run(command, env={**os.environ, **place.environment()}, check=False)
            if died.returncode != -signal.SIGKILL:
                raise SystemExit(f"the sink on S3 was not killed, but ended with {died.returncode}")
        print(f"two sinks were killed (SIGKILL) on S3: {len(place.left())} uploads and objects are open", flush=True)
        lines = [f"export {name}={value}\n" for name, value in place.environment().items()]
        partial = root / "s3.env.partial"
        partial.write_text("".join([*lines, f"S3_BASE={place.base}\n"]))
        partial.rename(root / "s3.env")
        sys.stdin.read()
    return 0


def die(root: Path, words: Sequence[str]) -> int:
    """Write so many rows that count, then others, and be killed."""
    out = sink(root).local().open()
    counted = int(words[0])
    if counted:
        out.write(rows_between(0, counted), position=counted)
        out.checkpoint()
    out.write(rows_between(counted, counted + ROWS_A_CHECKPOINT), position=counted + ROWS_A_CHECKPOINT)
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def restart(root: Path, _words: Sequence[str]) -> int:
    """Go on from where the sink stands, to the end."""
    with sink(root).local() as out:
        done = int(str(out.position or 0))
        if done < ROWS:
            out.write(rows_between(done, ROWS), position=ROWS)
    print(f"the stream on S3 went on from row {done} to its end")
    return 0


def sink(root: Path) -> pf.FileSink:
    """The sink, as each of its runs makes it."""
    place = Uploads.of(root)
    if place is None:
        raise SystemExit(f"no server has run for {root}")
    return pf.FileSink(place.base, uid="numbers", format="text")


def rows_between(first: int, end: int) -> pa.RecordBatch:
    """Numbered rows, so wide that few of them need an upload."""
    return pa.RecordBatch.from_pydict({"row": [f"{row} ".ljust(ROW_BYTES, "x") for row in range(first, end)]})


if __name__ == "__main__":
    sys.exit(main())
