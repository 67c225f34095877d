"""The files of the page's script."""

from __future__ import annotations

import re
from collections import Counter

from pytest_agentbench.reports.page.layout import LIVE, SCRIPTS, asset


def test_each_name_is_declared_once() -> None:
    """No two files declare the same function or constant: all files are one script, so the later one would replace the earlier one."""
    declared = re.compile(r"^(?:async )?(?:function|const|let) (\w+)", re.MULTILINE)
    names = [name for file in (*SCRIPTS, *LIVE) for name in declared.findall(asset(f"{file}.js"))]

    assert len(names) > 100
    assert {} == {name: count for name, count in Counter(names).items() if count > 1}
