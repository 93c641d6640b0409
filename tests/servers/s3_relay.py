"""Stands in front of the S3 server and answers parts with 206, as S3 itself does; `rclone serve s3` says 200.

A test may hear of each request before the server does, keep it waiting, and answer it in the server's place.
"""

from __future__ import annotations

import io
import re
import socket
import socketserver
import threading
from collections.abc import Callable
from contextlib import closing
from types import TracebackType
from typing import Self

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_PART = re.compile(rb"\r\ncontent-range:", re.IGNORECASE)


# Gets the head of a request. Returns the whole response, or nothing to let the server respond.
OnRequest = Callable[[bytes], bytes]


class S3Relay:
    """A relay with one request for each connection, which keeps it simple; clients reconnect."""

    def __init__(self, port: int, on_request: OnRequest = lambda _: b"") -> None:
        self.on_request = on_request
        relay = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                _relay(self.rfile, self.wfile, port, relay.on_request)

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _relay(client: io.BufferedIOBase, answers: io.BufferedIOBase, port: int, on_request: OnRequest) -> None:
    if not (head := _head(client)):
        return
    length = int(named[1]) if (named := _LENGTH.search(head)) else 0
    if instead := on_request(head):
        client.read(length)
        answers.write(instead)
        return
    with closing(socket.create_connection(("127.0.0.1", port))) as upstream, upstream.makefile("rwb") as server:
        server.write(head.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
        while length and (piece := client.read(min(length, 65_536))):
            server.write(piece)
            length -= len(piece)
        server.flush()
        answer = _head(server)
        if _PART.search(answer):
            answer = answer.replace(b" 200 OK", b" 206 Partial Content", 1)
        answers.write(answer)
        while piece := server.read(65_536):
            answers.write(piece)


def _head(stream: io.BufferedIOBase) -> bytes:
    lines = b""
    while line := stream.readline():
        lines += line
        if line == b"\r\n":
            break
    return lines
