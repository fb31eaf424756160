"""Plans and their digests: what is printed is what is done, or nothing is (H8). Pure."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from partfile.cli.inspection.document import Json
from partfile.filesystems.errors import RecoveryRefused

DIGEST_DIGITS = 16


class Plan(Json):
    """What a verb is about to change. Two plans of one digest do the same to the same state."""

    def decisions(self) -> dict[str, Any]:
        """What counts: the plan without what it only tells of the moment it was made."""
        return self.model_dump(mode="json")

    @property
    def digest(self) -> str:
        """16 hexadecimal digits of the SHA-256 of what counts."""
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
