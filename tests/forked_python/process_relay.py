"""Stand for a forked process: give it the standard streams, pass signals on to it, and end as it ends.

Its arguments are SOCKET IMPORTS ARGUMENTS…. `STARTED_BY` in the new process's environment is the process id of the one that
started this one. If this process is killed, so is the other.
"""

import os
import signal
import socket
import sys

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def main() -> None:
    file, imports, *arguments = sys.argv[1:]
    environment = [f"{name}={value}" for name, value in os.environ.items()]
    request = [
        imports,
        sys.argv[0],
        os.getcwd(),  # noqa: PTH109  # pathlib takes longer to import than all the rest
        str(len(arguments)),
        *arguments,
        *environment,
        f"STARTED_BY={os.getppid()}",
    ]
    # A signal waits until there is a process to pass it on to.
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(file)
    socket.send_fds(connection, ["\0".join(request).encode("utf-8", "surrogateescape")], [0, 1, 2])
    pid = int(connection.recv(64) or sys.exit("the process that forks is gone; see its error above"))
    for number in SIGNALS:
        signal.signal(number, lambda number, _: os.kill(pid, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    # Give up these streams: their reader must see the end when the other process closes them.
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(nothing, standard)
    code = int(connection.recv(64) or 255)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
        os.kill(os.getpid(), -code)
    os._exit(code)


main()
