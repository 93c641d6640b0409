"""Python processes that start from one that has imported the large packages: in 20 milliseconds instead of seconds.

`forked_python("mcp")` is a program that stands for `sys.executable` in a command. Behind it is a real process with its own
environment, folder, arguments and standard streams; only its imports are done already. All pytest workers share the process
that forks (`server.py`), which imports a package when the first command asks for it. Tests of the start itself use
`sys.executable`.
"""

from __future__ import annotations

import functools
import hashlib
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

# The folder of the socket, which the first pytest process makes and the others inherit.
FOLDER = "TESTS_FORKED_PYTHON"
_HERE = Path(__file__).parent


@functools.cache
def forked_python(*imports: str) -> str:
    """Return the program, which takes a file, `-m` with a module, or `-c` with a program text, and their arguments.

    The process has this program as its `sys.executable`, so what it starts is forked, too.
    """
    file, _ = _server()
    relay = _HERE / "process_relay.py"
    arguments = [str(file), ",".join(imports)]
    program = file.with_name("python-" + hashlib.sha256(arguments[1].encode()).hexdigest()[:16])
    with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False) as written:
        written.write(f"#!{sys.executable} -IS\nimport sys\nsys.argv[1:1] = {arguments!r}\n{relay.read_text('utf-8')}")
        Path(written.name).chmod(0o700)
    Path(written.name).rename(program)
    return str(program)


@functools.cache
def _server() -> tuple[Path, socket.socket]:
    """Return its socket file and a connection: it ends when nobody is connected to it, however the tests end."""
    import fcntl  # noqa: PLC0415  # conftest.py imports this module also on Windows

    folder = Path(os.environ[FOLDER])
    file = folder / "socket"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.connect(str(file))
        except OSError:
            file.unlink(missing_ok=True)
            _start(file)
            connection.connect(str(file))
    return file, connection


def _start(file: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(file))
        listening.listen(100)
        # Without variables for Python: each process gets those of its own command.
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "ONCEWARD_"))
        }
        process = subprocess.Popen(
            [sys.executable, "-P", str(_HERE / "server.py"), str(listening.fileno())],
            cwd="/",
            env=environment,
            pass_fds=[listening.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            # Ctrl-C in a terminal ends the tests first.
            start_new_session=True,
        )
    # It outlives this process if another one is connected to it.
    process.returncode = 0
