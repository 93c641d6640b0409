"""Commands sent to Redis, and what comes back for them, taken in as it comes: an event loop must not wait for either.

Only scripts that write are sent so; they answer with a string or an error.
"""

from __future__ import annotations

import os
import selectors
import socket
import time
from collections.abc import Iterable

# What is read at once.
_READ_BYTES = 256 * 1024
_STRING, _ERROR = b"$-"


class Refusal(str):
    """What the server said instead of an answer."""

    __slots__ = ()


class Parcel:
    """Commands on a socket that has a timeout, so that its number can be read and written without waiting."""

    __slots__ = ("_at", "_came", "_data", "_deadline", "_is_refused", "_line", "_rest", "_wanted", "_went_wrong")

    def __init__(self, line: socket.socket, commands: Iterable[bytes], seconds: float) -> None:
        """Sends them. An `OSError` says that nothing was sent."""
        pieces = list(commands)
        data = b"".join(pieces)
        sent = os.write(line.fileno(), data)
        self._rest = data[sent:] if sent < len(data) else b""
        self._line = line
        self._deadline = time.monotonic() + seconds
        self._wanted = len(pieces)
        self._data = b""
        self._at = 0
        self._came: list[bytes | Refusal] = []
        self._is_refused = False
        self._went_wrong: OSError | None = None

    @property
    def stuck(self) -> bool:
        """One who can wait has to go on: the network did not take everything at once, or something was refused."""
        return self._is_refused or bool(self._rest)

    @property
    def is_whole(self) -> bool:
        """Everything has come, and nothing was refused."""
        return self._went_wrong is None and not self.stuck and len(self._came) == self._wanted

    @property
    def _over(self) -> bool:
        return self._went_wrong is not None or len(self._came) == self._wanted

    def fileno(self) -> int:
        return self._line.fileno()

    def poll(self) -> bool:
        """Take in what has come; true when that is all, or nothing more will come."""
        try:
            self._take(os.read(self._line.fileno(), _READ_BYTES))
        except BlockingIOError:
            return False
        except OSError as error:
            self._went_wrong = error
        except Exception as error:  # noqa: BLE001  # raised by `replies`
            self._went_wrong = ConnectionAbortedError(f"the server says what cannot be read: {error}")
        return self._over

    def _take(self, data: bytes) -> None:
        if not data:
            raise ConnectionResetError("the server closed the connection")
        if self._at < len(self._data):
            data = self._data[self._at :] + data
        at, size = 0, len(data)
        while len(self._came) < self._wanted:
            end = data.find(b"\r\n", at)
            if end < 0:
                break
            kind, start = data[at], end + 2
            if kind == _STRING:
                length = int(data[at + 1 : end])
                end = start + length
                if length < 0:
                    raise ConnectionAbortedError("the server says nothing")
                if end + 2 > size:
                    break
                self._came.append(data[start:end])
                at = end + 2
            elif kind == _ERROR:
                self._is_refused = True
                self._came.append(Refusal(data[at + 1 : end].decode("utf-8", "replace")))
                at = start
            else:
                raise ConnectionAbortedError("the server says what nobody asked for")
        if at < size and len(self._came) == self._wanted:
            raise ConnectionAbortedError("the server says more than was asked for")
        self._data, self._at = data, at

    def replies(self) -> list[bytes | Refusal]:
        """All of them, waiting for what has not come."""
        if self._rest:
            rest, self._rest = self._rest, b""
            self._line.sendall(rest)
        if not self._over:
            with selectors.DefaultSelector() as selector:
                selector.register(self._line, selectors.EVENT_READ)
                while not self._over:
                    if not selector.select(self._deadline - time.monotonic()):
                        raise TimeoutError("the server does not answer")
                    self.poll()
        if self._went_wrong is not None:
            raise self._went_wrong
        return self._came
