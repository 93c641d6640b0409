"""A hub with few file descriptors, and clients that send too much, too slowly or too often. Real sockets throughout."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from tests.hub.hub_process import SERVE, RunningHub, running_hub
from tests.hub.server.raw_http import folder_with_database
from tests.waiting import until

# The soft limit of the hub's process, and what is left of it for connections.
DESCRIPTORS = 160
CONNECTIONS = 120
HEAD_SECONDS = 0.5
HEAD_BYTES_MAX = 64 * 1024
LINES_MAX = 100
MB = 1024 * 1024
# Allowed memory for a head of 30 MB: the parser's buffers and noise, not the head.
GROWTH_BYTES_MAX = 16 * MB

GET = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"
LIST = b"GET /api/v1/topics HTTP/1.1\r\nHost: 127.0.0.1\r\n"


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    limited = ("sh", "-c", f'ulimit -Sn {DESCRIPTORS}; exec "$@"', "sh", *SERVE)
    env = {"ONCEWARD_HUB__HEAD_SECONDS": f"{HEAD_SECONDS}"}
    folder = folder_with_database(tmp_path_factory.mktemp("limits") / "data")
    with running_hub(data_dir=folder, env=env, command=limited) as hub:
        yield hub


class RawResponse:
    """Return one response, read to its end, and whether the connection was closed after it."""

    def __init__(self, connection: socket.socket) -> None:
        with ExitStack() as stack:
            reader = stack.enter_context(connection.makefile("rb"))
            line = reader.readline()
            assert line, "the connection was closed without an answer"
            self.status = int(line.split()[1])
            headers = (text.decode().rstrip().lower().split(": ", 1) for text in iter(reader.readline, b"\r\n"))
            self.headers = dict(headers)
            self.body = reader.read(int(self.headers.get("content-length", 0)))
            stack.pop_all()
        self._reader = reader

    @property
    def code(self) -> str:
        return str(json.loads(self.body)["code"])

    def is_last(self) -> bool:
        return self._reader.read(1) == b""


def connect(hub: RunningHub) -> socket.socket:
    return socket.create_connection(("127.0.0.1", hub.port), timeout=30)


def send_request(hub: RunningHub, *pieces: bytes) -> RawResponse:
    """Send these bytes and return the response; a hub that has read enough may stop reading."""
    with closing(connect(hub)) as connection:
        with contextlib.suppress(OSError):
            for piece in pieces:
                connection.sendall(piece)
        response = RawResponse(connection)
        if response.headers.get("connection") == "close":
            assert response.is_last()
        return response


def peak_memory(hub: RunningHub) -> int:
    """Return the peak memory of the process."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{hub.process.pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def refusals(hub: RunningHub, reason: str) -> float:
    text = send_request(hub, b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").body.decode()
    found = re.search(rf'^onceward_refusals_total{{reason="{reason}"}} (\S+)$', text, re.MULTILINE)
    return float(found[1]) if found else 0.0


# Heads that are too large.


def padded(size: int, start: bytes = GET) -> bytes:
    """Return a head of exactly this many bytes."""
    return start + b"X: ".ljust(size - len(start) - 4, b"x") + b"\r\n\r\n"


def lines(count: int, start: bytes = GET) -> bytes:
    """Return a head with this many header lines, including Host."""
    return start + b"".join(b"X-%d: 1\r\n" % number for number in range(count - 1)) + b"\r\n"


@pytest.mark.parametrize("head", [padded(HEAD_BYTES_MAX), lines(LINES_MAX)], ids=["bytes", "lines"])
def test_a_head_at_the_limit_is_read(hub: RunningHub, head: bytes) -> None:
    assert send_request(hub, head).status == 200


UPGRADE = (
    b"GET /ws HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
CHUNKED = b"POST /api/v1/topics HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
TOO_LARGE = {
    "bytes": padded(HEAD_BYTES_MAX + 1),
    "lines": lines(LINES_MAX + 1),
    "address": b"GET /" + b"a" * HEAD_BYTES_MAX + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "blanks": GET + b"X:" + b" " * HEAD_BYTES_MAX + b"1\r\n\r\n",
    "many-short-lines": GET + b"a:\r\n" * 20_000 + b"\r\n",
    "socket-bytes": padded(HEAD_BYTES_MAX + 1, UPGRADE),
    "socket-lines": lines(LINES_MAX + 1, UPGRADE),
    # The library that speaks WebSocket takes lines of 8 KiB.
    "socket-line": padded(9 * 1024, UPGRADE),
    # The client continues to send before it reads, and the connection must not be reset.
    "four-megabytes": GET + b"X: " + b"x" * 4 * MB,
    "after-another": GET + b"\r\n" + padded(HEAD_BYTES_MAX + 1, GET),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_a_head_over_the_limit_gets_431_and_the_connection_is_closed(hub: RunningHub, name: str) -> None:
    before = refusals(hub, "head_too_large")
    with closing(connect(hub)) as connection:
        if name == "after-another":
            connection.sendall(GET + b"\r\n")
            assert RawResponse(connection).status == 200
            connection.sendall(padded(HEAD_BYTES_MAX + 1))
        else:
            connection.sendall(TOO_LARGE[name])
        response = RawResponse(connection)

        assert (response.status, response.code) == (431, "headersTooLarge")
        assert response.headers["content-type"] == "application/problem+json"
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["cross-origin-resource-policy"] == "same-origin"
        assert response.is_last()
    assert refusals(hub, "head_too_large") == before + 1


@pytest.mark.parametrize("kind", ["one-line", "many-lines", "trailer", "chunk-extension"])
def test_a_head_of_thirty_megabytes_costs_no_memory(hub: RunningHub, kind: str) -> None:
    send_request(hub, padded(HEAD_BYTES_MAX + 1))
    before = peak_memory(hub)
    start, piece = {
        "one-line": (GET + b"X: ", b"x" * MB),
        "many-lines": (GET, b"X-Header: some value or other\r\n" * (MB // 31)),
        "trailer": (CHUNKED + b"0\r\nX: ", b"x" * MB),
        "chunk-extension": (CHUNKED + b"1;x=", b"x" * MB),
    }[kind]
    began = time.monotonic()
    response = send_request(hub, start, *[piece] * 30)

    assert response.status == 431 or (kind in {"trailer", "chunk-extension"} and response.status in {400, 415})
    assert peak_memory(hub) - before < GROWTH_BYTES_MAX
    assert time.monotonic() - began < 20
    assert send_request(hub, GET + b"\r\n").status == 200


def test_a_trailer_is_not_a_header(hub: RunningHub) -> None:
    """A trailer after the body cannot give the request a key or a token."""
    body = b'{"title":"trailing"}'
    head = CHUNKED.replace(b"\r\n\r\n", b"\r\nContent-Type: application/json\r\n\r\n")
    trailer = b"0\r\nIdempotency-Key: trailing\r\n\r\n"
    answers = [send_request(hub, head + b"%x\r\n%s\r\n" % (len(body), body) + trailer) for _ in range(2)]

    assert [answer.status for answer in answers] == [201, 201]
    assert not any("idempotent-replayed" in answer.headers for answer in answers)


# Heads that are too slow.


SLOW = (b"", b"GET /healthz HT", GET, b"\r\n", UPGRADE)


def test_a_head_that_is_incomplete_after_the_timeout_ends_the_connection(hub: RunningHub) -> None:
    """On a new connection, and on one that was kept open after an earlier request."""
    with ExitStack() as stack:
        fresh = [stack.enter_context(closing(connect(hub))) for _ in SLOW]
        kept = open_connections(hub, stack, len(SLOW) - 1, GET + b"\r\n")
        began = time.monotonic()
        for connection, sent in zip([*fresh, *kept], [*SLOW, *SLOW[1:]], strict=True):
            connection.sendall(sent)
        for connection in (*fresh[1:], *kept):
            assert connection.recv(1) == b""
            assert 0.9 * HEAD_SECONDS < time.monotonic() - began < HEAD_SECONDS + 10
        assert fresh[0].recv(1) == b""


def send_repeatedly(connection: socket.socket, piece: bytes) -> None:
    """Send this repeatedly until the hub closes the connection."""
    connection.settimeout(0.1)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            connection.sendall(piece)
            if connection.recv(1) == b"":
                return
        except TimeoutError:
            continue
        except OSError:
            return


def test_dripping_bytes_do_not_extend_the_time_for_a_head(hub: RunningHub) -> None:
    before = refusals(hub, "slow_head")
    began = time.monotonic()
    with closing(connect(hub)) as connection:
        connection.sendall(GET)
        send_repeatedly(connection, b"X: 1\r\n")

    assert time.monotonic() - began < HEAD_SECONDS + 10
    assert refusals(hub, "slow_head") == before + 1


def test_a_body_that_drips_after_its_response_does_not_keep_the_connection(hub: RunningHub) -> None:
    began = time.monotonic()
    with closing(connect(hub)) as connection:
        connection.sendall(b"POST /nothing HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000000\r\n\r\n")
        assert RawResponse(connection).status == 404
        send_repeatedly(connection, b"x")

    assert time.monotonic() - began < HEAD_SECONDS + 10


def test_a_connection_that_is_idle_between_requests_is_kept(hub: RunningHub) -> None:
    with closing(connect(hub)) as idle:
        idle.sendall(GET + b"\r\n")
        assert RawResponse(idle).status == 200
        with closing(connect(hub)) as silent:
            assert silent.recv(1) == b"", "a head would be late by now"
        idle.sendall(GET + b"\r\n")

        assert RawResponse(idle).status == 200


# Responses of the connection itself, without the application.


def has_security_headers(response: RawResponse) -> bool:
    headers = response.headers
    return (headers.get("x-content-type-options"), headers.get("cross-origin-resource-policy")) == (
        "nosniff",
        "same-origin",
    )


@pytest.mark.parametrize(("sent", "status"), [(b"nonsense\r\n\r\n", 400), (TOO_LARGE["lines"], 431)])
def test_a_refused_request_forbids_sniffing_and_other_sites(hub: RunningHub, sent: bytes, status: int) -> None:
    response = send_request(hub, sent)

    assert response.status == status
    assert has_security_headers(response), response.headers


def test_a_refused_websocket_forbids_sniffing_and_other_sites(hub: RunningHub) -> None:
    response = send_request(hub, UPGRADE.replace(b"127.0.0.1", b"evil.example") + b"\r\n")

    assert response.status >= 400
    assert has_security_headers(response), response.headers


H2C = b"Host: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n"


@pytest.mark.parametrize("length", [b"Content-Length: %d\r\n", b"Transfer-Encoding: chunked\r\n"])
def test_the_body_of_an_upgrade_request_is_not_run_as_the_next_request(hub: RunningHub, length: bytes) -> None:
    body = GET + b"\r\n"
    if b"%d" in length:
        length %= len(body)
    with closing(connect(hub)) as connection:
        connection.sendall(b"POST /api/v1/topics HTTP/1.1\r\n" + H2C + length + b"\r\n")
        response = RawResponse(connection)
        with contextlib.suppress(OSError):
            connection.sendall(body)

        assert response.status == 400
        assert "Upgrade" in response.body.decode()
        with contextlib.suppress(ConnectionResetError):
            assert response.is_last()


def test_an_upgrade_request_without_a_body_is_answered_as_usual(hub: RunningHub) -> None:
    with closing(connect(hub)) as connection:
        for _ in range(2):
            connection.sendall(b"GET /healthz HTTP/1.1\r\n" + H2C + b"Content-Length: 0\r\n\r\n")
            assert RawResponse(connection).status == 200


# Too many of them.


def open_connections(hub: RunningHub, stack: ExitStack, count: int, sent: bytes) -> list[socket.socket]:
    found = []
    for _ in range(count):
        found.append(stack.enter_context(closing(connect(hub))))
        with contextlib.suppress(ConnectionError):  # the hub may have closed it as surplus
            found[-1].sendall(sent)
        if sent.endswith(b"\r\n\r\n"):
            assert RawResponse(found[-1]).status == 200
    return found


def test_above_the_connection_limit_the_hub_responds_503_and_is_still_alive(
    hub: RunningHub,
) -> None:
    before = refusals(hub, "too_many_connections")
    with ExitStack() as stack:
        kept = open_connections(hub, stack, CONNECTIONS, GET + b"\r\n")
        refused = [send_request(hub, LIST + b"\r\n"), send_request(hub, UPGRADE + b"\r\n")]
        healthy = [send_request(hub, GET + b"\r\n") for _ in range(10)]
        kept[0].sendall(LIST + b"\r\n")
        served = RawResponse(kept[0])

    assert [(one.status, one.code) for one in refused] == [(503, "unavailable")] * 2
    assert all(int(one.headers["retry-after"]) > 0 and one.headers["connection"] == "close" for one in refused)
    assert all(has_security_headers(one) for one in refused)
    assert [(one.status, one.headers["connection"]) for one in healthy] == [(200, "close")] * 10
    assert served.status == 200, "a connection that was there before is served"
    until(lambda: send_request(hub, LIST + b"\r\n").status == 200, "there is room again")
    assert refusals(hub, "too_many_connections") >= before + 2


def needed_descriptors(hub: RunningHub) -> int:
    """Count the open descriptors of the hub, and the connections that it has not accepted: the last column of a listener."""
    listening = f":{hub.port:04X} 00000000:0000 0A "
    line = next(line for line in Path("/proc/net/tcp").read_text().splitlines() if listening in line)
    unaccepted = int(line.split()[4].partition(":")[2], 16)
    return unaccepted + len(list(Path(f"/proc/{hub.process.pid}/fd").iterdir()))


def test_half_open_requests_do_not_block_other_clients(hub: RunningHub) -> None:
    with ExitStack() as stack:
        began = time.monotonic()
        open_connections(hub, stack, DESCRIPTORS + 12, b"GET /healthz HTTP/1.1\r\n")
        # Connections that arrive together may need more descriptors than there are, until the hub has accepted all of
        # them and closed the surplus. Until then, it may close the next one unread.
        until(lambda: needed_descriptors(hub) < DESCRIPTORS - 3, "the surplus is closed")
        healthy = send_request(hub, GET + b"\r\n")
        while send_request(hub, LIST + b"\r\n").status != 200:
            assert time.monotonic() - began < HEAD_SECONDS + 20
        took = time.monotonic() - began

    assert healthy.status == 200
    assert took < HEAD_SECONDS + 20


def test_refusals_are_logged_in_groups_with_the_address(hub: RunningHub) -> None:
    for _ in range(20):
        assert send_request(hub, lines(LINES_MAX + 1)).status == 431

    refused_lines = [json.loads(line) for line in hub.log_lines() if '"connection_refused"' in line]
    large = [line for line in refused_lines if line["reason"] == "head_too_large"]
    assert 1 <= len(large) < 15
    assert {(line["level"], line["client"]) for line in large} == {("warning", "127.0.0.1")}
    assert not any("Invalid HTTP request received" in line for line in hub.log_lines())
