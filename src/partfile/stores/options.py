"""The errors for storage options that cannot be used, which show no values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from partfile.errors import ConfigError, plain_words

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError


def check_mapping(storage_options: object) -> None:
    """Refuse storage options that are no mapping; raises ConfigError, which shows no value."""
    if storage_options is not None and not isinstance(storage_options, Mapping):
        raise ConfigError(
            f"storage_options must be a mapping of names to values, not {type(storage_options).__name__}",
            hint='Pass what the client of the store takes: storage_options={"region": "eu-west-1"}',
        )


def refused(service: str, model: type[BaseModel], error: ValidationError, hint: str) -> ConfigError:
    """The error that names the options at fault.

    Args:
        service: Whose options they are, for the message.
        model: What was validated; the names of all its options are told where one is unknown.
        error: What pydantic found.
        hint: Where all options are known: where to read about them.
    """
    problems: list[str] = []
    is_unknown = False
    for problem in error.errors(include_url=False, include_input=False):
        name = ".".join(map(str, problem["loc"]))
        text = plain_words(problem)
        if problem["type"] == "extra_forbidden":
            is_unknown, text = True, "no such option"
        problems.append(f"{name}: {text}" if name else text)
    return ConfigError(
        f"storage_options for {service} cannot be used: {'; '.join(problems)}",
        hint=f"There are {', '.join(model.model_fields)}." if is_unknown else hint,
    )
