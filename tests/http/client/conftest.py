from __future__ import annotations

import pytest
from tests.http.client.transports import KINDS, RetryingClient


@pytest.fixture(params=KINDS)
def call(request: pytest.FixtureRequest) -> RetryingClient:
    """Each of the two transports in turn."""
    return RetryingClient(request.param)
