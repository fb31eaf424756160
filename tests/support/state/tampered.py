"""State of a sink as another program with the right checksums would change it."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import TYPE_CHECKING, Any

from partfile.sink.states import OPERATOR
from partfile.snapshot.documents import encode_body
from partfile.snapshot.state_file import decode_states, encode_states

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def newest_metadata(base: Path, uid: str = "life") -> Path:
    """The file of the newest checkpoint of a sink."""
    return max(base.glob(f"_partfile/{uid}/chk-*/_metadata"), key=lambda path: int(path.parent.name[4:]))


def tamper(metadata: Path, state: str, change: Callable[[Any], Any]) -> None:
    """Change each element of one list state of a checkpoint; what ``change`` returns is JSON or its bytes."""
    raw = json.loads(metadata.read_bytes().split(b"\n", 1)[1])
    handle = raw["operators"][OPERATOR]["coordinator"]
    states = decode_states(handle["text"].encode(), str(metadata))
    assert states[state].elements, f"there is no element of {state} to change"
    changed = [
        (one.info, [_changed(element, change) for element in one.elements] if name == state else one.elements)
        for name, one in states.items()
    ]
    del handle["text"]
    handle["base64"] = b64encode(encode_states(changed)).decode()
    body = json.dumps(raw).encode()
    metadata.write_bytes(encode_body("checkpoint", body))


def _changed(element: bytes, change: Callable[[Any], Any]) -> bytes:
    new = change(json.loads(element))
    return new if isinstance(new, bytes) else json.dumps(new).encode()
