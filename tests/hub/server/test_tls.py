"""TLS: unusable files are refused before the hub starts, and everything works over https."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from tests.hub.hub_process import RunningHub, running_hub
from tests.hub.server.certificates import write_certificate
from websockets.sync.client import connect

from onceward.cli import main
from onceward.errors import HubUnavailable, InvalidConfig, InvalidOption
from onceward.hub.client import BlockingHub
from onceward.hub.config.config import Config, HubSettings
from onceward.hub.server.tls import tls_context

# Long enough for the handshake of a client on a busy machine.
HEAD_SECONDS = 4.0


@dataclass(frozen=True, slots=True)
class TlsHub:
    """A hub that serves https, and its certificate."""

    hub: RunningHub
    ca_file: Path

    @property
    def context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.ca_file)

    def connection(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.hub.port), timeout=20)


@pytest.fixture(scope="module")
def tls_hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsHub]:
    folder = tmp_path_factory.mktemp("tls")
    cert, key = write_certificate(folder)
    key.chmod(0o644)
    env = {"ONCEWARD_HUB__HEAD_SECONDS": str(HEAD_SECONDS)}
    files = ("--tls-cert", str(cert), "--tls-key", str(key))
    with running_hub(data_dir=folder / "data", args=files, env=env) as hub:
        yield TlsHub(hub, cert)


def test_the_hub_serves_https_to_its_client_and_its_commands(
    tls_hub: TlsHub, capsys: pytest.CaptureFixture[str]
) -> None:
    url = tls_hub.hub.url
    with BlockingHub(url, ca_file=tls_hub.ca_file) as hub:
        made = hub.create_topic("T")
        event = next(iter(hub.follow(after=0)))
    code = main(["task", "add", "x", "--hub", url, "--ca-file", str(tls_hub.ca_file)])
    assert main(["doctor", "--hub", url, "--ca-file", str(tls_hub.ca_file)]) == 0, capsys.readouterr().out

    assert url.startswith("https://127.0.0.1:")
    assert event.entity_id == made.topic.id
    assert code == 0, capsys.readouterr().err
    assert "tls_key_is_readable_by_others" in "\n".join(tls_hub.hub.log_lines())


def test_a_client_refuses_a_certificate_that_it_does_not_know(
    tls_hub: TlsHub, capsys: pytest.CaptureFixture[str]
) -> None:
    with BlockingHub(tls_hub.hub.url, deadline_seconds=1) as hub, pytest.raises(HubUnavailable, match="CERTIFICATE"):
        hub.create_topic("T")
    with pytest.raises(InvalidOption, match="not a file with certificates"):
        BlockingHub(tls_hub.hub.url, ca_file=tls_hub.ca_file.with_suffix(".none"))
    for command in (["task", "list"], ["doctor"]):
        assert main([*command, "--hub", tls_hub.hub.url, "--ca-file", "/dev/null"]) == 2
        assert "not a file with certificates" in capsys.readouterr().err
    assert main(["doctor", "--hub", tls_hub.hub.url]) == 2
    assert "give --ca-file the certificate of the authority" in capsys.readouterr().out


def test_pages_of_the_hub_itself_may_write_over_https(tls_hub: TlsHub) -> None:
    with httpx.Client(base_url=tls_hub.hub.url, verify=tls_hub.context) as client:
        own = client.post("/api/v1/topics", json={"title": "T"}, headers={"origin": tls_hub.hub.url})
        plain = client.post(
            "/api/v1/topics", json={"title": "T"}, headers={"origin": tls_hub.hub.url.replace("https", "http")}
        )

    assert (own.status_code, plain.status_code) == (201, 403)
    assert "strict-transport-security" not in own.headers


def test_websockets_and_limits_work_over_tls(tls_hub: TlsHub) -> None:
    with connect(tls_hub.hub.url.replace("https", "wss") + "/ws", ssl=tls_hub.context) as websocket:
        websocket.send('{"type":"hello","after_event_id":0}')
        first = websocket.recv(timeout=20)
    with tls_hub.context.wrap_socket(tls_hub.connection(), server_hostname="127.0.0.1") as large:
        large.sendall(b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n" + b"x: y\r\n" * 200 + b"\r\n")
        refused = large.recv(1000)

    assert '"hello_ok"' in str(first), first
    assert refused.startswith(b"HTTP/1.1 431 ")


def test_a_connection_without_a_handshake_ends_in_time_and_leaves_no_trace(tls_hub: TlsHub) -> None:
    began = time.monotonic()
    with tls_hub.connection() as silent, tls_hub.connection() as plain:
        plain.sendall(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        answer = plain.recv(1000)
        rest = silent.recv(1000)
    seconds = time.monotonic() - began

    assert b"200" not in answer
    assert rest == b""
    assert HEAD_SECONDS * 0.5 < seconds < HEAD_SECONDS + 15
    assert "Traceback" not in "\n".join(tls_hub.hub.log_lines())


@pytest.mark.parametrize(
    ("cert", "key", "message"),
    [
        ("hub.crt", "", "hub.tls_cert is set without hub.tls_key"),
        ("", "hub.key", "hub.tls_key is set without hub.tls_cert"),
        ("none.crt", "hub.key", "hub.tls_cert: the file 'none.crt' cannot be read: No such file"),
        ("hub.crt", "none.key", "hub.tls_key: the file 'none.key' cannot be read: No such file"),
        ("hub.crt", "other.key", "does not belong to the certificate in 'hub.crt'"),
        ("hub.key", "hub.crt", "are not a certificate and its private key in PEM format"),
        ("empty", "hub.key", "are not a certificate and its private key in PEM format"),
        ("hub.crt", "locked.key", "is encrypted with a password"),
    ],
)
def test_files_that_cannot_be_used_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cert: str, key: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_certificate(tmp_path)
    write_certificate(tmp_path, "other")
    write_certificate(tmp_path, "locked", b"secret")
    Path("locked.crt").replace("hub.crt") if key == "locked.key" else None
    Path("empty").touch()

    with pytest.raises(InvalidConfig) as caught:
        tls_context(Config(HubSettings(tls_cert=cert, tls_key=key)))
    assert message in str(caught.value)


def test_the_command_reports_them_before_it_serves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert main(["serve", "--port", "0", "--tls-cert", "a.crt", "--tls-key", "a.key"]) == 2
    assert (
        capsys.readouterr().err
        == "onceward: hub.tls_cert: the file 'a.crt' cannot be read: No such file or directory\n"
    )
    assert not (tmp_path / "onceward-data").exists()


def test_without_files_the_hub_serves_plain_http() -> None:
    assert tls_context(Config()) is None
