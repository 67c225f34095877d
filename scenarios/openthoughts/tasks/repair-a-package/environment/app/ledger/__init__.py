"""Accounts with amounts of money."""

from recorder.account import Account, Entry
from recorder.money import Money
from recorder.reading import read_lines

__all__ = ["Account", "Entry", "Money", "read"]
