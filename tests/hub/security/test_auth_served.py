"""Access checks of a running hub: real sockets, two workers, and its log."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.hub.hub_process import SERVE, running_hub
from tests.waiting import until
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from onceward.cli import main
from onceward.hub.db.engine import open_database
from onceward.hub.security import tokens


def refused(url: str, **options: Any) -> tuple[int, str]:
    """Status and code of a WebSocket that is not accepted."""
    with pytest.raises(InvalidStatus) as caught, connect(url, **options):
        pass
    response = caught.value.response
    assert response.headers["X-Request-ID"]
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert response.headers["Cross-Origin-Resource-Policy"] == "same-origin"
    return response.status_code, json.loads(response.body or b"{}")["code"]


def test_a_running_hub_checks_every_caller_and_logs_no_token(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with (
        running_hub(data_dir=folder, args=["--workers", "2"], command=SERVE) as hub,
        httpx.Client(base_url=hub.url) as client,
    ):
        url, socket = "/api/v1/topics", f"ws{hub.url.removeprefix('http')}/ws"
        assert client.get(url).status_code == 200
        assert client.get(url, headers={"host": "evil.example.com"}).status_code == 400
        assert refused(socket, origin="http://evil.example.com") == (403, "forbidden")
        with closing(open_database(f"sqlite:///{folder}/hub.db")) as database, database.write() as tx:
            text = tokens.create(tx, "ci", ["read"])[1]
        good = {"authorization": f"Bearer {text}"}
        # From the next request on, also on an existing connection.
        assert [client.get(url, headers=headers).status_code for headers in ({}, good)] == [401, 200]
        assert client.post(url, headers=good, json={"title": "x"}).status_code == 403
        assert refused(socket) == (401, "unauthorized")
        assert refused(f"{socket}?token={text}") == (401, "unauthorized")
        offered = [Subprotocol("onceward"), Subprotocol(f"onceward.bearer.{text}")]
        with connect(socket, subprotocols=offered) as page:
            assert page.subprotocol == "onceward"
        # A worker counts a request when it has answered it, and either of them may be asked.
        counted = 'onceward_http_requests_total{method="GET",route="/ws",status="401"} 2.0'
        until(lambda: counted in client.get("/metrics", headers=good).text, "refusals are not counted")
        with closing(open_database(f"sqlite:///{folder}/hub.db")) as database, database.write() as tx:
            tokens.revoke(tx, "ci")
        # Both workers: each of these connections may reach either of them.
        assert {httpx.get(hub.url + url, headers=headers).status_code for headers in ({}, good) * 8} == {401}
        assert main(["token", "open-local", "--yes", "--data-dir", str(folder)]) == 0
        assert {httpx.get(hub.url + url).status_code for _ in range(8)} == {200}

    log = hub.log_lines()
    assert not any(text in line for line in log)
    lines = [json.loads(line) for line in log if line.startswith("{")]
    assert {line["level"] for line in lines} == {"info"}
    assert [line["status"] for line in lines if line["event"] == "websocket"].count(401) == 2
