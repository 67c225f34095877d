"""Accounts and their entries."""

from collections import namedtuple

from ledger.money import Money, total

Entry = namedtuple("Entry", "day amount text")


class Account:
    def __init__(self, name, entries=[]):
        self.name = name
        self.entries = entries

    def add(self, day, amount, text):
        self.entries.append(Entry(day, amount, text))

    def balance(self, day=None):
        return total([each for each in self.entries if day is None or each.day < day])
