"""Rerun of a few failed tests in CI, alone. Run as `python -m tests.again`.

A test that passes in the rerun depended on the load of the machine. That is a bug of the test, so the run ends by naming
it; but it does not block other work. Tests of faults are never rerun: a guarantee that is broken once in a thousand runs
is broken.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path, PurePath

LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")
# How the last run ended, in pytest's own numbers; written by tests/conftest.py.
ENDED = Path(".pytest_cache/v/onceward/ended")
_SOME_FAILED = 1
_GROUP = re.compile(r"@[^\]@]+$")
# More than this is not an accident.
AGAIN_MAX = 3
# Here a failure is a finding, however seldom it is seen.
PROMISES = frozenset(
    {
        "contract",
        "db",
        "dispatch",
        "events",
        "faults",
        "http",
        "ledger",
        "simulation",
        "store",
        "tasks",
        "tools",
        "turns",
    }
)


def refusal(ended: int | None, failed: Sequence[str]) -> str | None:
    """Return why these tests are not run again, or None if they may be."""
    if ended != _SOME_FAILED or not failed:
        return "what is wrong came before the tests, or the run broke off"
    if len(failed) > AGAIN_MAX:
        return f"{len(failed)} tests failed: at most {AGAIN_MAX} are run again"
    broken = [test for test in failed if not PROMISES.isdisjoint(PurePath(test.partition("::")[0]).parts)]
    if broken:
        return f"a promise was broken, which is a finding and no accident: {', '.join(broken)}"
    return None


def main() -> int:
    ended, told = (json.loads(file.read_text("utf-8")) if file.exists() else None for file in (ENDED, LAST_FAILED))
    # Without the group that xdist appends.
    failed = sorted({_GROUP.sub("", test) for test in told or ()})
    why_not = refusal(ended, failed)
    if why_not is not None:
        print(f"onceward: not run again: {why_not}")
        return 1
    print(f"onceward: {len(failed)} failed, run once more, alone", flush=True)
    ended = subprocess.run([sys.executable, "-m", "pytest", "-v", *failed], check=False).returncode
    for test in failed if ended == 0 else ():
        print(f"onceward: HANGS ON LUCK, find out why: {test}")
    return ended


if __name__ == "__main__":
    sys.exit(main())
