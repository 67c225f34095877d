"""The forms of GitHub: those for issues have the keys that GitHub requires, and the questions that a maintainer always asks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

FOLDER = Path(__file__).parents[1] / ".github"
FORMS = sorted(each for each in (FOLDER / "ISSUE_TEMPLATE").glob("*.yml") if each.name != "config.yml")


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.stem)
def test_forms_are_valid(form: Path) -> None:
    """A form has a name, a description and questions with ids of their own; GitHub shows no form that lacks one of these."""
    content: dict[str, Any] = yaml.safe_load(form.read_text(encoding="utf-8"))
    fields = [field for field in content["body"] if field["type"] != "markdown"]
    ids = [field["id"] for field in fields]

    assert {"name", "description", "body"} <= content.keys() <= {"name", "description", "body", "labels", "title", "assignees"}
    assert {"textarea", "input", "dropdown", "checkboxes"} >= {field["type"] for field in fields}
    assert len(ids) == len(set(ids))
    assert all(field["attributes"]["label"] and field.keys() <= {"type", "id", "attributes", "validations"} for field in fields)
    labels = " ".join(field["attributes"]["label"] for field in fields)
    assert ["agentbench version --json", "agentbench doctor"] == [
        each for each in ("agentbench version --json", "agentbench doctor") if each in labels
    ]


def test_links_of_the_chooser() -> None:
    """Each link of the page on which a form is chosen has the three keys that GitHub requires."""
    config = yaml.safe_load((FOLDER / "ISSUE_TEMPLATE/config.yml").read_text(encoding="utf-8"))

    assert {"bug", "feature", "wrong-verdict"} == {form.stem for form in FORMS}
    assert [{"name", "url", "about"}] * 2 == [{*link} for link in config["contact_links"]]
