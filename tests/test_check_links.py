"""`make check-links` against a server of this machine: it reports broken links, and only those."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from docs import check_links


class Site(BaseHTTPRequestHandler):
    """Answers each path with the status that it names, and `/garbage` with bytes that are not HTTP."""

    def do_GET(self) -> None:
        if self.path == "/garbage":
            self.wfile.write(b"no status line\r\n\r\n")
            return
        self.send_response(int(self.path.strip("/")))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Site) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def refused() -> Iterator[str]:
    """An address that refuses connections, and whose port no other process can take."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}/"


def checked(folder: Path, page: str, monkeypatch: pytest.MonkeyPatch) -> int:
    (folder / "docs").mkdir()
    (folder / "docs" / "page.md").write_text(page, "utf-8")
    monkeypatch.setattr(check_links, "ROOT", folder)
    return check_links.main()


def test_pages_that_exist_or_refuse_programs_are_not_broken(
    site: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = f"[a]({site}/200) [the same]({site}/200#part) [b]({site}/403) [c]({site}/429) [here](other.md)"

    assert checked(tmp_path, page, monkeypatch) == 0
    assert capsys.readouterr().out == "onceward: 3 links to other sites, 0 broken\n"


def test_a_broken_link_is_reported_with_its_reason_and_its_page(
    site: str, refused: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = f"[a]({site}/200) [b]({site}/404) [c]({refused}) [d]({site}/garbage)"

    assert checked(tmp_path, page, monkeypatch) == 1
    *found, last = capsys.readouterr().out.splitlines()
    assert sorted(found) == sorted(
        [
            f"{site}/404: HTTP Error 404: Not Found (in docs/page.md)",
            f"{refused}: <urlopen error [Errno 111] Connection refused> (in docs/page.md)",
            f"{site}/garbage: BadStatusLine: no status line (in docs/page.md)",
        ]
    )
    assert last == "onceward: 4 links to other sites, 3 broken"
