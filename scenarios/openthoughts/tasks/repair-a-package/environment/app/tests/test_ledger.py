import datetime
import unittest

from ledger import Account, Money, read


class TestMoney(unittest.TestCase):
    def test_text(self):
        self.assertEqual("1,234.50", str(Money(123450)))
        self.assertEqual("(12.00)", str(Money(-1200)))

    def test_parse(self):
        self.assertEqual(Money(123450), Money.parse("1,234.50"))
        self.assertEqual(Money(-1200), Money.parse("(12.00)"))

    def test_split(self):
        self.assertEqual([Money(334), Money(333), Money(333)], Money(1000).split(3))


class TestAccount(unittest.TestCase):
    def test_balance(self):
        account = Account("rent")
        account.add(datetime.date(2026, 1, 1), Money(100), "January")
        account.add(datetime.date(2026, 2, 1), Money(100), "February")
        self.assertEqual(Money(200), account.balance())

    def test_read(self):
        accounts = read(["# day;account;amount;text", "2026-01-01;rent;800.00;January"])
        self.assertEqual(Money(80000), accounts["rent"].balance())
