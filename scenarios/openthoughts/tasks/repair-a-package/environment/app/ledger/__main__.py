"""python3 -m ledger FILE [ACCOUNT]"""

import sys

from ledger import read


def main(file, account=None):
    accounts = read(open(file))
    if account is None:
        for each in sorted(accounts.values(), key=lambda each: str(each.balance()), reverse=True):
            print(each.name, each.balance())
    elif account in accounts:
        for day, amount, text in accounts[account].entries:
            print(day, amount, text)
    else:
        print(f"there is no account {account}")


main(*sys.argv[1:])
