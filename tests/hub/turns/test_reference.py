"""The reference has everything that turns have."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import onceward.turns
from onceward.hub.turns.model import transitions
from onceward.turns import Brain, CallStatus, Context, Decision, Envelope, State, Status, UserMessage, tool

REFERENCE = Path(__file__).parent.parent.parent.parent / "docs" / "reference.md"


def words() -> set[str]:
    """Every word that the section has in code, with its dots and without."""
    _, _, rest = REFERENCE.read_text("utf-8").partition("## Turns\n")
    section, _, _ = rest.partition("\n## ")
    found = {word for span in re.findall(r"`([^`\n]+)`", section) for word in re.findall(r"[\w.]*\w", span)}
    return found | {part for word in found for part in word.split(".")}


def test_every_name_option_and_status_is_in_the_reference() -> None:
    context = {name for name in vars(Context) if not name.startswith("_")}
    fields = {*Brain.__slots__, *Envelope.__slots__, *UserMessage.__slots__}

    assert set(onceward.turns.__all__) <= words()
    assert context | fields | {*inspect.signature(tool).parameters} <= words()
    assert {*State, *Status, *CallStatus, *Decision} <= words()
    assert {transitions.RECEIVED, transitions.COMPLETED, transitions.FAILED} <= words()
