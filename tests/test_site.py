"""The site of the documentation: it builds without a warning, and a browser can read, search and draw it without a network."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.project import ROOT

pytestmark = pytest.mark.slow

PAGES = ("index", "start/running", "compare/gates", "reference/cli", "reference/backend-yaml", "why/rollout-travels")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. A dead link or anchor, and a page in no menu, are warnings of Sphinx."""
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet", str(ROOT / "docs"), str(folder)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)

    assert (0, "") == (done.returncode, done.stderr)
    return folder


@pytest.mark.parametrize("width", [390, 1280])
def test_no_page_is_wider_than_the_window(site: Path, chromium: Any, width: int) -> None:
    page = chromium.new_page(viewport={"width": width, "height": 900})
    too_wide = []
    for name in PAGES:
        page.goto((site / f"{name}.html").as_uri())
        if page.evaluate("document.documentElement.scrollWidth") > width:
            too_wide.append(name)
    page.close()

    assert [] == too_wide


def test_search_works_from_a_disk(site: Path, chromium: Any) -> None:
    page = chromium.new_page()
    page.goto(f"{(site / 'search.html').as_uri()}?q=non-inferiority")
    page.wait_for_selector("ul.search li a")
    found = page.inner_text("ul.search")
    page.close()

    assert "Gates" in found


def test_diagrams_are_drawn(site: Path, chromium: Any) -> None:
    if not (ROOT / "build/mermaid/mermaid.min.js").exists():
        pytest.skip("NOT TESTED: the diagrams; `make docs` gets Mermaid from npm")
    pages = [file for file in site.rglob("*.html") if 'class="mermaid"' in file.read_text(encoding="utf-8")]
    assert pages
    for file in pages:
        page = chromium.new_page()
        page.goto(file.as_uri())
        page.wait_for_selector("pre.mermaid svg")
        assert (
            page.locator("pre.mermaid").count()
            == page.locator("pre.mermaid svg[aria-roledescription]:not([aria-roledescription=error])").count()
        )
        page.close()


def test_links_out_of_the_documentation_lead_to_the_repository(site: Path) -> None:
    """A file outside docs/ is on no page of the site."""
    assert "/blob/main/README.md" in (site / "index.html").read_text(encoding="utf-8")


def test_links_to_headings_stay_in_the_site(site: Path) -> None:
    """A link to a heading of another page leads to that page of the site, where Sphinx checks it, and not to the repository."""
    leaving = [file.name for file in site.rglob("*.html") if re.search(r"/blob/main/docs/[^\"]*\.md#", file.read_text(encoding="utf-8"))]

    assert [] == leaving


def test_versions_are_offered(site: Path, chromium: Any, tmp_path: Path) -> None:
    """The menu has the versions of versions.json beside the folder of a version, with the present one chosen."""
    (tmp_path / "1.0").symlink_to(site)
    (tmp_path / "versions.json").write_text(json.dumps(["2.0", "1.0"]))
    page = chromium.new_page()
    page.route(
        "http://site/**", lambda route: route.fulfill(path=tmp_path / route.request.url.removeprefix("http://site/").partition("?")[0])
    )
    page.goto("http://site/1.0/start/running.html")
    page.wait_for_selector("select.versions:not([hidden])", state="attached")
    chosen = page.evaluate("document.querySelector('.versions').value")
    page.close()

    assert "1.0" == chosen
