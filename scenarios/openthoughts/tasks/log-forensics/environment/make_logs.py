"""Writes the logs of a web server on which somebody guessed a password. They are the same every time."""

from __future__ import annotations

import gzip
import random
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

SUMMER = datetime(2026, 3, 29, 1, tzinfo=timezone.utc)  # when clocks in Berlin go from +01:00 to +02:00
START = datetime(2026, 3, 28, 5, 25, tzinfo=timezone.utc)
ROTATED = (datetime(2026, 3, 29, 4, 25, tzinfo=timezone.utc), datetime(2026, 3, 30, 4, 25, tzinfo=timezone.utc))

INTRUDER, BOT, MIRROR = "203.0.113.77", "192.0.2.55", "198.51.100.9"
COLLEAGUES = {"alice": "198.51.100.21", "bob": "198.51.100.34", "carol": "203.0.113.78", "deploy": "198.51.100.40"}
PAGES = ("/", "/about", "/prices", "/assets/app.js", "/assets/style.css", "/exports/", "/login")
BROWSER = "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0"

Line = tuple[datetime, str]


def local(when: datetime) -> datetime:
    return when.astimezone(timezone(timedelta(hours=2 if when >= SUMMER else 1)))


def attempt(chance: random.Random, when: datetime, account: str, address: str, ok: bool) -> Line:
    unknown = "" if ok or account in (*COLLEAGUES, "backup", "root") else "invalid user "
    said = f"{'Accepted' if ok else 'Failed'} password for {unknown}{account} from {address} port {chance.randrange(30000, 61000)} ssh2"
    return when, f"{local(when).isoformat()} web sshd[{chance.randrange(1000, 32000)}]: {said}"


def auth(chance: random.Random) -> list[Line]:
    lines = []
    for hour in range(72):
        account = chance.choice([*COLLEAGUES])
        when = START + timedelta(hours=hour, seconds=chance.randrange(3000))
        for _ in range(chance.choice((0, 0, 0, 1, 2, 3))):
            lines.append(attempt(chance, when, account, COLLEAGUES[account], False))
            when += timedelta(seconds=chance.randrange(4, 15))
        lines.append(attempt(chance, when, account, COLLEAGUES[account], True))
    for _ in range(900):
        when = START + timedelta(seconds=chance.randrange(72 * 3600))
        lines.append(attempt(chance, when, chance.choice(("root", "admin", "oracle", "test", "backup")), BOT, False))
    when = datetime(2026, 3, 29, 0, 51, 3, tzinfo=timezone.utc)
    for _ in range(42):
        lines.append(attempt(chance, when, "backup", INTRUDER, False))
        when += timedelta(seconds=chance.randrange(9, 21))
    lines.append(attempt(chance, datetime(2026, 3, 29, 1, 4, 11, tzinfo=timezone.utc), "backup", INTRUDER, True))
    lines.append(attempt(chance, datetime(2026, 3, 30, 19, 40, 2, tzinfo=timezone.utc), "backup", INTRUDER, True))
    return lines


def answer(when: datetime, address: str, path: str, status: int, size: int, agent: str = BROWSER) -> Line:
    return when, f'{address} - - [{local(when):%d/%b/%Y:%H:%M:%S %z}] "GET {path} HTTP/1.1" {status} {size} "-" "{agent}"'


def access(chance: random.Random) -> list[Line]:
    lines = []
    for _ in range(4000):
        when = START + timedelta(seconds=chance.randrange(72 * 3600))
        address = f"100.64.{chance.randrange(8)}.{chance.randrange(1, 250)}"
        lines.append(answer(when, address, chance.choice(PAGES), chance.choice((200, 200, 200, 304, 404)), chance.randrange(200, 60000)))
    for day in range(3):
        when = START + timedelta(days=day, hours=2)
        lines.append(answer(when, MIRROR, "/exports/full-backup.tar", 200, 8_123_456_789, "rsync-over-http/2"))
    when = datetime(2026, 3, 29, 1, 31, 40, tzinfo=timezone.utc)
    for part in range(120):
        path, size = ("/exports/customers-2026.csv.gz", 1_048_576) if part % 3 else ("/exports/prices.csv", chance.randrange(9000, 90000))
        status = 206 if part % 3 else 200
        if part % 17 == 5:
            status, size = chance.choice(((403, 153), (416, 9_999_999), (499, 524_288)))
        if part == 119:
            size = 377_001
        lines.append(answer(when, INTRUDER, path, status, size, "curl/7.88.1"))
        when += timedelta(seconds=chance.randrange(700, 2000))
    return lines


def main(folder: Path) -> None:
    chance = random.Random(1801)
    folder.mkdir(parents=True)
    (folder / "auth.log").write_text("".join(f"{line}\n" for _, line in sorted(auth(chance))))
    lines = sorted(access(chance))
    parts = {"access.log.2.gz": [], "access.log.1": [], "access.log": []}
    for when, line in lines:
        parts[[*parts][sum(when >= rotation for rotation in ROTATED)]].append(f"{line}\n")
    (folder / "access.log.2.gz").write_bytes(gzip.compress("".join(parts.pop("access.log.2.gz")).encode(), mtime=0))
    for name, text in parts.items():
        (folder / name).write_text("".join(text))


main(Path(sys.argv[1]))
