"""docs/CLI.md is what the code says, whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.main import get_command

from cli_reference import DOCUMENTS, reference
from partfile.cli.main import VERBS, app

ROOT = Path(__file__).parents[2]


def test_the_document_is_made_from_the_code() -> None:
    """docs/CLI.md is what ``make docs`` makes of this code."""
    assert (ROOT / "docs" / "CLI.md").read_text() == reference(), "run make docs"


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_every_verb_with_a_document_is_in_it(name: str) -> None:
    """Each verb has a section with its example, and its JSON a table."""
    text, verb = reference(), name.partition(" --")[0]
    section = text[text.index(f"\n## partfile {verb}\n") :]
    assert f"Example: `partfile {verb}" in section.partition("\n## ")[2].partition("\n## ")[0]
    assert f"`partfile {name}`: `{DOCUMENTS[name].model_fields['schema_name'].default}`, version 1" in text


def test_no_verb_is_left_out() -> None:
    """Every verb but cat, which prints what is in a part, has a JSON document."""
    command = get_command(app)
    names = {name for name in command.commands if name != "savepoint"}  # type: ignore[attr-defined]
    assert names - {"cat"} <= {name.partition(" ")[0] for name in DOCUMENTS}


def test_the_list_of_verbs_says_what_each_verb_says() -> None:
    """The list is printed before a verb is imported, so it has the first paragraph of the verb's own help."""
    own = {verb.name: " ".join((verb.loaded().help or "").split("\n\n")[0].split()) for verb in VERBS}
    assert {verb.name: verb.help for verb in VERBS} == own


def test_every_field_has_a_meaning() -> None:
    """No row of a table of JSON fields ends without one."""
    tables = reference().partition("\n## JSON\n")[2]
    rows = [line for line in tables.splitlines() if line.startswith("| `")]
    assert len(rows) > 50
    assert [row for row in rows if row.endswith("|  |")] == []
