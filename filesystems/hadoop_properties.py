"""One file of Hadoop's properties, from XML; nothing outside of the file is ever looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn
from xml.parsers import expat

from partfile.filesystems.errors import ConfigError

_FIELDS = ("name", "value", "final")


@dataclass(frozen=True, slots=True)
class Property:
    """One property as a file has it."""

    name: str
    value: str | None
    """None where the file gives none: the property is then as if it were not there."""
    is_final: bool
    """Whether later files cannot change it."""


def properties_in(data: bytes, path: str) -> list[Property]:
    """The properties of a file, in its order; nothing for an empty file.

    Args:
        data: The file.
        path: Where it is from, for messages.

    Raises:
        ConfigError: It is not the XML that Hadoop writes and reads, or has a document type.
    """
    if not data.strip():
        return []
    reader = _Reader(path)
    try:
        reader.parser.Parse(data, True)  # noqa: FBT003 - expat takes it by position only.
    except (expat.ExpatError, LookupError, ValueError) as error:
        raise _damaged(path, str(error)) from error
    return reader.found


class _Reader:
    """Follows the parser from element to element."""

    def __init__(self, path: str) -> None:
        self.found: list[Property] = []
        self._path = path
        self._elements: list[str] = []
        self._fields: dict[str, str] = {}
        self.parser = expat.ParserCreate()
        self.parser.buffer_text = True
        self.parser.StartDoctypeDeclHandler = self._refuse_document_type
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._text

    def _refuse_document_type(self, *_declaration: object) -> NoReturn:
        raise _damaged(self._path, "it has a document type (<!DOCTYPE>), which is refused")

    def _start(self, element: str, attributes: dict[str, str]) -> None:
        if not self._elements and element != "configuration":
            raise _damaged(self._path, f"it begins with <{element}>, not with <configuration>")
        self._elements.append(element)
        if element == "property":
            self._fields = {name: text for name, text in attributes.items() if name in _FIELDS}
        elif self._is_field:
            self._fields[element] = ""

    def _text(self, text: str) -> None:
        if self._is_field:
            self._fields[self._elements[-1]] += text

    def _end(self, element: str) -> None:
        self._elements.pop()
        name = self._fields.get("name", "").strip()
        if element == "property" and name:
            is_final = self._fields.get("final", "").strip().lower() == "true"
            self.found.append(Property(name, self._fields.get("value"), is_final))

    @property
    def _is_field(self) -> bool:
        return self._elements[-2:-1] == ["property"] and self._elements[-1] in _FIELDS


def _damaged(path: str, reason: str) -> ConfigError:
    return ConfigError(
        f"{path!r} cannot be read as Hadoop's configuration: {reason}",
        hint="Mend the file, or let config_dir or HADOOP_CONF_DIR name another directory.",
        path=path,
    )
