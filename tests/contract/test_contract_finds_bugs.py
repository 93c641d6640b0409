"""The contract can fail: it finds every bug that is planted in a store, and none in a store without."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.contract.broken_stores import BUGS

HERE = Path(__file__).parent


def test_the_contract_finds_every_planted_bug() -> None:
    options = ["-p", "tests.contract.broken_stores", "-p", "no:xdist", "-p", "no:cacheprovider", "-q", "--tb=no", "-rf"]
    # Not measured: what the contract's own tests reach is measured where they run on real stores.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", HERE / "broken_stores.py", *options],
        cwd=HERE.parent.parent,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )

    found = set(re.findall(r"^FAILED .*\[(?:.*-)?(\w+)\]", done.stdout, re.MULTILINE))
    assert found == {bug.__name__ for bug in BUGS}, done.stdout[-2000:] + done.stderr[-2000:]
