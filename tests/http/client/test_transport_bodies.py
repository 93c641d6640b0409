from __future__ import annotations

import datetime
import gzip
import io
import ipaddress
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from tests.http.client.transports import RetryingClient
from tests.servers.scripted_http import Cut, ScriptedResponse, bind, scripted, url_of

from onceward import errors


def test_a_streamed_body_is_sent_again_completely(call: RetryingClient) -> None:
    with scripted(Cut(), ScriptedResponse(503), ScriptedResponse()) as server:
        response = call("POST", server.url, content=call.streamed([b"a", b"b" * 100_000]))

    assert response.status_code == 201
    assert [seen.body for seen in server.seen] == [b"a" + b"b" * 100_000] * 3


def test_a_multipart_body_is_sent_again_with_the_same_boundary(call: RetryingClient) -> None:
    with scripted(Cut(), ScriptedResponse(503), ScriptedResponse()) as server:
        call("POST", server.url, files={"file": ("a.txt", io.BytesIO(b"text"))}, data={"name": "x"})

    bodies = {(seen.headers["content-type"], seen.body) for seen in server.seen}
    assert len(server.seen) == 3
    assert len(bodies) == 1
    assert b"text" in (server.seen[2].body or b"")


def test_a_body_that_is_too_long_to_buffer_is_sent_once_and_completely(call: RetryingClient) -> None:
    with scripted(ScriptedResponse(503)) as server:
        response = call("POST", server.url, content=call.streamed([b"1234"] * 5), retry={"max_body_bytes": 10})

    assert response.status_code == 503
    assert [seen.body for seen in server.seen] == [b"1234" * 5]
    assert server.keys != [None]


def test_an_error_says_that_the_body_was_too_long_to_buffer(call: RetryingClient) -> None:
    with scripted(Cut()) as server, pytest.raises(httpx.RemoteProtocolError) as caught:
        call("POST", server.url, content=call.streamed([b"1234"] * 5), retry={"max_body_bytes": 10})

    assert "longer than max_body_bytes" in caught.value.__notes__[0]


def test_a_long_body_of_which_nothing_was_sent_may_be_sent_later(call: RetryingClient) -> None:
    with closing(bind()) as bound, ExitStack() as later:
        server = None

        def listen() -> None:
            nonlocal server
            server = server or later.enter_context(scripted(bound=bound))

        call.on_pause = listen
        body = call.streamed([b"1234"] * 5)
        response = call("POST", url_of(bound), content=body, retry={"max_body_bytes": 10})

    assert response.status_code == 201
    assert server is not None
    assert [seen.body for seen in server.seen] == [b"1234" * 5]


def test_a_long_body_that_is_gone_does_not_follow_a_redirect(call: RetryingClient) -> None:
    body = call.streamed([b"1234"] * 5)
    with scripted(ScriptedResponse(307, {"Location": "/moved"})) as server, pytest.raises(httpx.StreamConsumed):
        call("POST", server.url, content=body, retry={"max_body_bytes": 10}, client={"follow_redirects": True})

    assert [seen.path for seen in server.seen] == ["/"]


@pytest.mark.parametrize("with_length", [True, False])
@pytest.mark.parametrize("size", [0, 5, 1024 * 1024, 1024 * 1024 + 1, 3_000_000])
def test_a_response_of_any_length_arrives_completely(call: RetryingClient, size: int, with_length: bool) -> None:
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    with scripted(ScriptedResponse(200, {"Content-Type": "application/json"}, body, with_length)) as server:
        response = call("POST", server.url)

    assert response.content == body


def test_a_compressed_response_is_decompressed(call: RetryingClient) -> None:
    packed = ScriptedResponse(
        200, {"Content-Type": "application/json", "Content-Encoding": "gzip"}, gzip.compress(b"[1]"), False
    )
    with scripted(ScriptedResponse(503), packed) as server:
        response = call("POST", server.url)

    assert response.json() == [1]


def test_an_invalid_certificate_is_not_retried(call: RetryingClient, tmp_path: Path) -> None:
    tls = self_signed(tmp_path)
    with closing(bind()) as listening, ThreadPoolExecutor() as pool:
        listening.listen()
        greeted = pool.submit(greet_once, listening, tls)
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE"):
            call("POST", url_of(listening, "https"))

        assert isinstance(greeted.exception(20), ssl.SSLError)
    assert call.pauses == []


def test_a_local_protocol_error_is_not_retried(call: RetryingClient) -> None:
    with scripted() as server, pytest.raises(httpx.LocalProtocolError):
        call("POST", server.url, headers={"Bad Name": "x"})

    assert call.pauses == []


@pytest.mark.parametrize(
    "options",
    [
        {"methods": "POST"},
        {"methods": [1]},
        {"deadline_seconds": 0},
        {"deadline_seconds": float("inf")},
        {"tries": 0},
        {"tries": 1.5},
        {"tries": True},
        {"first_pause_seconds": -1},
        {"longest_pause_seconds": "5"},
        {"max_body_bytes": -1},
    ],
    ids=str,
)
def test_an_invalid_option_is_refused(call: RetryingClient, options: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidOption):
        call.transport(**options)


def greet_once(listening: socket.socket, tls: ssl.SSLContext) -> None:
    connection, _ = listening.accept()
    listening.close()
    with connection:
        tls.wrap_socket(connection, server_side=True).close()


def self_signed(folder: Path) -> ssl.SSLContext:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    file = folder / "server.pem"
    file.write_bytes(certificate.public_bytes(pem) + key.private_bytes(pem, form, plain))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    return context
