"""Base of user-facing options: frozen, keyword-only, checked when made."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from partfile.filesystems.errors import ConfigError


class Options(BaseModel):
    """Options that a user passes. A value that cannot be used raises ConfigError, which names the field."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, hide_input_in_errors=True)

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
        is_shown = field and problem["type"] != "missing" and not _is_secret(model, problem["loc"])
        given = f"={problem['input']!r}" if is_shown else ""
        problems.append(f"{field}{given}: {text}" if field else text)
    return f"{name}: {'; '.join(problems)}"


def _is_secret(model: type[BaseModel], location: tuple[int | str, ...]) -> bool:
    field = model.model_fields.get(str(location[0]))
    return field is not None and not field.repr
