"""No name makes a terminal do anything, and a command that was copied means the same (H9)."""

from __future__ import annotations

import json
import subprocess
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from partfile.cli.output import command_line, shell_word, shown
from partfile.recovery.documents import json_text

HOSTILE = "part\x1b[31m\x07\n\u202egpj\u200b\x9b\U000e0001\x7f"


class Named(BaseModel):
    """A document with one name."""

    name: str


def obeyed(text: str) -> list[str]:
    """The characters that a terminal would obey."""
    return [character for character in text if unicodedata.category(character) in {"Cc", "Cf", "Cs", "Zl", "Zp"}]


@pytest.mark.fault("H9")
@given(st.text())
def test_no_text_is_obeyed(text: str) -> None:
    """Whatever a name holds, what is printed has no control, format or surrogate character."""
    assert obeyed(shown(text)) == []


@pytest.mark.parametrize("text", ["part-1.json", "ü ö", "漢字", "100%", "back\\slash", "'"])
def test_what_is_harmless_stays_as_it_is(text: str) -> None:
    """Names that a terminal shows as they are, are shown as they are."""
    assert shown(text) == text


@pytest.mark.fault("H9")
@pytest.mark.parametrize("word", [HOSTILE, "a b", "it's", "$(rm -rf /)", "back\\slash\x1b'", "-", "plain", "ü\u202e'"])
def test_a_copied_command_means_the_same(word: str) -> None:
    """Bash reads the printed word as the name that was meant, and nothing printed is obeyed by a terminal."""
    printed = shell_word(word)
    assert obeyed(printed) == []
    done = subprocess.run(
        ["bash", "-c", f"printf %s {printed}"], capture_output=True, check=True, env={"LC_ALL": "C.UTF-8"}
    )
    assert done.stdout.decode() == word


def test_a_command_is_quoted_word_by_word() -> None:
    """Each word of a command stays one."""
    assert command_line(["partfile", "status", "/data/a b"]) == "partfile status '/data/a b'"


@pytest.mark.fault("H9")
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_json_holds_the_literal_name_and_no_character_that_is_obeyed(name: str) -> None:
    """A program that parses the JSON gets the very name, and a terminal that shows it obeys nothing."""
    text = json_text(Named(name=name))
    assert json.loads(text) == {"name": name}
    assert obeyed(text) == []
