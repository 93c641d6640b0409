"""Put Onceward and other libraries through the same accidents, and write `bench/comparison.md`.

    python -m bench.battery [LIBRARY …]

Each call is a process. The number of effects is the number of lines in a file that the effect appends to.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer

from bench.battery.call import LEASE_SECONDS, LIBRARIES
from bench.peers.process import ROOT, make_environment

RACERS = 8
CALL_SECONDS_MAX = 40.0
REPORT = ROOT / "bench" / "comparison.md"
# Where each library stores its entries here, if not in SQLite, and the name of its package.
ON_REDIS = ("idemkit", "Powertools", "asgi-idempotency-header")
ON_POSTGRES = ("DBOS",)
PACKAGES = {"Powertools": "aws-lambda-powertools"}
HEADING = """\
# Accidents

One payment under each library. `python -m bench.battery` writes this page; each cell is what it saw. A
payment is a line that the effect appends to a file, so it can be counted. Every call runs in a process of its own. Each
library is set up as its manual says for a payment, with a lease of two seconds where it has one. DBOS uses PostgreSQL;
idemkit, Powertools and asgi-idempotency-header use Redis; the others use SQLite. In the race, each process of DBOS has an
executor id of its own; the others keep the default, so that a new process recovers the work of a killed one. agent-once
makes its keys from all arguments, so another amount is another payment for it.

* **Race**: eight processes make the same call at once.
* **Killed**: the process is killed after the payment, before the library records it. The call is repeated at once, and
  again when the lease is over.
* **Exception**: the payment happens, and then the connection breaks. The call is repeated.
* **Other amount**: the same key, with another amount.
* **Result**: the result cannot be stored (it contains an object that is not JSON). The call is repeated.
* **Decimal**: the result contains a `Decimal`. Is the replay equal to it?

"""


@dataclass(frozen=True, slots=True)
class Bench:
    """One library on an empty store, and the file with its payments."""

    library: str
    python: str
    folder: Path
    store: str

    def start(self, accident: str = "none", key: str = "order-1", amount: int = 10) -> subprocess.Popen[str]:
        command = [self.python, "-m", "bench.battery.call", self.library, self.store, accident, key, str(amount)]
        return subprocess.Popen(
            [*command, str(self.folder / key)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        )

    def call(self, accident: str = "none", key: str = "order-1", amount: int = 10) -> str:
        return answer(self.start(accident, key, amount))

    def payments(self, key: str = "order-1") -> int:
        file = self.folder / key
        return len(file.read_text().splitlines()) if file.exists() else 0


def answer(process: subprocess.Popen[str]) -> str:
    """Return what a call printed: its result, or the class of its error."""
    try:
        output, _ = process.communicate(timeout=CALL_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return "no answer"
    if not output:
        return "killed"
    line = json.loads(output)
    return str(line.get("result") or line["error"])


def paid(count: int) -> str:
    return "1 payment" if count == 1 else f"**{count} payments**"


def race(bench: Bench) -> str:
    running = [bench.start("slow") for _ in range(RACERS)]
    for one in running:
        assert one.stdout is not None
        one.stdout.readline()
    for one in running:
        assert one.stdin is not None
        one.stdin.write("go\n")
        one.stdin.flush()
    answers = [answer(one) for one in running]
    good = answers.count("{'paid': 10}")
    refused = sorted({one for one in answers if one != "{'paid': 10}"})
    results = "1 result" if good == 1 else f"{good} results"
    others = f", {RACERS - good} times `{'`, `'.join(refused)}`" if refused else ""
    return f"{paid(bench.payments())}, {results}{others}"


def killed(bench: Bench) -> str:
    bench.call("kill")
    at_once = bench.call()
    time.sleep(LEASE_SECONDS + 1)
    later = bench.call()
    return f"{paid(bench.payments())}; {said(at_once)}, then {said(later)}"


def raised(bench: Bench) -> str:
    bench.call("raise")
    again = bench.call()
    return f"{paid(bench.payments())}; {said(again)}"


def other_amount(bench: Bench) -> str:
    bench.call(amount=10)
    again = bench.call(amount=99)
    return f"{paid(bench.payments())}; {said(again)}"


def unstorable(bench: Bench) -> str:
    first = bench.call("unstorable")
    again = bench.call()
    return f"{paid(bench.payments())}; {said(first)}, then {said(again)}"


def decimal(bench: Bench) -> str:
    first = bench.call("decimal")
    again = bench.call()
    if bench.payments() > 1 or not first.startswith("{"):
        return f"{paid(bench.payments())}; {said(first)}, then {said(again)}"
    return "equal" if first == again else f"`{again}`"


def said(text: str) -> str:
    return "result" if text.startswith("{") else f"`{text}`"


CASES: dict[str, Callable[[Bench], str]] = {
    "race": race,
    "killed": killed,
    "exception": raised,
    "other amount": other_amount,
    "result": unstorable,
    "decimal": decimal,
}


def run(libraries: Sequence[str]) -> str:
    """Run all cases of these libraries, and return the page."""
    peers = str(make_environment())
    rows: list[str] = []
    with ExitStack() as stack:
        redis = stack.enter_context(RedisServer())
        postgres = stack.enter_context(PostgresServer())
        for library in libraries:
            python = sys.executable if library == "Onceward" else peers
            cells = []
            for number, case in enumerate(CASES.values()):
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="onceward-battery-")))
                store = f"sqlite:///{folder}/store.db"
                if library in ON_REDIS:
                    redis.execute("FLUSHALL")
                    store = redis.url()
                elif library in ON_POSTGRES:
                    store = postgres.create_database()
                cells.append(case(Bench(library, python, folder, store)))
                print(f"battery: {library}: {list(CASES)[number]}: {cells[-1]}", file=sys.stderr, flush=True)
            rows.append(f"| {_title(library, peers)} | {' | '.join(cells)} |")
    heading = [f"| library | {' | '.join(CASES)} |", f"| --- | {' | '.join('---' for _ in CASES)} |"]
    date = datetime.datetime.now(datetime.UTC).date()
    return HEADING + "\n".join([*heading, *rows]) + f"\n\nMeasured on {date}.\n"


def _title(library: str, peers: str) -> str:
    if library == "Onceward":
        return f"**Onceward** {importlib.metadata.version('onceward')}"
    package = PACKAGES.get(library, library)
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    version = subprocess.run([peers, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    return f"{library} {version}"


def main() -> None:
    chosen = sys.argv[1:] or list(LIBRARIES)
    page = run(chosen)
    if chosen == list(LIBRARIES):
        REPORT.write_text(page, "utf-8")
    print(page)


if __name__ == "__main__":
    main()
