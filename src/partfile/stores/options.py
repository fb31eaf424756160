"""Why an option cannot be used, in plain words, and the error for a storage option, which shows no values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from partfile.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import BaseModel, ValidationError


_PLAIN_WORDS = {
    "missing": "it is required",
    "int_type": "it must be a whole number",
    "int_parsing": "it must be a whole number",
    "int_from_float": "it must be a whole number",
    "float_type": "it must be a number",
    "float_parsing": "it must be a number",
    "finite_number": "it must be a finite number",
    "bool_type": "it must be True or False",
    "bool_parsing": "it must be True or False",
    "string_type": "it must be text",
    "greater_than": "it must be more than {gt}",
    "greater_than_equal": "it must be at least {ge}",
    "less_than": "it must be less than {lt}",
    "less_than_equal": "it must be at most {le}",
    "literal_error": "it must be {expected}",
    "callable_type": "it must be a function",
    "is_instance_of": "it must be a {class}",
    "mapping_type": "it must be a mapping, for instance a dict",
    "dict_type": "it must be a mapping, for instance a dict",
    "model_type": "it must be a {class_name}",
}
"""What an option must be, by the type of pydantic's problem: its own sentences speak of inputs and parsing."""


def described(kind: str, message: str, context: Mapping[str, Any]) -> str:
    """What is wrong with the value of an option, in plain words.

    Args:
        kind: The type of pydantic's problem.
        message: Its sentence, which stands where there is no plainer one.
        context: What an option may be, by pydantic's names.
    """
    words = _PLAIN_WORDS.get(kind)
    return message.removeprefix("Value error, ") if words is None else words.format(**context)


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
        text = described(problem["type"], problem["msg"], problem.get("ctx", {}))
        if problem["type"] == "extra_forbidden":
            is_unknown, text = True, "no such option"
        problems.append(f"{name}: {text}" if name else text)
    return ConfigError(
        f"storage_options for {service} cannot be used: {'; '.join(problems)}",
        hint=f"There are {', '.join(model.model_fields)}." if is_unknown else hint,
    )
