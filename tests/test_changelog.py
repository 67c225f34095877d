"""The changelog: a section for the version of the package, and fragments of the right form for changes since the last release."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
FRAGMENT = re.compile(r"\d+\.[\w-]+\.(feature|fix|change|removal)\.md")


def test_fragments_have_the_form() -> None:
    """Each file in changelog/ but README.md is a fragment with the number of an issue, a name, a type and a text."""
    files = [file for file in (ROOT / "changelog").iterdir() if file.name != "README.md"]

    assert [] == [file.name for file in files if not FRAGMENT.fullmatch(file.name) or not file.read_text(encoding="utf-8").strip()]
    assert (ROOT / "changelog/README.md").exists()


def test_the_version_has_a_section() -> None:
    """The newest section of CHANGELOG.md is that of the version in pyproject.toml."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)

    assert version == headings[0].split()[0]
