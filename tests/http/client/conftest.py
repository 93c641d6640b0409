from __future__ import annotations

import pytest
from tests.http.client.calling import KINDS, Calling


@pytest.fixture(params=KINDS)
def call(request: pytest.FixtureRequest) -> Calling:
    """Each of the two transports in turn."""
    return Calling(request.param)
