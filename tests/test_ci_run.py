"""`.ci/run` ends with the status of the command that it ran."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / ".ci" / "run"


@pytest.mark.parametrize(("last", "status"), [("true", 0), ("exit 3", 3), ("false", 1)])
@pytest.mark.parametrize("child", [":", "sleep 60 &"], ids=["nothing-left", "a-child-left"])
def test_the_cleanup_changes_no_status(tmp_path: Path, last: str, status: int, child: str) -> None:
    """The cleanup at the end kills remaining children, and does not change the status, even if no child is left."""
    (end,) = re.findall(r"^trap .*EXIT.*$", SCRIPT.read_text(encoding="utf-8"), re.MULTILINE)
    work = tmp_path / "work"
    work.mkdir()
    lines = ("set -euo pipefail", f"work={work}", end, "sleep 0 & wait $!", child, last)
    assert subprocess.run(["bash", "-c", "\n".join(lines)], timeout=30, check=False).returncode == status
    assert not work.exists()


def test_an_unknown_option() -> None:
    """An unknown option is refused before anything is installed."""
    done = subprocess.run([SCRIPT, "--without-real"], capture_output=True, text=True, timeout=30, check=False)

    assert (2, "") == (done.returncode, done.stdout)
    assert "unknown option '--without-real'; the only option is --without-real-servers" in done.stderr
