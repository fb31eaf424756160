"""Hadoop's own configuration: what ``core-site.xml`` and ``hdfs-site.xml`` say, read as Hadoop reads it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn
from xml.parsers import expat

from partfile.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping


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
        hint=(
            "Mend the file, or name another directory, with config_dir=DIRECTORY in storage_options or: export "
            "HADOOP_CONF_DIR=DIRECTORY"
        ),
        path=path,
    )


MAX_FILE_BYTES = 4 << 20
_FILES = ("core-site.xml", "hdfs-site.xml")
_MAX_SUBSTITUTIONS = 20
_VARIABLE = re.compile(r"\$\{([^}$ ]+)\}")
_ENVIRONMENT_VARIABLE = re.compile(r"env\.(?P<name>[^:-]+)(?:(?P<rule>:?-)(?P<default>.*))?", re.DOTALL)

_RENAMED = {
    "fs.default.name": "fs.defaultFS",
    "dfs.http.address": "dfs.namenode.http-address",
    "dfs.https.address": "dfs.namenode.https-address",
    "dfs.federation.nameservices": "dfs.nameservices",
    "dfs.block.size": "dfs.blocksize",
}
"""Old names that Hadoop takes for the present ones."""


@dataclass(frozen=True, slots=True)
class HadoopConfiguration:
    """Properties by name, and the environment that their values may refer to."""

    properties: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    directory: str | None = None
    """The directory of the files, if an option or a variable names one."""

    def value(self, name: str, default: str = "") -> str:
        """The value of a property without the blanks around it, its variables replaced.

        They are ``${other.property}``, ``${env.NAME}``, ``${env.NAME-if unset}``, ``${env.NAME:-if unset or empty}``.
        From the first one that stands for nothing on the text stays as it is; Java's system properties do so here.

        Raises:
            ConfigError: There are more than 20 variables to replace, as in a circle.

        Source: Hadoop's ``Configuration.substituteVars``, as of 3.5.
        """
        text = self.properties.get(name, default)
        for _ in range(_MAX_SUBSTITUTIONS):
            variable = _VARIABLE.search(text)
            stands_for = None if variable is None else self._stands_for(variable.group(1))
            if variable is None or stands_for is None:
                return text.strip()
            text = text[: variable.start()] + stands_for + text[variable.end() :]
        raise ConfigError(
            f"the value of {name!r} needs more than {_MAX_SUBSTITUTIONS} variables: {self.properties.get(name)!r}",
            hint=f"Write it out in {' or '.join(_FILES)}.",
        )

    def values(self, name: str) -> tuple[str, ...]:
        """The items of a property with commas between them, without blanks and without empty ones.

        Raises:
            ConfigError: As ``value``.
        """
        items = (item.strip() for item in self.value(name).split(","))
        return tuple(item for item in items if item)

    def _stands_for(self, variable: str) -> str | None:
        named = _ENVIRONMENT_VARIABLE.fullmatch(variable)
        if named is None:
            return self.properties.get(variable)
        value = self.environment.get(named["name"])
        if value is None or (not value and named["rule"] == ":-"):
            return named["default"]
        return value


def read_configuration(
    environment: Mapping[str, str], *, directory: str | None = None, overrides: Mapping[str, str] | None = None
) -> HadoopConfiguration:
    """Read the two files; a later one wins, unless the earlier one says ``final``. A file may be missing.

    ``xi:include`` is not followed.

    Args:
        environment: Where ``HADOOP_CONF_DIR`` and ``HADOOP_HOME`` are looked up, and variables in values.
        directory: Where the files are; None takes ``HADOOP_CONF_DIR``, else ``etc/hadoop`` below ``HADOOP_HOME``, else
            no files.
        overrides: Properties that win over the files.

    Raises:
        ConfigError: The directory is missing, or a file is damaged, longer than 4 MiB, or cannot be read.
    """
    found = _directory(environment, directory)
    properties: dict[str, str] = {}
    final: set[str] = set()
    for path in () if found is None else (found / name for name in _FILES):
        for item in properties_in(_read(path), str(path)):
            name = _RENAMED.get(item.name, item.name)
            if name not in final and item.value is not None:
                properties[name] = item.value
            if item.is_final:
                final.add(name)
    for name, value in (overrides or {}).items():
        properties[_RENAMED.get(name, name)] = value
    return HadoopConfiguration(properties, dict(environment), None if found is None else str(found))


def _directory(environment: Mapping[str, str], directory: str | None) -> Path | None:
    option, chosen = "config_dir", directory
    if not chosen:
        option, chosen = "HADOOP_CONF_DIR", environment.get("HADOOP_CONF_DIR")
    if chosen:
        if not Path(chosen).is_dir():
            raise ConfigError(
                f"{option} names {chosen!r}, which is not a directory",
                hint="It is the one with core-site.xml and hdfs-site.xml: export HADOOP_CONF_DIR=/etc/hadoop/conf",
                path=chosen,
            )
        return Path(chosen)
    home = environment.get("HADOOP_HOME")
    return Path(home, "etc", "hadoop") if home else None


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise ConfigError(
            f"cannot read {str(path)!r}: {error.strerror}", hint=f"See who may: ls -l {path}", path=str(path)
        ) from error
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(
            f"{str(path)!r} is longer than {MAX_FILE_BYTES} bytes", hint=f"See what it is: ls -l {path}", path=str(path)
        )
    return data
