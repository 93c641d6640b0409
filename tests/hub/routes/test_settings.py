"""The settings of a running hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.hub.in_process_hub import in_process_hub

from onceward.hub.config import data_folder
from onceward.hub.config.config import Config, HubSettings, IdempotencySettings


def test_the_settings_are_shown_without_secrets(tmp_path: Path) -> None:
    config = Config(
        HubSettings(data_dir=str(tmp_path), ledger="memory:"),
        IdempotencySettings(encryption_keys=(b"0123456789abcdef",)),
        sources={("hub", "ledger"): "flag --ledger"},
    )
    with data_folder.opened(config):
        pass
    with in_process_hub(config) as client:
        shown: dict[str, Any] = client.get("/api/v1/settings").json()["settings"]

    assert shown["hub"]["ledger"] == {"value": "memory:", "source": "flag --ledger"}
    assert shown["idempotency"]["encryption_keys"]["value"] == ["***"]
    assert shown["idempotency"]["default_ttl_hours"] == {"value": 24, "source": "default"}
