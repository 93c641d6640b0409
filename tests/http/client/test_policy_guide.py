"""The guide of the client has every option of the retry policy, with its default."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from onceward.http.client.policy import WHOLE_BYTES_MAX, RetryOptions, RetryPolicy

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "client.md"


def test_every_option_is_in_the_guide_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", GUIDE.read_text("utf-8"), re.MULTILINE))
    fields = dataclasses.fields(RetryPolicy)

    assert {field.name for field in fields} == set(RetryOptions.__annotations__)
    for field in fields:
        assert rows[field.name] == _written(field.default)


def _written(default: object) -> str:
    if default is None:
        return "none"
    return ", ".join(default) if isinstance(default, tuple) else f"{default:.15g}"


def test_the_guide_says_how_much_of_a_response_is_read() -> None:
    assert f"{WHOLE_BYTES_MAX // 1024 // 1024} MiB" in GUIDE.read_text("utf-8")
