"""A short run of every target, the inputs that once failed, and whether the list of targets is complete."""

from __future__ import annotations

import ast
import functools
import logging
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fuzz.__main__ import CORPUS, keep
from tests.fuzz.engine import MEASURE_EVERY, MEMORY_BYTES_MAX, Failure, Fuzzer, Target, check, interrupting
from tests.fuzz.targets import NOT_EXTERNAL, TARGETS

SOURCE = Path(__file__).parent.parent.parent / "src" / "onceward"
# Of all targets together, in CPU time of an idle machine. `make fuzz` runs as long as you like.
INPUTS = 40
# Functions and classes that take bytes or text apart.
PARSERS = frozenset({
    "JSONDecoder", "MultipartParser", "PushMultipartParser", "HTMLParser", "URL", "a2b_base64", "a2b_qp", "b64decode",
    "decompressobj", "from_bytes", "fromhex", "fromisoformat", "ip_address", "ip_network", "loads", "parse_options_header",
    "parse_qs", "parse_qsl", "parsedate_to_datetime", "parsedate_tz", "raw_decode", "strptime", "unpack", "unpack_from",
    "unquote", "unquote_to_bytes", "urlparse", "urlsplit",
})  # fmt: skip


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """The hub logs what it refuses."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(before)


def test_every_parser_returns_a_value_or_raises_its_documented_error() -> None:
    for target in TARGETS.values():
        Fuzzer(target, random.Random(20261118)).run(seconds=10.0, inputs_max=INPUTS)


def test_no_input_that_once_failed_fails_again() -> None:
    files = sorted(file for file in CORPUS.iterdir() if file.name != "README.md")

    assert files
    with interrupting():
        for file in files:
            check(TARGETS[file.name.partition(".")[0]], file.read_bytes())


@functools.cache
def parsing_modules() -> set[str]:
    """Every module that calls one of the `PARSERS`, or has a class that is one."""
    found: set[str] = set()
    mentioned = re.compile(rf"\b(?:{'|'.join(sorted(PARSERS))})\b")
    for file in SOURCE.rglob("*.py"):
        text = file.read_text("utf-8")
        if not mentioned.search(text):
            continue
        module = ".".join(file.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        for node in ast.walk(ast.parse(text)):
            used = [node.func] if isinstance(node, ast.Call) else node.bases if isinstance(node, ast.ClassDef) else []
            names = {one.attr if isinstance(one, ast.Attribute) else getattr(one, "id", "") for one in used}
            if names & PARSERS:
                found.add(module)
    return found


def test_every_module_that_parses_external_bytes_has_a_target() -> None:
    fuzzed = {module for target in TARGETS.values() for module in target.parses}
    unknown = {name for name in fuzzed | NOT_EXTERNAL.keys() if not (SOURCE / f"{name.replace('.', '/')}.py").is_file()}

    assert parsing_modules() - fuzzed - NOT_EXTERNAL.keys() == set(), "add a target, or a reason to NOT_EXTERNAL"
    assert NOT_EXTERNAL.keys() - parsing_modules() == set(), "these parse nothing any more"
    assert fuzzed & NOT_EXTERNAL.keys() == set()
    assert unknown == set()


# The fuzzer itself.


def planted(bug: str) -> Target:
    """A parser of `n:text` with one bug."""

    def run(data: bytes) -> object:
        number, _, text = data.partition(b":")
        if not number.isdigit():
            raise ValueError("not a number")
        if bug == "exception" and b"[" in text:
            raise KeyError("missing")
        if bug == "slow" and b"[" in text:
            while True:
                time.thread_time()
        if bug == "memory" and b"[" in text:
            return len(bytes(2 * MEMORY_BYTES_MAX))
        return text

    return Target(f"planted-{bug}", (), run, (b"1:abc", b"22:x"), (ValueError,))


@pytest.mark.parametrize(
    ("bug", "reason"),
    [("exception", "KeyError"), ("memory", "bytes of memory"), ("slow", "did not return")],
)
def test_the_fuzzer_finds_a_planted_bug_and_keeps_its_input(
    bug: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.fuzz.engine.HANG_SECONDS", 0.2)
    monkeypatch.setattr("tests.fuzz.engine.MEASURE_EVERY", 4 if bug == "memory" else MEASURE_EVERY)
    target = planted(bug)
    with pytest.raises(Failure, match=reason) as caught:
        Fuzzer(target, random.Random(1)).run(seconds=60.0, inputs_max=20_000)
    file = keep(caught.value, tmp_path)

    assert file.read_bytes() == caught.value.data
    assert b"[" in caught.value.data
    assert file.name.startswith(f"planted-{bug}.")


def test_without_a_bug_the_fuzzer_finds_nothing_and_repeats_itself() -> None:
    first, second = (Fuzzer(planted(""), random.Random(7)) for _ in range(2))
    for fuzzer in (first, second):
        fuzzer.run(seconds=60.0, inputs_max=300)

    assert first.outcomes == second.outcomes
    assert len(first.outcomes) > 2
