#!/bin/bash
set -euo pipefail
cat >/root/use.py <<'END'
import csv
from collections import defaultdict
from datetime import datetime, timezone

BEGIN = datetime.fromisoformat("2026-03-01T00:00:00+01:00")
END = datetime.fromisoformat("2026-04-01T00:00:00+02:00")


def rows(name):
    with open(f"/data/{name}.csv") as file:
        yield from csv.DictReader(file)


def moment(text):
    return datetime.fromisoformat(text).astimezone(timezone.utc)


shown = defaultdict(dict)  # meter -> moment -> what it showed
for row in sorted(rows("readings"), key=lambda row: row["quality"] == "C"):
    if row["quality"] != "E":
        shown[row["meter"]][moment(row["time"])] = float(row["value"])

exchanged = defaultdict(dict)  # meter -> moment -> (final, initial)
for row in rows("exchanges"):
    exchanged[row["meter"]][moment(row["time"])] = float(row["final"]), float(row["initial"])

total = 0.0
for meter in rows("meters"):
    if meter["building"] != "B":
        continue
    name, size = meter["meter"], 10 ** int(meter["digits"])
    before = {when: (value, value) for when, value in shown[name].items()} | exchanged[name]
    moments = sorted(before)
    for one, two in zip(moments, moments[1:]):
        used = (before[two][0] - before[one][1]) % size
        inside = max((min(two, END) - max(one, BEGIN)).total_seconds(), 0)
        total += used * inside / (two - one).total_seconds() * float(meter["factor"])
print(f"{total:.1f}")
END
python3 /root/use.py >/root/answer.txt
