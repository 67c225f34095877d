"""Checks whether the package does what its README says. Its code runs in other processes, as a user who cannot write the reward."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, "/tests")
from checks import verify  # noqa: E402

NOBODY = 65534
AS_NOBODY = {"user": NOBODY, "group": NOBODY, "extra_groups": [], "env": {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}, "timeout": 20}
PYTHON = ["/usr/bin/python3", "-B", "-s"]


def outcomes(*codes: str) -> list[list[str]]:
    """Runs pieces of code and returns the outcome of each: ["value", text of the result], or [name of the exception, its text]."""
    driver = Path("/tests/driver.py").read_text()
    asked = "".join(json.dumps(code) + "\n" for code in codes)
    done = subprocess.run([*PYTHON, "-c", driver], input=asked, capture_output=True, text=True, cwd="/", **AS_NOBODY)
    lines = done.stdout.splitlines()
    assert len(lines) == len(codes), f"of {len(codes)} questions {len(lines)} were answered: {done.stderr[-300:]}"
    return [json.loads(line) for line in lines]


def equal(expected: dict[str, str]) -> None:
    """Checks the results of pieces of code. `expected` is code -> text of its result."""
    for (code, value), outcome in zip(expected.items(), outcomes(*(f"result = {code}" for code in expected)), strict=True):
        assert ["value", value] == outcome, f"{code} is {outcome}, should be {value}"


def refused(codes: dict[str, str]) -> None:
    """Checks that pieces of code raise ValueError. `codes` is code -> a part of the error's message."""
    for (code, part), (kind, text) in zip(codes.items(), outcomes(*(f"result = {code}" for code in codes)), strict=True):
        assert kind == "ValueError", f"{code} gives {kind} {text}, should be a ValueError"
        assert part in text, f"the ValueError of {code} says {text!r}, without {part!r}"


def it_can_be_imported() -> None:
    equal({"Money(1).cents": "1", "Account('a').name": "a", "Entry(1, 2, 3).amount": "2"})


def amounts_are_written() -> None:
    equal(
        {
            "str(Money(0))": "0.00",
            "str(Money(5))": "0.05",
            "str(Money(-5))": "(0.05)",
            "str(Money(-150))": "(1.50)",
            "str(Money(123456789))": "1,234,567.89",
            "str(Money(-100000))": "(1,000.00)",
        }
    )


def amounts_are_read() -> None:
    texts = {"0.29": 29, "1.15": 115, "19.99": 1999, "-0.57": -57, "+3": 300, " 4.5 ": 450, "7.": 700, "1234.5": 123450}
    texts |= {"1,234,567.89": 123456789, "(1,000.00)": -100000, "-1,000": -100000, "90071992547409.93": 9007199254740993}
    equal({f"Money.parse({text!r}).cents": str(cents) for text, cents in texts.items()})


def what_is_no_amount_is_refused() -> None:
    texts = ("1,23.00", "12.345", "--5", "(-5)", "", "12,34", "1,234,5", "(5", "5)", "nan", "1e3", "1_000", ",100", "1 000", "0x10")
    refused({f"Money.parse({text!r})": text for text in texts})


def amounts_can_be_counted_with() -> None:
    equal(
        {
            "Money(1) == Money(1), Money(1) == 1, Money(1) != Money(2)": "(True, False, True)",
            "len({Money(1), Money(1), Money(2)})": "2",
            "Money(1) < Money(2) <= Money(2), Money(3) > Money(2)": "(True, True)",
            "(Money(5) + Money(7) - Money(2)).cents, (-Money(5)).cents": "(10, -5)",
        }
    )


def parts_add_up() -> None:
    equal(
        {
            "[each.cents for each in Money(1000).split(3)]": "[334, 333, 333]",
            "[each.cents for each in Money(-1000).split(3)]": "[-334, -333, -333]",
            "[each.cents for each in Money(5).split(4)]": "[2, 1, 1, 1]",
            "[each.cents for each in Money(2).split(5)]": "[1, 1, 0, 0, 0]",
            "[each.cents for each in Money(0).split(2)]": "[0, 0]",
            "[sum(e.cents for e in Money(c).split(p)) == c for c, p in itertools.product(range(-9, 9), (1, 2, 7))].count(False)": "0",
        }
    )
    refused({"Money(5).split(0)": "", "Money(5).split(-1)": ""})


def accounts_share_nothing() -> None:
    (outcome,) = outcomes("a, b = Account('a'), Account('b')\na.add(datetime.date(2026, 1, 1), Money(1), 'x')\nresult = len(b.entries)")
    assert ["value", "0"] == outcome, f"another account has {outcome}"


def balances_are_up_to_a_day() -> None:
    account = "a = Account('a')\nfor day in (1, 2, 3):\n    a.add(datetime.date(2026, 1, day), Money(10 ** day), 'x')\n"
    code = account + "result = [str(a.balance(datetime.date(2026, 1, day))) for day in (1, 2)] + [str(a.balance()), str(Account('b').balance())]"
    (outcome,) = outcomes(code)
    assert ["value", "['0.10', '1.10', '11.10', '0.00']"] == outcome, f"balances are {outcome}"


def lines_are_read() -> None:
    lines = ["# head", "", "2026-01-02;rent;800;a; b;c\n", "2026-01-01;food;(1.50);x"]
    equal(
        {
            f"[*read({lines!r})]": "['rent', 'food']",
            f"read({lines!r})['rent'].entries[0].text": "a; b;c",
            f"[str(each.balance()) for each in read(iter({lines!r})).values()]": "['800.00', '(1.50)']",
        }
    )
    wrong = {"2026-01-01;rent;5": "line 3: ", "2026-13-01;rent;5;x": "line 3: ", "2026-01-01;rent;5.x;y": "line 3: "}
    for line, part in wrong.items():
        code = f"read({['# head', '', line]!r})"
        refused({code: part})
        assert outcomes(f"result = {code}")[0][1].startswith(part), f"the message for {line!r} does not begin with {part!r}"


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PYTHON, "-m", "ledger", *arguments], cwd="/app", capture_output=True, text=True, **AS_NOBODY)


def the_command_prints() -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        folder.chmod(0o755)
        file = folder / "book"
        file.write_text("2026-02-01;b;9;late\n2026-01-01;b;1;one\n2026-01-01;b;-0.5;two\n2026-01-01;c;100;x\n2026-01-01;a;9.5;x\n2026-01-01;d;(3);x\n")
        done = command(str(file))
        assert (0, "c 100.00\na 9.50\nb 9.50\nd (3.00)\n") == (done.returncode, done.stdout), f"it prints {done.stdout!r} {done.stderr[-200:]}"
        done = command(str(file), "b")
        expected = "2026-01-01 1.00 one\n2026-01-01 (0.50) two\n2026-02-01 9.00 late\n"
        assert (0, expected) == (done.returncode, done.stdout), f"of an account it prints {done.stdout!r}"
        done = command(str(file), "nobody")
        lines = len(done.stderr.splitlines())
        assert (2, "", 1) == (done.returncode, done.stdout, lines), f"of no account: exit status {done.returncode}, {lines} lines on stderr"
    finally:
        shutil.rmtree(folder)


os.umask(0o022)
verify(
    it_can_be_imported,
    amounts_are_written,
    amounts_are_read,
    what_is_no_amount_is_refused,
    amounts_can_be_counted_with,
    parts_add_up,
    accounts_share_nothing,
    balances_are_up_to_a_day,
    lines_are_read,
    the_command_prints,
)
