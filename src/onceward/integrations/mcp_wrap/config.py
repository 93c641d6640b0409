"""The configuration of the proxy: a TOML file that says what a repetition of each tool would do.

unlisted = "refuse"              # or "pass"
ledger = "sqlite:///calls.db"

[tools.refund]
effect = "irreversible"
key_fields = ["order_id"]
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path, PurePath
from typing import Any, Final

from onceward.core.json_text import compact
from onceward.errors import InvalidConfig, InvalidOption
from onceward.integrations.mcp_identity import INFERRED_SECONDS, CallIdentity
from onceward.tools.rules import ToolRules

# The namespace of the proxy's claims in its ledger.
NAMESPACE: Final = "mcp"
# The client has gone. A call that is running gets this long to end, so that its outcome is recorded.
FINISH_SECONDS: Final = 30.0
# The options of a rule that need a function have no form in a file. `not_done` has another meaning here.
_NO_FILE_FORM: Final = frozenset({"undo", "reconcile", "not_done"})
_NOT_DONE: Final = "not_done"


@dataclass(frozen=True, slots=True, kw_only=True)
class WrapConfig:
    """The settings of the proxy.

    Args:
        tools: For each tool, its effect class and the options of its rule: `key_fields`, `template`, `once`, `volatile`,
            `exact`, `retain_seconds`, `how_to_check`, `version`, `wait_seconds`, `lease_seconds`, and `not_done`: True
            if an error that this tool reports proves that nothing happened.
        unlisted: Whether calls of other tools are passed through (`"pass"`) or refused (`"refuse"`).
        ledger: The URL of the ledger. By default, the file `.onceward/mcp.db` in the home folder.
        namespace: The namespace of the claims.
        name: The name of the wrapped server, which separates it from other servers in the same ledger. By default, it
            is derived from the command.
        principal: The caller. By default, `local`.
        turn_group_id: The group of calls that do not name one.
        require_group: Whether calls with neither a key nor a group are refused.
        inferred_seconds: How long the outcome of a call with neither a key nor a group is stored.
        finish_seconds: How long running calls may continue after the client has disconnected.

    Raises:
        InvalidOption: A setting is not valid.
    """

    tools: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    unlisted: str = "refuse"
    ledger: str | None = None
    namespace: str = NAMESPACE
    name: str | None = None
    principal: str | None = None
    turn_group_id: str | None = None
    require_group: bool = False
    inferred_seconds: float = INFERRED_SECONDS
    finish_seconds: float = FINISH_SECONDS
    # Derived: the rules without `not_done`, and the tools with it.
    rules: ToolRules = field(init=False, repr=False)
    not_done: frozenset[str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("ledger", "namespace", "name", "principal", "turn_group_id"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise InvalidOption(f"{name} must be a string with at least one character, got {value!r:.60}")
        if not isinstance(self.require_group, bool):
            raise InvalidOption(f"require_group must be true or false, got {self.require_group!r:.60}")
        seconds = self.finish_seconds
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < float("inf"):
            raise InvalidOption(f"finish_seconds must be a number of seconds, got {seconds!r:.60}")
        if not isinstance(self.tools, Mapping):
            raise InvalidOption(f"tools must be a table with one table for each tool, got {self.tools!r:.60}")
        self.identity("server")  # checks its options
        rules, not_done = {}, set()
        for name, options in self.tools.items():
            if not isinstance(options, Mapping):
                raise InvalidOption(f"tools.{name} must be a table, got {options!r:.60}")
            for option in sorted(_NO_FILE_FORM & options.keys() - {_NOT_DONE}):
                raise InvalidOption(f"tools.{name}.{option} needs a function; use onceward.integrations.mcp for that")
            if not isinstance(options.get(_NOT_DONE, False), bool):
                raise InvalidOption(f"tools.{name}.not_done must be true or false, got {options[_NOT_DONE]!r:.60}")
            if options.get(_NOT_DONE):
                not_done.add(name)
            rules[name] = {option: value for option, value in options.items() if option != _NOT_DONE}
        object.__setattr__(self, "rules", ToolRules(rules, unlisted=self.unlisted))  # type: ignore[arg-type]  # checked there
        object.__setattr__(self, "not_done", frozenset(not_done))

    def identity(self, server: str) -> CallIdentity[object]:
        """Return the rules for the caller, the key and the group.

        Args:
            server: The name of the wrapped server.

        Returns:
            The identity, with the server as the tenant.
        """
        return CallIdentity(
            principal=self.principal,
            tenant_id=server,
            turn_group_id=self.turn_group_id,
            require_group=self.require_group,
            inferred_seconds=self.inferred_seconds,
        )


def load_config(file: Path | None, **given: Any) -> WrapConfig:
    """Read the configuration.

    Args:
        file: A TOML file, or None for none.
        given: Settings that take precedence over the file. None stands for a setting that is not given.

    Returns:
        The configuration.

    Raises:
        InvalidConfig: The file does not exist, is not TOML, or has an invalid setting.
        InvalidOption: A setting in `given` is not valid.
    """
    found: dict[str, Any] = {}
    if file is not None:
        try:
            found = tomllib.loads(file.read_text("utf-8"))
        except OSError as error:
            raise InvalidConfig(f"cannot read {str(file)!r}: {error.strerror or error}") from error
        except RecursionError:
            raise InvalidConfig(f"{str(file)!r} is nested too deeply") from None
        except ValueError as error:  # not TOML, not UTF-8, or a number with too many digits
            raise InvalidConfig(f"{str(file)!r} is not TOML: {error}") from error
        known = [one.name for one in fields(WrapConfig) if one.init]
        for name in found:
            if name not in known:
                raise InvalidConfig(
                    f"{str(file)!r} has the unknown setting {name!r}; the settings are {', '.join(known)}"
                )
        try:
            WrapConfig(**found)
        except InvalidOption as error:
            raise InvalidConfig(f"{str(file)!r}: {error}") from error
    return WrapConfig(**{**found, **{name: value for name, value in given.items() if value is not None}})


def server_name(command: Sequence[str]) -> str:
    """Return the default name of the server that a command starts.

    A command may contain a secret, so the name has only its program and a digest of the rest.

    Args:
        command: The program and its arguments.

    Returns:
        Such as `npx-3f1c2a9b04de`.
    """
    digest = hashlib.sha256(compact(list(command)).encode("utf-8", "surrogatepass")).hexdigest()
    return f"{PurePath(command[0]).name}-{digest[:12]}"
