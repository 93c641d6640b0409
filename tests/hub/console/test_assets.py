"""Stylesheets and scripts: our own, complete, and under an address that changes with them."""

from __future__ import annotations

import pytest
from tests.hub.in_process_hub import Client

from onceward.hub.console.assets import asset_url


@pytest.mark.parametrize(
    ("name", "kind"),
    [("console.css", "text/css"), ("console.js", "text/javascript"), ("events.js", "text/javascript"), ("upload.js", "text/javascript"),
     ("icon.svg", "image/svg+xml"), ("reference.css", "text/css"), ("reference.js", "text/javascript"),
     ("request.js", "text/javascript"), ("response.js", "text/javascript")],
)  # fmt: skip
def test_a_file_is_served_and_loads_nothing_from_elsewhere(client: Client, name: str, kind: str) -> None:
    found = client.get(asset_url(name))

    assert (found.status_code, found.headers["content-type"].split(";")[0]) == (200, kind)
    assert "immutable" in found.headers["cache-control"]
    assert "immutable" not in client.get(f"/console/static/{name}?v=old").headers["cache-control"]
    assert "@import" not in found.text
    assert "://" not in found.text.replace("http://www.w3.org/2000/svg", "")


def test_a_module_without_a_version_is_revalidated_so_that_an_upgrade_mixes_no_old_and_new_ones(client: Client) -> None:
    first = client.get("/console/static/request.js")
    again = client.get("/console/static/request.js", headers={"If-None-Match": first.headers["etag"]})
    after_an_upgrade = client.get("/console/static/request.js", headers={"If-None-Match": '"old"'})

    assert first.headers["cache-control"] == again.headers["cache-control"] == "public, no-cache"
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
    assert (after_an_upgrade.status_code, after_an_upgrade.content) == (200, first.content)


def test_only_these_files_are_served(client: Client) -> None:
    for name in ("reference.html", "..%2fconsole.py", "layout.html"):
        assert client.get(f"/console/static/{name}").status_code == 404
