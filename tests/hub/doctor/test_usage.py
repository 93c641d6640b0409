"""Checks of the stored bytes of principals."""

from __future__ import annotations

import pytest

from onceward.hub.doctor.check_result import Level
from onceward.hub.doctor.usage import quota_check


@pytest.mark.parametrize(
    ("used", "bytes_max", "level", "detail"),
    [
        ({"ada": 10**12}, 0, Level.OK, "any number"),
        ({"ada": 90, "bob": 1}, 100, Level.OK, "no principal"),
        ({"ada": 91, "bob": 1}, 100, Level.WARNING, "use more than 90% of their 100 bytes: ada"),
        (dict.fromkeys("abcd", 100), 100, Level.WARNING, "bytes: a, b, c, …"),
    ],
    ids=["no quota", "room", "full", "many"],
)
def test_a_quota_that_is_nearly_used_up_is_a_warning(
    used: dict[str, int], bytes_max: int, level: Level, detail: str
) -> None:
    found = quota_check(used, bytes_max)

    assert found.level is level
    assert detail in found.detail
