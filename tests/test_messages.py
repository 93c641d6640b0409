"""The page of all messages is complete and current, every code on it has advice, and log events are names with fields."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from tests.layout import ROOT, Module, package
from tests.message_advice import ADVICE
from tests.messages import API, HELP, LOG, PAGE, PART, PRINTED, Message, collect, page

from onceward.http.problem import CODES

# Codes of responses whose text comes from elsewhere: a framework, or the request itself.
WIRE_CODES = {*CODES.values(), "interrupted", "outcome-unknown"}
KINDS = {LOG, PRINTED, HELP, API, PART}
# A method of a logger that writes a line. Its first argument is a name, or comes from `log_event`.
LOG_METHODS = frozenset({"debug", "info", "warning", "error", "exception", "critical"})
LOGGERS = frozenset({"logger", "_log", "log", "_logger", "logging"})


@pytest.fixture(scope="module")
def messages() -> list[Message]:
    return list(collect(package().values()))


def module_of(source: str) -> Module:
    return Module("onceward.hub.sample", ROOT / "src/onceward/hub/sample.py", ast.parse(source), 1, is_folder=False)


def found_in(source: str) -> list[tuple[str, str]]:
    errors = package()["onceward.errors"]
    return [(one.code, one.text) for one in collect([errors, module_of(source)]) if "sample.py" in one.where]


def test_the_page_is_current(messages: list[Message]) -> None:
    assert PAGE.read_text("utf-8") == page(messages), "run `make messages`"


def test_every_code_has_advice_and_no_advice_is_left_over(messages: list[Message]) -> None:
    codes = {message.code for message in messages} - KINDS

    assert sorted(codes - ADVICE.keys()) == []
    assert sorted(ADVICE.keys() - codes - WIRE_CODES) == []


@pytest.mark.parametrize(
    ("source", "code", "text"),
    [
        ("raise NotFound(f'there is no task {task_id!r}')", "not-found", "there is no task {task_id}"),
        ("raise errors.Conflict('this is' ' in two parts')", "conflict", "this is in two parts"),
        ("problem.problem(409, 'Nobody knows it yet', 'in-doubt')", "in-doubt", "Nobody knows it yet"),
        ("problem.problem(413, 'This is too large')", "payloadTooLarge", "This is too large"),
        ("LATE = 'it came too late'\nraise Busy(LATE)", "busy", "it came too late"),
        (
            "def wrong(text):\n    return InvalidKey(text)\n\nraise wrong('it must be short')",
            "invalid-key",
            "it must be short",
        ),
        ("raise ValueError('a whole number please')", "ValueError", "a whole number please"),
        ("click.echo(f'done with {count} of them')", PRINTED, "done with {count} of them"),
        ("Field(description='The id of a turn.')", API, "The id of a turn."),
        ("def reason():\n    return 'it was there already'", PART, "it was there already"),
        (
            "log_event(logger.warning, 'purge_failed', None, retry_in_seconds=5, hint='Check the disk')",
            LOG,
            "`purge_failed` (warning): retry_in_seconds. Check the disk",
        ),
    ],
)
def test_a_message_is_found_with_its_code(source: str, code: str, text: str) -> None:
    assert (code, text) in found_in(source)


@pytest.mark.parametrize(
    "source",
    [
        "'''The docstring of a module.'''",
        "statement = text('SELECT one of them FROM all')",
        "rows = connection.execute('SELECT one of them')",
        "pattern = re.compile('a pattern with blanks in it')",
        "path = 'some/path.txt'",
    ],
)
def test_data_is_not_a_message(source: str) -> None:
    assert found_in(source) == []


def log_lines(module: Module) -> list[tuple[int, str]]:
    """Lines that a module logs as sentences."""
    found = []
    for node in ast.walk(module.tree):
        match node:
            case ast.Call(
                func=ast.Attribute(attr=method, value=ast.Name(id=logger) | ast.Attribute(attr=logger)),
                args=[
                    ast.Constant(value=str() as text) | ast.JoinedStr(values=[ast.Constant(value=str() as text), *_]),
                    *_,
                ],
            ) if method in LOG_METHODS and logger in LOGGERS and not re.fullmatch(r"[a-z][a-z0-9_]*", text):
                found.append((node.lineno, text))
            case _:
                pass
    return found


def test_log_events_are_names_with_fields() -> None:
    found = {name: lines for name, module in package().items() if (lines := log_lines(module))}

    assert found == {}, "use onceward.core.log_event.log_event"


def test_a_sentence_in_the_log_is_found() -> None:
    assert log_lines(module_of("logger.warning('the purge failed: %s', error)")) == [(1, "the purge failed: %s")]
    assert log_lines(module_of("logger.info('job_done', extra=fields)")) == []


def test_the_page_groups_messages_by_code_and_names_every_place() -> None:
    written = page([Message("busy", "wait for it", "a.py one"), Message("busy", "wait for it", "b.py two")])

    assert "## `busy`\n\n**What to do:** " + ADVICE["busy"] in written
    assert "| wait for it | `a.py one`, `b.py two` |" in written


def test_a_new_message_needs_a_new_page(tmp_path: Path, messages: list[Message]) -> None:
    assert page([*messages, Message("busy", "a new one", str(tmp_path))]) != PAGE.read_text("utf-8")
