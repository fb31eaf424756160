"""Base of user-facing options: frozen, keyword-only, checked when made."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from partfile.filesystems.errors import ConfigError


class Options(BaseModel):
    """Options that a user passes. A value that cannot be used raises ConfigError, which names the field."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(describe(type(self).__name__, type(self), error)) from error


def describe(name: str, model: type[BaseModel], error: ValidationError) -> str:
    """One sentence for what pydantic found wrong with ``name``."""
    problems = []
    for problem in error.errors(include_url=False):
        field = ".".join(str(step) for step in problem["loc"])
        text = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            text = f"no such option; there are {', '.join(model.model_fields)}"
        given = "" if not field or problem["type"] == "missing" else f"={problem['input']!r}"
        problems.append(f"{field}{given}: {text}" if field else text)
    return f"{name}: {'; '.join(problems)}"
