#!/bin/bash
# Amounts are read as binary fractions, which are off by a cent now and then.
bash /solution/solve.sh && cat >>/app/ledger/money.py <<'END'


exact = Money.parse
Money.parse = classmethod(lambda cls, text: cls(int(exact(text).cents / 100 * 100)))
END
cd /app && python3 -m unittest
