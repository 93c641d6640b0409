"""The file that declares the tools of a wrapped server."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from onceward.errors import InvalidConfig, InvalidOption
from onceward.integrations.mcp_wrap import WrapConfig, load_config
from onceward.integrations.mcp_wrap.config import server_name
from onceward.tools.rules import RuleOptions

FILE = """
unlisted = "pass"
ledger = "sqlite:///calls.db"
inferred_seconds = 60

[tools.refund]
effect = "irreversible"
key_fields = ["order_id"]
not_done = true

[tools.price]
effect = "pure"
"""


def written(folder: Path, text: str) -> Path:
    file = folder / "wrap.toml"
    file.write_text(text, "utf-8")
    return file


def test_a_file_is_read_and_flags_take_precedence(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, FILE), ledger="memory:", namespace=None)

    assert (config.ledger, config.namespace, config.unlisted, config.inferred_seconds) == ("memory:", "mcp", "pass", 60)
    assert [tool.name for tool in config.rules] == ["refund", "price"]
    assert config.not_done == {"refund"}
    assert config.rules.passes("other")


def test_by_default_tools_that_are_not_listed_are_refused() -> None:
    config = load_config(None)

    assert (config.unlisted, config.ledger, config.namespace) == ("refuse", None, "mcp")
    assert not config.rules.passes("other")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("unlisted = ", "is not TOML"),
        ('unlisted = "ask"', "unlisted"),
        ('colour = "red"', "unknown setting 'colour'"),
        ("tools = 1", "tools must be a table"),
        ("[tools]\nrefund = 1", "tools.refund must be a table"),
        ("[tools.refund]", "'refund' has no effect"),
        ('[tools.refund]\neffect = "odd"', "'refund' is not valid"),
        ('[tools.refund]\neffect = "irreversible"\nkeys = []', "unknown option 'keys'"),
        ('[tools.refund]\neffect = "irreversible"\nnot_done = "yes"', "not_done must be true or false"),
        ('[tools.refund]\neffect = "compensatable"\nundo = "x"', "tools.refund.undo needs a function"),
        ('[tools.refund]\neffect = "compensatable"', "'refund' is not valid"),
        ("require_group = 1", "require_group must be true or false"),
        ("finish_seconds = -1", "finish_seconds must be a number"),
        ("inferred_seconds = -1", "inferred_seconds"),
        ('principal = ""', "principal must be a string"),
        ("turn_group_id = 7", "turn_group_id must be a string"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, text: str, message: str) -> None:
    file = written(tmp_path, text)

    with pytest.raises(InvalidConfig, match=r"wrap\.toml") as caught:
        load_config(file)

    assert message in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="cannot read"):
        load_config(tmp_path / "none.toml")


@pytest.mark.parametrize("wrong", [{"name": ""}, {"unlisted": "ask"}, {"finish_seconds": float("nan")}], ids=str)
def test_a_wrong_flag_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption):
        WrapConfig(**wrong)


def test_the_default_name_of_a_server_differs_by_its_command_and_hides_its_arguments() -> None:
    names = [server_name(["/bin/shop", *rest]) for rest in ([], ["--token", "secret"], ["--token secret"])]

    assert len({*names}) == 3
    assert all(name.startswith("shop-") and "secret" not in name for name in names)
    assert server_name(["/bin/shop"]) == names[0]


DOCS = Path(__file__).parent.parent.parent.parent / "docs"


def test_every_setting_is_in_the_reference() -> None:
    section = (DOCS / "reference.md").read_text("utf-8").partition("### File of onceward mcp wrap")[2]
    section, _, tools = section.partition("\n## ")[0].partition("A rule has these settings")
    settings, options = (
        {
            name
            for row in re.findall(r"^\| (`.*?) \|", part, re.MULTILINE)
            for name in re.findall(r"`([\w.\[\]]+)`", row)
        }
        for part in (section, tools)
    )

    assert settings - {"[tools.NAME]"} == {one.name for one in fields(WrapConfig) if one.init} - {"tools"}
    assert options == {*RuleOptions.__annotations__} - {"undo", "reconcile"}


def test_the_file_in_the_guide_is_valid(tmp_path: Path) -> None:
    (text,) = re.findall(
        r"^```\n(# shop\.toml\n.*?)^```", (DOCS / "guides" / "mcp.md").read_text("utf-8"), re.MULTILINE | re.DOTALL
    )

    assert [tool.name for tool in load_config(written(tmp_path, text)).rules] == ["refund", "set_address", "price"]
