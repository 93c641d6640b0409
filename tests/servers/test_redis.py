"""A server that is missing, or has another version than requested, is an error."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.servers.redis import server_program


def test_a_missing_redis_7_is_an_error_that_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("ONCEWARD_REDIS_SERVER", raising=False)

    with pytest.raises(RuntimeError, match="no Redis 7 on this machine; install it"):
        server_program("redis7")


@pytest.mark.parametrize("other", ["redis6", "valkey"])
def test_another_server_does_not_pass_for_redis_7(monkeypatch: pytest.MonkeyPatch, other: str) -> None:
    monkeypatch.setenv("ONCEWARD_REDIS_SERVER", str(server_program(other)))

    with pytest.raises(RuntimeError, match="is not Redis 7"):
        server_program("redis7")


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(ValueError, match="not one of redis6, redis7, valkey"):
        server_program("redis")
