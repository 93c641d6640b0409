"""Security headers of every response; pages load nothing from other hosts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from tests.hub.in_process_hub import Client, in_process_hub

from onceward.hub.config.config import Config, HubSettings
from onceward.hub.db.engine import open_database
from onceward.hub.db.migrate import migrate

PAGES = ("/console/", "/docs")


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    config = Config(HubSettings(data_dir=str(tmp_path)))
    with closing(open_database(config.database_url)) as database:
        migrate(database)
    with in_process_hub(config) as client:
        yield client


def every_answer(client: Client) -> Iterator[tuple[str, httpx.Response]]:
    """Return one response of each route, mostly a refusal; a stream is requested so that it ends at once."""
    for path, operations in client.get("/openapi.json").json()["paths"].items():
        plain = re.sub(r"\{[^}]*\}", "nope", path)
        for method in operations:
            query = {"after": "nonsense"} if path.endswith("/stream") else {}
            body = None if method in {"get", "head", "delete"} else {"nonsense": True}
            yield f"{method} {path}", client.request(method.upper(), plain, params=query, json=body)
    for path in (*PAGES, "/skill.md", "/openapi.json", "/metrics", "/no/such/path", "/console/no-such-file"):
        yield f"get {path}", client.get(path)
    yield "delete /healthz", client.request("DELETE", "/healthz")
    yield "a foreign host", client.get("/", headers={"Host": "evil.example"})


def test_every_response_forbids_sniffing_and_other_sites(client: Client) -> None:
    missing = []
    for name, answer in every_answer(client):
        if answer.headers.get_list("x-content-type-options") != ["nosniff"]:
            missing.append(f"{name}: {answer.headers.get_list('x-content-type-options')}")
        if answer.headers.get_list("cross-origin-resource-policy") != ["same-origin"]:
            missing.append(f"{name}: {answer.headers.get_list('cross-origin-resource-policy')}")

    assert missing == []


@pytest.mark.parametrize("path", PAGES)
def test_a_page_allows_only_its_own_files(client: Client, path: str) -> None:
    answer = client.get(path)
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))

    assert policy["default-src"] == "'none'"
    assert policy["frame-ancestors"] == "'none'"
    assert policy["base-uri"] == "'none'"
    assert {policy[kind] for kind in ("script-src", "style-src", "connect-src", "form-action")} == {"'self'"}
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert not re.search(r"<style|<script(?![^>]*\bsrc=)|\bstyle=|\bon[a-z]+=", answer.text), "inline script or style"


@pytest.mark.parametrize("path", PAGES)
def test_everything_a_page_loads_is_served_by_the_hub(client: Client, path: str) -> None:
    loaded = re.findall(r'<(?:link|script)\b[^>]*?(?:href|src)="([^"]+)"', client.get(path).text)

    assert loaded
    for name in loaded:
        answer = client.get(f"/{name.lstrip('/')}")
        assert answer.status_code == 200, name
        kinds = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
        assert answer.headers["content-type"].startswith(kinds[name.partition("?")[0].rpartition(".")[2]])
