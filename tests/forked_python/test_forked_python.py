"""A forked process behaves as one that `sys.executable` starts."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.forked_python import forked_python
from tests.waiting import until

SAY = "import os, sys; print(__name__, sys.argv, os.getcwd(), os.environ['NAME'], sys.stdin.read()); sys.stderr.write('e')"


def run(python: str, *arguments: str, folder: Path) -> tuple[int, str, str]:
    done = subprocess.run(
        [python, *arguments], cwd=folder, env={"NAME": "ä"}, input="in", capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, "".join(done.stderr.splitlines(keepends=True)[-1:])


@pytest.mark.parametrize(
    "program",
    [
        "import sys; sys.exit(3)",
        "import sys; sys.exit('no')",
        "raise ValueError('no')",
        "import os; os.kill(os.getpid(), 9)",
        "import atexit; atexit.register(print, 'the end')",
        "import threading; threading.Timer(0, print, ['a thread']).start()",
        "import subprocess, sys; print(subprocess.run([sys.executable, '-c', 'exit(7)']).returncode)",
    ],
)
def test_a_program_ends_as_under_python(program: str, tmp_path: Path) -> None:
    assert run(forked_python(), "-c", program, folder=tmp_path) == run(sys.executable, "-c", program, folder=tmp_path)


@pytest.mark.parametrize("arguments", [["-c", SAY], ["package/__main__.py"], ["package"], ["-m", "beside"]])
def test_it_finds_what_python_finds(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    for file in ("beside.py", "package/__main__.py"):
        (tmp_path / file).write_text(f"import other\n{SAY}")
        (tmp_path / file).with_name("other.py").write_text("print(__file__)")

    forked = run(forked_python(), *arguments, "one", folder=tmp_path)

    assert forked == run(sys.executable, *arguments, "one", folder=tmp_path)
    assert forked[0] == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_reaches_it(number: signal.Signals, tmp_path: Path) -> None:
    program = """
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
signal.signal(signal.SIGINT, lambda *_: sys.exit(6))
print(os.getpid(), flush=True)
signal.pause()
"""
    with subprocess.Popen([forked_python(), "-c", program], stdout=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.send_signal(number)
        code = process.wait()

    assert code == {signal.SIGINT: 6, signal.SIGTERM: 5, signal.SIGKILL: -9}[number]
    until(lambda: not Path(f"/proc/{pid}").exists(), "it was left")
