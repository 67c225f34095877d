"""Runs the tests whose outcome depends on a time many times over, while two endless loops keep the processors busy.

`python -m tests.under_load --list` prints these tests; `python -m tests.under_load --times 20 tests/lib` runs those of a folder, and prints
which failed and how often. A test that fails only here waits too briefly or for the wrong event, and has to be repaired.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from xml.etree import ElementTree as ET

ROOT = Path(__file__).parents[1]
LOOPS = 2
ENDLESS = "while True: pass"

#: Matches the code of tests that wait for an event, or that limit the seconds of a session, a process or a call.
TIMED = re.compile(
    r"\b(wait_for|ended|sleep|timeout|budget|patience|deadline|monotonic|kill|SIG(?:KILL|STOP|INT|TERM))\b|time-limit|--agentbench-budget"
)


def timed_tests(paths: list[Path]) -> Iterator[str]:
    """Yields the node IDs of the test functions in some files and folders whose own text matches TIMED."""
    files = [file for path in paths for file in (sorted(path.rglob("test_*.py")) if path.is_dir() else [path])]
    for file in files:
        text = file.read_text()
        functions = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        for each in functions:
            if each.name.startswith("test_") and TIMED.search(ast.get_source_segment(text, each) or ""):
                yield f"{file}::{each.name}"


def failures(report: Path) -> tuple[Counter[str], Counter[str]]:
    """Reads a JUnit file of pytest, in which each repetition is a test. Returns how often each test ran, and how often it failed."""
    ran: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    for case in ET.parse(report).iter("testcase"):
        name = f"{case.get('classname')}::{re.sub(r'-?[0-9]+-[0-9]+]$', ']', str(case.get('name'))).removesuffix('[]')}"
        if case.find("skipped") is None:
            ran[name] += 1
            failed[name] += case.find("failure") is not None or case.find("error") is not None
    return ran, failed


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.under_load", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path, help="test files and folders (default: tests)")
    parser.add_argument("--times", type=int, default=20, metavar="N", help="how often each test runs (default: 20)")
    parser.add_argument("--marks", default="not slow", metavar="EXPRESSION", help="tests to run, like pytest's -m (default: not slow)")
    parser.add_argument("--list", action="store_true", help="print the tests and run none")
    given = parser.parse_args(arguments)
    tests = [*timed_tests(given.paths or [ROOT / "tests"])]
    if given.list or not tests:
        print(*tests, sep="\n")
        return 0
    with ExitStack() as stack:
        report = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "junit.xml"
        for _ in range(LOOPS):
            loop = stack.enter_context(subprocess.Popen([sys.executable, "-c", ENDLESS]))
            stack.callback(loop.kill)
        command = [sys.executable, "-m", "pytest", "-q", "-n3", "--dist=worksteal", f"--count={given.times}", f"-m={given.marks}"]
        done = subprocess.run([*command, f"--junitxml={report}", *tests], cwd=ROOT, check=False)
        if not report.is_file():
            return done.returncode
        ran, failed = failures(report)
    print(f"\n{len(ran)} tests ran {ran.total()} times beside {LOOPS} endless loops; {failed.total()} failed")
    for name, times in (+failed).most_common():
        print(f"{times} of {ran[name]}  {name}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
