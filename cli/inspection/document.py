"""What ``--json`` prints: frozen models, and their text in ASCII alone."""

from __future__ import annotations

import json

from pydantic import BaseModel, ConfigDict


class Json(BaseModel):
    """Base of every document. Within one ``schema_version`` no field is taken away or given another meaning."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def json_text(model: BaseModel, *, indent: int | None = None) -> str:
    """A document as JSON in ASCII alone: names are in it literally, and a terminal obeys none of it."""
    text = json.dumps(model.model_dump(mode="json", by_alias=True), indent=indent)
    return text.replace("\x7f", "\\u007f")
