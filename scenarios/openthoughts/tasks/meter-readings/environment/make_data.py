"""Writes the readings of meters. They are the same every time."""

from __future__ import annotations

import random
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

START, DAYS = datetime(2026, 2, 25, 3, tzinfo=timezone.utc), 39
OFFSETS = (timezone.utc, timezone(timedelta(hours=1)), timezone(timedelta(hours=2)), timezone(timedelta(hours=-5)))
#: meter -> building, factor, digits, units it uses in an hour, what it shows first, day on which it is exchanged
METERS = {
    "A-01": ("A", 1.0, 5, 1.9, 4210.0, None),
    "A-02": ("A", 0.1, 5, 31.0, 88000.0, 12),
    "A-03": ("A", 1.0, 5, 2.7, 99100.0, None),
    "B-01": ("B", 1.0, 5, 2.3, 12345.6, None),
    "B-02": ("B", 1.0, 5, 3.1, 98600.0, None),
    "B-03": ("B", 0.1, 5, 42.0, 70000.0, None),
    "B-04": ("B", 10.0, 4, 0.8, 2200.0, 17),
    "B-05": ("B", 1.0, 6, 5.5, 999_800.0, 24),
    "B-06": ("B", 0.001, 5, 950.0, 15.0, None),
}


def written(chance: random.Random, when: datetime) -> str:
    return when.astimezone(chance.choice(OFFSETS)).isoformat()


def main(folder: Path) -> None:
    chance = random.Random(311)
    folder.mkdir(parents=True)
    readings, exchanges = [], []
    for meter, (_, _, digits, use, value, exchanged) in METERS.items():
        when, size = START + timedelta(minutes=chance.randrange(300)), 10**digits
        while when < START + timedelta(days=DAYS):
            step = timedelta(minutes=chance.randrange(180, 1100))
            if exchanged is not None and when < START + timedelta(days=exchanged) <= when + step:
                step = START + timedelta(days=exchanged) - when
            value = (value + use * chance.uniform(0.3, 1.9) * step / timedelta(hours=1)) % size
            when += step
            shown = round(value, 2)
            if exchanged is not None and when == START + timedelta(days=exchanged):
                value = round(chance.uniform(0, 50), 2)
                exchanges.append(f"{meter},{written(chance, when)},{shown:.2f},{value:.2f}")
                continue
            kind = chance.random()
            if kind < 0.05:
                readings.append((when, f"{meter},{written(chance, when)},{(shown + chance.uniform(50, 900)) % size:.2f},E"))
                continue
            if kind < 0.13:
                readings.append((when, f"{meter},{written(chance, when)},{(shown * 1.07 + 3) % size:.2f},R"))
                readings.append((when, f"{meter},{written(chance, when)},{shown:.2f},C"))
            else:
                readings.extend([(when, f"{meter},{written(chance, when)},{shown:.2f},R")] * chance.choice((1, 1, 1, 2)))
    chance.shuffle(readings)
    table = [f"{meter},{building},{factor:g},{digits}" for meter, (building, factor, digits, *_) in METERS.items()]
    for name, head, lines in (
        ("meters.csv", "meter,building,factor,digits", table),
        ("readings.csv", "meter,time,value,quality", [line for _, line in readings]),
        ("exchanges.csv", "meter,time,final,initial", exchanges),
    ):
        (folder / name).write_text("\n".join([head, *lines]) + "\n")


main(Path(sys.argv[1]))
