"""A proxy between a client and its server: it counts round trips, and can cut the connection."""

from __future__ import annotations

import select
import socket
import threading
from types import TracebackType
from typing import Self


class TcpProxy:
    """Listens on its own port, and forwards connections to the server's, in both directions."""

    def __init__(self, port: int) -> None:
        self._server = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.trips = 0
        self._cut = threading.Event()
        self._question = b""
        self._wake, self._stop = socket.socketpair()
        self._thread = threading.Thread(target=self._pass_on, daemon=True)
        self._thread.start()

    def lose_replies(self, question: bytes = b"") -> None:
        """From now on, pass requests on, and cut the connection in place of each response. With `question`, begin with
        the first request that contains it.
        """
        self._question = question
        if not question:
            self._cut.set()

    def heal(self) -> None:
        self._question = b""
        self._cut.clear()

    def close(self) -> None:
        self._stop.close()
        self._thread.join()
        self._wake.close()
        self._listener.close()

    def _pass_on(self) -> None:
        other: dict[socket.socket, socket.socket] = {}
        asking: dict[socket.socket, bool] = {}
        while True:
            ready, _, _ = select.select([self._wake, self._listener, *other], [], [])
            if self._wake in ready:
                break
            for here in ready:
                if here is self._listener:
                    client, server = here.accept()[0], socket.create_connection(self._server)
                    other |= {client: server, server: client}
                    asking[client] = False
                elif here in other:
                    there, data = other[here], _receive(here)
                    from_client = here in asking
                    if not data or (not from_client and self._cut.is_set()):
                        for end in (here, there):
                            del other[end]
                            asking.pop(end, None)
                            end.close()
                        continue
                    # A trip begins where the client speaks after the server did.
                    client = here if from_client else there
                    self.trips += from_client and not asking[client]
                    asking[client] = from_client
                    if from_client and self._question and self._question in data:
                        self._cut.set()
                    there.sendall(data)
        for end in other:
            end.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _receive(end: socket.socket) -> bytes:
    try:
        return end.recv(1 << 20)
    except ConnectionResetError:
        return b""
