"""The library half on a system that is not Linux: without forks, /proc, file locks and POSIX signals."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parent / "without_posix.py"


def test_ledger_middleware_client_and_tools_work_without_posix(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, PROGRAM, tmp_path], capture_output=True, text=True, check=False, cwd=tmp_path, timeout=60
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
