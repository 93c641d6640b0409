"""A data folder written before schema 2 of the ledger, served by this version."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import httpx
from tests.hub.hub_process import running_hub

FOLDER = Path(__file__).parent / "fixtures" / "schema_1.tar.gz"
# The namespace that this folder was written with.
OLD_NAMESPACE = {"ONCEWARD_IDEMPOTENCY__KEY_PREFIX": "onceward"}


def test_a_hub_serves_an_old_folder_and_shows_the_doubt_hidden_in_it(tmp_path: Path) -> None:
    with tarfile.open(FOLDER) as tar:
        tar.extractall(tmp_path, filter="data")
    with running_hub(data_dir=tmp_path / "onceward-data", env=OLD_NAMESPACE) as hub:
        # No request asks for the claim: the hub finds it by itself.
        event = json.loads(hub.wait_for_line('"claim_in_doubt"').string)
        with httpx.Client(base_url=hub.url) as client:
            keyed = {"Idempotency-Key": "topic-1"}
            replay = client.post("/api/v1/topics", json={"title": "Ledger upgrade"}, headers=keyed)
            found = client.get("/api/v1/claims", params={"status": "in_doubt"}).json()["claims"]

    assert (event["level"], event["scope"], event["key"]) == ("warning", "call", "charge:1")
    assert event["if_it_did_not"].startswith(
        f"onceward claims resolve call charge:1 --version {event['version']} --not-"
    )
    assert (replay.status_code, replay.headers["Idempotent-Replayed"]) == (201, "true")
    assert {claim["key"] for claim in found} == {"charge:1", "charge:2"}
