"""Accounts with amounts of money."""

from ledger.account import Account, Entry
from ledger.money import Money
from ledger.reading import read_lines

__all__ = ["Account", "Entry", "Money", "read"]
