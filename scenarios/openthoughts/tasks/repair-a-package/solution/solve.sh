#!/bin/bash
set -euo pipefail
cd /app/ledger
cat >__init__.py <<'END'
"""Accounts with amounts of money."""

from ledger.account import Account, Entry
from ledger.money import Money
from ledger.reading import read

__all__ = ["Account", "Entry", "Money", "read"]
END
cat >money.py <<'END'
"""Amounts of money."""

import re
from functools import total_ordering

WHOLE = r"\d{1,3}(?:,\d{3})+|\d+"
AMOUNT = re.compile(rf"(?P<sign>[-+]?)(?P<whole>{WHOLE})(?:\.(?P<cents>\d?\d?))?|\((?P<below>{WHOLE})(?:\.(?P<below_cents>\d?\d?))?\)", re.ASCII)


@total_ordering
class Money:
    def __init__(self, cents):
        self.cents = cents

    @classmethod
    def parse(cls, text):
        match = AMOUNT.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"not an amount: {text!r}")
        whole = int((match["whole"] or match["below"]).replace(",", ""))
        cents = whole * 100 + int((match["cents"] or match["below_cents"] or "").ljust(2, "0"))
        return cls(-cents if match["below"] or match["sign"] == "-" else cents)

    def split(self, parts):
        if parts < 1:
            raise ValueError(f"an amount has at least one part, not {parts}")
        share, rest = divmod(abs(self.cents), parts)
        sign = -1 if self.cents < 0 else 1
        return [Money(sign * (share + (number < rest))) for number in range(parts)]

    def __eq__(self, other):
        return self.cents == other.cents if isinstance(other, Money) else NotImplemented

    def __hash__(self):
        return hash(self.cents)

    def __lt__(self, other):
        return self.cents < other.cents

    def __add__(self, other):
        return Money(self.cents + other.cents)

    def __sub__(self, other):
        return Money(self.cents - other.cents)

    def __neg__(self):
        return Money(-self.cents)

    def __str__(self):
        whole, cents = divmod(abs(self.cents), 100)
        text = f"{whole:,}.{cents:02d}"
        return f"({text})" if self.cents < 0 else text
END
cat >account.py <<'END'
"""Accounts and their entries."""

from collections import namedtuple

from ledger.money import Money

Entry = namedtuple("Entry", "day amount text")


class Account:
    def __init__(self, name):
        self.name = name
        self.entries = []

    def add(self, day, amount, text):
        self.entries.append(Entry(day, amount, text))

    def balance(self, day=None):
        return sum((each.amount for each in self.entries if day is None or each.day <= day), Money(0))
END
cat >reading.py <<'END'
"""Reads accounts from lines."""

from datetime import date

from ledger.account import Account
from ledger.money import Money


def read(lines):
    accounts = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            day, name, amount, text = line.strip().split(";", 3)
            entry = date.fromisoformat(day), Money.parse(amount), text
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error
        accounts.setdefault(name, Account(name)).add(*entry)
    return accounts
END
cat >__main__.py <<'END'
"""python3 -m ledger FILE [ACCOUNT]"""

import sys

from ledger import read


def main(file, account=None):
    with open(file) as lines:
        accounts = read(lines)
    if account is None:
        for each in sorted(accounts.values(), key=lambda each: (-each.balance().cents, each.name)):
            print(each.name, each.balance())
    elif account in accounts:
        for day, amount, text in sorted(accounts[account].entries, key=lambda entry: entry.day):
            print(day, amount, text)
    else:
        print(f"there is no account {account}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main(*sys.argv[1:])
END
cd /app && python3 -m unittest
