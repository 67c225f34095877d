"""Parsing of command blocks in an answer."""

from __future__ import annotations

import pytest

from pytest_agentbench.agents.terminal import FencedAnswer, read_fenced_answer


@pytest.mark.parametrize(
    ("text", "commands"),
    [
        ("```bash\nls -la\n```", ("ls -la",)),
        ("I look.\n\n  ```BASH \nls\n  ```\nand wait", ("ls",)),
        ("```sh\ncd /tmp\nls\n```\n```shell\npwd\n```", ("cd /tmp\nls", "pwd")),
        ("```bash\r\nls\r\n```\r\n", ("ls",)),
        ("````bash\ncat > README.md <<'X'\n```python\nprint()\n```\nX\n````", ("cat > README.md <<'X'\n```python\nprint()\n```\nX",)),
        ("<think>\n```bash\nrm -rf /\n```\n</think>\n```bash\nls\n```", ("ls",)),
        ("```python\nprint()\n```", ()),
        ("```\nls\n```", ()),
        ("```bash\n\n```", ()),
        ("```bash\nls", ()),
        ("use `ls`", ()),
    ],
)
def test_commands(text: str, commands: tuple[str, ...]) -> None:
    """Closed shell blocks are commands, in their order. Other blocks, and those inside thoughts, are not."""
    assert FencedAnswer(commands, done=False) == read_fenced_answer(text)


@pytest.mark.parametrize(
    ("text", "done"),
    [
        ("TASK_COMPLETE", True),
        ("All is well.\n**TASK_COMPLETE**\n", True),
        ("> `TASK_COMPLETE`.\r\n", True),
        ("Soon I say TASK_COMPLETE", False),
        ("<think>TASK_COMPLETE</think>\nnot yet", False),
        ("<think>\nTASK_COMPLETE\n</think>\nnot yet", False),
        ("done", False),
        ("", False),
    ],
)
def test_done(text: str, done: bool) -> None:
    """The end of the task is a line of its own."""
    assert done == read_fenced_answer(text).done


def test_a_command_comes_first() -> None:
    """An answer with both a command and the end is not done, because the model has not seen the output."""
    assert FencedAnswer(("ls",), done=False) == read_fenced_answer("```bash\nls\n```\nTASK_COMPLETE")
