"""The process that has imported the large packages and forks. Run as `python -P server.py LISTENING`, an inherited socket.

A request on a connection has the packages to import, and what the new process needs: its `sys.executable`, its folder, its
arguments, its environment and its three standard streams. The answers are its process id and, at the end, its exit code. A
connection that is closed before kills the process. Without connections this process ends.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib

# It keeps the first `sys.executable`, which inherits the descriptors that workers are started with.
import multiprocessing.spawn  # noqa: F401
import os
import runpy
import select
import signal
import socket
import sys
import tempfile
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

PR_SET_PDEATHSIG = 1
# The environment is the largest part of a request.
REQUEST_BYTES_MAX = 200_000


def serve(listening: socket.socket) -> None:
    poll = select.poll()
    poll.register(listening, select.POLLIN)
    connections: dict[int, socket.socket] = {}
    running: dict[socket.socket, int] = {}
    children: dict[int, tuple[int, socket.socket]] = {}
    while True:
        for ready, _ in poll.poll():
            if ready == listening.fileno():
                connection, _ = listening.accept()
                connections[connection.fileno()] = connection
                poll.register(connection, select.POLLIN)
            elif ready in children:
                pid, connection = children.pop(ready)
                poll.unregister(ready)
                os.close(ready)
                _, ended = os.waitpid(pid, 0)
                if running.pop(connection, None):
                    _send(connection, os.waitstatus_to_exitcode(ended))
            elif request := _receive(connections[ready]):
                words, streams = request
                _import(words[0])
                pid = os.fork()
                if pid == 0:
                    for one in (listening, *connections.values()):
                        one.close()
                    for descriptor in children:
                        os.close(descriptor)
                    _become(words[1:], streams)
                for descriptor in streams:
                    os.close(descriptor)
                watched = os.pidfd_open(pid)
                poll.register(watched, select.POLLIN)
                children[watched] = pid, connections[ready]
                running[connections[ready]] = pid
                _send(connections[ready], pid)
            else:
                poll.unregister(ready)
                connection = connections.pop(ready)
                connection.close()
                if pid := running.pop(connection, 0):
                    os.kill(pid, signal.SIGKILL)
        if not connections and not children:
            return


def _receive(connection: socket.socket) -> tuple[list[str], list[int]] | None:
    """Return the next request, or None if the connection is closed."""
    try:
        message, descriptors, _, _ = socket.recv_fds(connection, REQUEST_BYTES_MAX, 3)
    except ConnectionError:
        return None
    return (message.decode("utf-8", "surrogateescape").split("\0"), descriptors) if message else None


def _send(connection: socket.socket, number: int) -> None:
    try:
        connection.send(str(number).encode())
    except OSError:
        return  # closed, which the next poll reports


def _import(names: str) -> None:
    missing = [name for name in names.split(",") if name and name not in sys.modules]
    for name in missing:
        importlib.import_module(name)
    if missing:
        assert threading.active_count() == 1, f"a fork would lose the other threads of {names}"
        gc.collect()
        gc.freeze()


def _become(request: list[str], streams: list[int]) -> NoReturn:
    """Run what `python` would run with these arguments. Never outlives the process that forks."""
    os.setsid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for standard, descriptor in enumerate(streams):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    sys.executable, folder, count, *rest = request
    arguments, environment = rest[: int(count)], rest[int(count) :]
    os.environ.clear()
    os.environ.update((name, value) for name, _, value in (one.partition("=") for one in environment))
    os.chdir(folder)
    # It depends on the environment, and something that was imported may have asked for it.
    tempfile.tempdir = None
    if os.environ.get("PYTHONUNBUFFERED"):
        sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
    sys.path[:0] = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    end_after(lambda: _run(arguments, folder))


def _run(arguments: list[str], folder: str) -> None:
    main = types.ModuleType("__main__")
    main.__builtins__ = __builtins__  # type: ignore[attr-defined]
    sys.modules["__main__"] = main
    match arguments:
        case ["-m", module, *others]:
            sys.argv = [module, *others]
            sys.path.insert(0, folder)
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case ["-c", program, *others]:
            sys.argv = ["-c", *others]
            sys.path.insert(0, "")
            exec(program, main.__dict__)  # noqa: S102
        case [file, *_] if Path(file).is_dir():
            sys.argv = arguments
            runpy.run_path(file, run_name="__main__")
        case [file, *_]:
            sys.argv = arguments
            sys.path.insert(0, str(Path(file).resolve().parent))
            main.__file__ = file
            exec(compile(Path(file).read_bytes(), file, "exec"), main.__dict__)  # noqa: S102


def end_after(program: Callable[[], object]) -> NoReturn:
    """Run it, and end the process as Python does, but without taking apart all modules, which takes 0.2 s."""
    code: object = 0
    try:
        program()
    except SystemExit as error:
        code = error.code
    except BaseException:  # noqa: BLE001  # as Python itself
        sys.excepthook(*sys.exc_info())
        code = 1
    if not isinstance(code, int | None):
        print(code, file=sys.stderr)  # noqa: T201
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        code = 120  # as Python itself
    os._exit((code or 0) & 0xFF)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as inherited:
        serve(inherited)
