"""The reference has everything that the client has."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

import onceward.hub.client
from onceward.hub.client import BlockingFollowing, BlockingHub, Following, Hub, types
from onceward.hub.client.connection import HubOptions

REFERENCE = Path(__file__).parent.parent.parent.parent / "docs" / "reference.md"


def words() -> set[str]:
    """Every word that the section has in code."""
    _, _, rest = REFERENCE.read_text("utf-8").partition("## The hub's client\n")
    section, _, _ = rest.partition("\n## ")
    return {word for span in re.findall(r"`([^`\n]+)`", section) for word in re.findall(r"\w+", span)}


def public(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")}


def test_every_name_method_argument_and_field_is_in_the_reference() -> None:
    verbs = [getattr(Hub, name) for name in public(Hub)]
    arguments = {name for verb in verbs for name in inspect.signature(verb).parameters} - {"self"}
    kinds = [kind for kind in vars(types).values() if dataclasses.is_dataclass(kind)]
    fields = {field.name for kind in kinds for field in dataclasses.fields(kind)}

    assert set(onceward.hub.client.__all__) <= words()
    assert public(Hub) | public(BlockingHub) | public(Following) | public(BlockingFollowing) <= words()
    options = {*HubOptions.__annotations__, *types.About.__annotations__}
    assert arguments | options <= words()
    assert {"event_id", "value_differs", "next_after", "checks"} <= fields <= words()
