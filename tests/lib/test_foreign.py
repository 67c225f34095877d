"""Foreign text is harmless on terminals and in logs."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_agentbench.lib.foreign import ForeignOutput, block, one_line, without_styles

HIDDEN = [*range(0x20), *range(0x7F, 0xA0), 0x61C, 0x200E, 0x200F, 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A), 0xD800]
TEXT = st.text(st.characters() | st.sampled_from([*map(chr, HIDDEN), *":#[]m\\;"]), max_size=40) | st.from_regex(
    r"[ \n\t]{0,3}(::[a-z-]{1,5}::|##\w{0,4}\[|\x1b\[[0-9;]{0,4}m){1,3}"
)


@pytest.mark.parametrize("code", sorted({*HIDDEN} - {0x09, 0x0A}))
def test_invisible_characters_become_escapes(code: int) -> None:
    """Control characters, direction marks and lone surrogates become escapes. Tab and newline may stay."""
    escape = "\\r" if code == 0x0D else f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"

    assert f"a{escape}\tb\nc" == block(f"a{chr(code)}\tb\nc")
    assert f"a{escape}\tb\\nc" == one_line(f"a{chr(code)}\tb\nc")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("::error::x", "\\::error::x"),
        ("a\n \u00a0\t::stop-commands::x", "a\n \u00a0\t\\::stop-commands::x"),
        ("a ::error::b", "a \\::error::b"),
        ("std::vector", "std::vector"),
        ("a ##[error]b ##vso[task.setvariable]", "a #\\#[error]b #\\#vso[task.setvariable]"),
        ("###[x", "##\\#[x"),
        ("## a title [1]", "## a title [1]"),
    ],
)
def test_commands_of_a_log(text: str, shown: str) -> None:
    """Commands of GitHub at the start of a line, and those of others anywhere, get a backslash. Ordinary text stays."""
    assert shown == block(text)


@given(TEXT)
def test_nothing_harmful_is_left(text: str) -> None:
    """The result never contains hidden characters or commands, and a second pass does not change it."""
    for clean in (block(text), one_line(text)):
        assert not [letter for letter in clean if ord(letter) in HIDDEN and letter not in "\t\n"]
        assert not [line for line in clean.split("\n") if line.strip().startswith("::")]
        assert not re.search(r"##\w*\[", clean)
        assert clean == block(clean)
    assert "\n" not in one_line(text)


@given(st.text(st.characters(codec="ascii", exclude_categories=["Cc"], exclude_characters=":#")))
def test_ordinary_text_stays(text: str) -> None:
    """ASCII text without control characters, `:` and `#` is not changed."""
    assert text == one_line(text)


def test_colours_of_pytest() -> None:
    """Colours of pytest may stay. Sequences that hide text or move the cursor may not."""
    text = "\x1b[1m\x1b[31mE  \x1b[39;49;00m\x1b[0m \x1b[8mhidden \x1b[41m \x1b[2J \x1b]0;title\x07"

    assert "\x1b[1m\x1b[31mE  \x1b[39;49;00m\x1b[0m \\x1b[8mhidden \\x1b[41m \\x1b[2J \\x1b]0;title\\x07" == block(text, colours=True)


def test_styles_are_removed() -> None:
    """Colours and other styles of a program's log are left out, and other sequences stay."""
    assert "WARN smg\x1b[2K ready" == without_styles("\x1b[33mWARN\x1b[0m \x1b[2;3msmg\x1b[m\x1b[2K ready")


def test_a_stream() -> None:
    """Printed text is escaped by whole lines, so that commands cannot be assembled from pieces. Drawn text is not escaped."""
    stream = io.StringIO()
    output = ForeignOutput(stream)
    for piece in (":", ":error::a\n", "b", "\x1b", "\n", ":"):
        output.write(piece)
    output.flush()
    output.draw("\r\x1b[2K")

    assert "\\::error::a\nb\\x1b\n:\r\x1b[2K" == stream.getvalue()
    assert not output.isatty()


def test_only_commands_print() -> None:
    """Commands print through the escaping stream. No other code of the package writes to a standard stream."""
    package = Path(__file__).parents[2] / "pytest_agentbench"

    assert [] == [str(file) for file in package.rglob("*.py") if re.search(r"sys\.__std(out|err)__|os\.write\([12],", file.read_text())]
