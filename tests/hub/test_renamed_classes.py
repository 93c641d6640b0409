"""A value that 0.1 stored is rebuilt, although its class has another name now."""

from __future__ import annotations

import importlib
import json

import pytest

from onceward.core.moved import RENAMED
from onceward.core.value import decode, encode
from onceward.hub.db.page import RowPage
from onceward.hub.ingest.entries.batch import EntryOutcome
from onceward.hub.ingest.entries.result import Inserted
from onceward.hub.ingest.entries.schema import PKM
from onceward.hub.tasks import NewTaskAttachment, TaskAttachment
from onceward.hub.tasks.insert import Added

ATTACHMENT = TaskAttachment(
    "at-1", "t1", "spec", "repo_path", None, None, None, "unknown", None, None, "a.md", "then", "then", None
)


@pytest.mark.parametrize(
    ("old_name", "value"),
    [
        ("onceward.tasks.attachment:Attachment", ATTACHMENT),
        ("onceward.tasks.fields:NewAttachment", NewTaskAttachment("spec", labels=("a",))),
        ("onceward.db.page:Page", RowPage([1, 2], "2")),
        ("onceward.ingest.schema:Schema", PKM),
        ("onceward.ingest.batch:Outcome", EntryOutcome("inserted", (1, "u"))),
    ],
)
def test_a_stored_value_is_rebuilt_from_the_old_name_of_its_class(old_name: str, value: object) -> None:
    form = json.loads(encode(value))
    form["c"] = old_name

    assert decode(json.dumps(form).encode()) == value


@pytest.mark.parametrize(
    ("value", "old_names"),
    [
        (Added(ATTACHMENT, is_new=True), ("onceward.tasks.insert:Added", "onceward.tasks.attachment:Attachment")),
        (
            Inserted(EntryOutcome("skipped", matched_on="primary"), index=2),
            ("onceward.ingest.inserted:Inserted", "onceward.ingest.batch:Outcome"),
        ),
    ],
)
def test_a_part_of_a_stored_value_is_rebuilt_too(value: object, old_names: tuple[str, str]) -> None:
    form = json.loads(encode(value))
    inner = next(part for part in form["v"].values() if isinstance(part, dict))
    form["c"], inner["c"] = old_names

    assert decode(json.dumps(form).encode()) == value


@pytest.mark.parametrize("new_name", RENAMED.values())
def test_every_new_name_is_a_class(new_name: str) -> None:
    module, _, name = new_name.partition(":")

    assert isinstance(getattr(importlib.import_module(module), name), type)
