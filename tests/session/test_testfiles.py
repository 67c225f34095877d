"""What the text of a test file tells of its tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_agentbench.session.testfiles import only_reads

READS = {
    "a rollout": "def test_a(rollout, thresholds): assert rollout.score('tsq') >= thresholds['tsq']",
    "with modules to look at it": "import re, json\nfrom pytest_agentbench import Rollout\ndef test_a(rollout): re.I",
    "modules that only types need": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import openai\ndef test_a(scenario): pass",
    "parameters": "import pytest\n@pytest.mark.parametrize('x, y', [])\n@pytest.mark.parametrize(['z'], [])\ndef test_a(x, y, z): ...",
    "a default": "def test_a(rollout, least=0.5): ...",
    "a class": "class TestA:\n    def test_a(self, rollout): ...",
    "a fixture of its own": "import pytest\n@pytest.fixture\ndef answer(rollout): return rollout.answer\ndef test_a(answer): ...",
    "a fixture in front of ours": "import pytest\n@pytest.fixture\ndef rollout(rollout): return rollout\ndef test_a(rollout): ...",
    "a fixture by another name": "import pytest\n@pytest.fixture(name='text')\ndef _text(rollout): ...\ndef test_a(text): ...",
    "a fixture that no test asks for": "import pytest\n@pytest.fixture(scope='session')\ndef model(): ...\ndef test_a(rollout): ...",
    "a helper": "def close(a, b, model): return a == b\ndef test_a(rollout): ...",
}

DOES_MORE = {
    "calls a model": "def test_a(rollout, llm): ...",
    "asks the backend": "def test_a(backend): ...",
    "asks for something unknown": "def test_a(rollout, benchmark): ...",
    "asks by name": "def test_a(request): request.getfixturevalue('llm')",
    "asks by a mark": "import pytest\n@pytest.mark.usefixtures('llm')\ndef test_a(rollout): ...",
    "asks by the module's mark": "import pytest\npytestmark = [pytest.mark.usefixtures('tmp_path', 'llm')]\ndef test_a(rollout): ...",
    "asks by a fixture": "import pytest\n@pytest.fixture\ndef judge(llm): ...\ndef test_a(rollout, judge): ...",
    "asks by keyword": "def test_a(*, rollout, llm): ...",
    "a session's fixture": "import pytest\n@pytest.fixture(scope='session')\ndef model(): ...\ndef test_a(rollout, model): ...",
    "a fixture of some scope": "from pytest import fixture\n@fixture(scope=SCOPE)\ndef model(): ...\ndef test_a(model): ...",
    "a fixture for all": "import pytest\n@pytest.fixture(autouse=True)\ndef model(llm): ...\ndef test_a(rollout): ...",
    "waits": "import time\ndef test_a(rollout): time.sleep(1)",
    "calls a model by itself": "def test_a(rollout):\n    from openai import OpenAI",
    "has helpers elsewhere": "from .helpers import judged\ndef test_a(rollout): judged(rollout)",
    "is async": "async def test_a(rollout): ...",
    "inherits": "class TestA(Base):\n    def test_a(self, rollout): ...",
    "is set up": "class TestA:\n    def setup_method(self): ...\n    def test_a(self, rollout): ...",
    "is no Python": "def test_a(rollout:",
}


@pytest.mark.parametrize("text", READS.values(), ids=READS)
def test_what_only_reads(tmp_path: Path, text: str) -> None:
    """One worker is enough for such tests."""
    assert only_reads(written(tmp_path, "test_it.py", text), [], ["test"])


@pytest.mark.parametrize("text", DOES_MORE.values(), ids=DOES_MORE)
def test_what_may_do_more(tmp_path: Path, text: str) -> None:
    """Such tests keep their workers; so does a file that cannot be read."""
    assert not only_reads(written(tmp_path, "test_it.py", text), [], ["test"])
    assert not only_reads(tmp_path / "absent.py", [], ["test"])


CONFTESTS = {
    "import os\nimport pytest\ndef pytest_configure(config): os.getcwd()\n@pytest.fixture\ndef slow(llm): ...": True,
    "import pytest\n@pytest.fixture\ndef answer(rollout): return rollout.answer": True,
    "import pytest\n@pytest.fixture(autouse=True, scope='session')\ndef server(): ...": False,
    "import pytest, time\n@pytest.fixture\ndef answer(rollout): time.sleep(1)": False,
    "def pytest_runtest_call(item): ...": False,
    "def pytest_generate_tests(metafunc): ...": False,
}


@pytest.mark.parametrize(("text", "reads"), CONFTESTS.items(), ids=map(str, range(len(CONFTESTS))))
def test_a_conftest(tmp_path: Path, text: str, reads: bool) -> None:
    """Fixtures of a conftest.py count where a test uses them, hooks where they act around tests."""
    asks = "answer" if "answer" in text else "rollout"
    file, conftest = written(tmp_path, "test_it.py", f"def test_a({asks}): ..."), written(tmp_path, "conftest.py", text)

    assert reads is only_reads(file, [conftest], ["test"])


def test_names_of_tests(tmp_path: Path) -> None:
    """What a test is, the ini file's python_functions says."""
    file = written(tmp_path, "test_it.py", "def check_a(llm): ...\ndef helper(model): ...")

    assert only_reads(file, [], ["test"])
    assert not only_reads(file, [], ["check_*"])


def written(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file
