"""Bytes built to slow a pattern down are sniffed as quickly as all others."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from onceward.hub.media import documents, markup
from onceward.hub.media import text as prose

# Each of them took seconds, minutes or longer than anybody waited, or is the worst for a pattern that has been bounded.
SLOW: dict[str, Callable[[], object]] = {
    "backslashes": lambda: documents._begins_as_json('{"a":"' + "\\" * 4000 + "\n"),
    "backslashes-and-letters": lambda: documents._begins_as_json('{"a":"' + "a\\" * 2000 + "\x01"),
    "addresses": lambda: prose.opening("From " + "a@" * 32_000),
    "paths": lambda: prose.opening("#!" + "/env -a" * 9_000),
    "options": lambda: prose.opening("#!/env " + "-a " * 20_000 + "/" * 1_000),
    "names": lambda: markup._ELEMENT.match("<" + "a:" * 16_000 + "\0"),
    "quotes": lambda: markup._ELEMENT.match("<a" + " b='x'" * 8_000 + " c='"),
    "tables": lambda: prose._MARKDOWN[5].search("|" + " :---: |" * 1_000 + "x"),
}


@pytest.mark.parametrize("name", SLOW)
def test_text_built_to_be_slow_is_sniffed_quickly(name: str) -> None:
    began = time.process_time()
    SLOW[name]()

    assert time.process_time() - began < 1


@pytest.mark.parametrize(
    ("text", "is_begun"),
    [
        ('{"a": "cut', True),
        ('{"a": "cut \\"still', True),
        ('{"a": "cut\\', True),
        ('{"a": "\\u00', True),
        ('{"a": -1.5e', True),
        ('{"a": tru', True),
        ('{"a": "no\n', False),
        ('{"a": nothing', False),
    ],
)
def test_a_truncated_document_is_still_recognised(text: str, is_begun: bool) -> None:
    assert documents._begins_as_json(text) is is_begun
