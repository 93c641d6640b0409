"""Requests as curl commands."""

from __future__ import annotations

import shlex

import pytest

from onceward.hub.console.claims.curl import curl_of


def test_the_command_repeats_the_request_with_its_key() -> None:
    text = curl_of({"endpoint": "POST /pay", "key": "it's 17"}, "http://127.0.0.1:8787/")

    assert text is not None
    words = shlex.split(text.replace("\\\n", " "))
    assert words[:5] == ["curl", "-i", "-X", "POST", "http://127.0.0.1:8787/pay"]
    assert "Idempotency-Key: it's 17" in words


@pytest.mark.parametrize("endpoint", [None, "", "charge", "POST", "POST $(reboot)"])
def test_an_unknown_endpoint_has_no_command(endpoint: str | None) -> None:
    assert curl_of({"endpoint": endpoint, "key": "k"}, "http://h") is None


def test_a_hostile_path_stays_one_argument() -> None:
    text = curl_of({"endpoint": "POST /a;reboot $(x) 'y'", "key": "k"}, "http://h")

    assert text is not None
    assert "http://h/a;reboot $(x) 'y'" in shlex.split(text.replace("\\\n", " "))
