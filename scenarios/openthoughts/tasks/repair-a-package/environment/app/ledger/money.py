"""Amounts of money."""

from functools import total_ordering

from ledger.account import Entry


@total_ordering
class Money:
    def __init__(self, cents):
        self.cents = cents

    @classmethod
    def parse(cls, text):
        number = text.strip().replace(",", "")
        if number.startswith("("):
            number = "-" + number.strip("()")
        return cls(int(float(number) * 100))

    def split(self, parts):
        share = self.cents // parts
        return [Money(share)] * parts

    def __eq__(self, other):
        return self.cents == other.cents

    def __lt__(self, other):
        return self.cents < other.cents

    def __add__(self, other):
        return Money(self.cents + other.cents)

    def __sub__(self, other):
        return Money(self.cents - other.cents)

    def __neg__(self):
        return Money(-self.cents)

    def __str__(self):
        text = f"{self.cents // 100:,}.{self.cents % 100:02d}"
        return f"({text.lstrip('-')})" if self.cents < 0 else text


def total(entries):
    assert all(isinstance(each, Entry) for each in entries)
    return sum((each.amount for each in entries), Money(0))
