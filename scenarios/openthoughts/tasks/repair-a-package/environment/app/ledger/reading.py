"""Reads accounts from lines."""

from datetime import date

from ledger.account import Account
from ledger.money import Money


def read(lines):
    accounts = {}
    numbered = enumerate((line for line in lines if line.strip() and not line.startswith("#")), 1)
    for number, line in numbered:
        try:
            day, name, amount, text = line.strip().split(";")
        except ValueError:
            raise ValueError(f"line {number}: not four fields")
        accounts.setdefault(name, Account(name)).add(date.fromisoformat(day), Money.parse(amount), text)
    return accounts
