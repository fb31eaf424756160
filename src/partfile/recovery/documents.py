"""The base of every document of recovery, and the plan of a verb."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pydantic import BaseModel, ConfigDict

from partfile.errors import RecoveryRefused


class Json(BaseModel):
    """Base of every document. Within one ``schema_version`` no field is removed or given another meaning."""

    model_config = ConfigDict(frozen=True, extra="forbid")


DIGEST_DIGITS = 16


class Plan(Json):
    """The changes that a verb is about to make. Two plans of one digest do the same to the same state."""

    def decisions(self) -> dict[str, Any]:
        """The plan without facts of the moment it was made; the digest is made of it."""
        return self.model_dump(mode="json")

    @property
    def digest(self) -> str:
        """16 hexadecimal digits of the SHA-256 of the decisions."""
        text = json.dumps(self.decisions(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_DIGITS]


def check_same(planned: str, found: str) -> None:
    """Refuse a plan that is another one by now.

    Args:
        planned: The digest that was printed.
        found: That of the plan as it would be now.

    Raises:
        RecoveryRefused: They differ.
    """
    if planned != found:
        raise RecoveryRefused(
            f"the plan {planned} is not what would be done any more: by now it would be {found}",
            hint="Nothing of it was done. Run the command again without --apply to see the plan as it is now.",
        )
