"""The lease of a dead hub, and the limit of new keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onceward.http import IdempotencyMiddleware
from onceward.hub.app import create_app
from onceward.hub.config.config import Config, HubSettings, IdempotencySettings


@pytest.mark.parametrize(("processing_ttl_seconds", "lease_seconds"), [(300.0, 30.0), (5.0, 5.0)])
def test_a_lease_is_never_longer_than_the_processing_ttl(
    tmp_path: Path, processing_ttl_seconds: float, lease_seconds: float
) -> None:
    settings = IdempotencySettings(processing_ttl_seconds=processing_ttl_seconds)
    app: Any = create_app(Config(HubSettings(data_dir=str(tmp_path)), settings))
    while not isinstance(app, IdempotencyMiddleware):
        app = app.app

    assert app._admission.default.lease_seconds == lease_seconds


@pytest.mark.parametrize(("configured", "limit"), [(0, None), (7, 7)])
def test_the_limit_of_new_keys_is_off_unless_it_is_configured(
    tmp_path: Path, configured: int, limit: int | None
) -> None:
    settings = IdempotencySettings(max_keys_per_principal=configured)
    app: Any = create_app(Config(HubSettings(data_dir=str(tmp_path)), settings))
    while not isinstance(app, IdempotencyMiddleware):
        app = app.app

    assert app._admission.default.max_keys_per_principal == limit
