"""A brain: the user's code that answers a turn, and what it declares about itself."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from onceward.core.canonical import Json
from onceward.errors import InvalidOption
from onceward.turns.decision import Decision
from onceward.turns.message import UserMessage
from onceward.turns.turn import Message, Turn

if TYPE_CHECKING:
    from onceward.turns.context import Context
    from onceward.turns.toolbox import Toolbox

Run: TypeAlias = "Callable[[Context], Any]"
Decide: TypeAlias = "Callable[[Turn, Sequence[Message], UserMessage], Any]"

_log = logging.getLogger("onceward.turns")


@dataclass(frozen=True, slots=True)
class Brain:
    """How a kind of turn is answered.

    run       given a `Context`, gives the response: a text, or anything that JSON can say; `def` (it runs in a thread)
              or `async def`
    toolbox   the tools that it may call
    decide    asked when a message arrives while a turn is not finished: given the turn, its messages and the new one,
              answers with a `Decision`, or None for the default rule
    versions  the versions of all that gives a message its meaning, by name; other versions are other answers
    reuse     what may be used again and when, by the name of the artifact
    meaningful_metadata
              the keys of a message's metadata that change what it means: with other values it is another message, and
              another input of artifacts; None for all but `timestamp`, `trace_id` and `request_id`
    """

    run: Run
    toolbox: Toolbox | None = None
    decide: Decide | None = None
    versions: Mapping[str, object] = field(default_factory=dict)
    reuse: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    meaningful_metadata: Collection[str] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.meaningful_metadata, str):
            raise InvalidOption(
                f"meaningful_metadata is a list of metadata keys, not the text {self.meaningful_metadata!r}"
            )

    async def decided(self, turn: Turn, messages: Sequence[Message], new: UserMessage) -> Decision | None:
        """The brain's opinion; None when it has none. One that raises has none: no message is lost for it."""
        if self.decide is None:
            return None
        try:
            found = await _called(self.decide, turn, messages, new)
            return None if found is None else Decision(found)
        except Exception:  # noqa: BLE001  # the brain's own, which may be anything
            _log.exception("the brain could not decide about a turn; the default rule does", extra={"turn_id": turn.id})
            return None

    async def answer(self, context: Context) -> Json:
        """What the brain says to this turn."""
        found: Json = await _called(self.run, context)
        return found


async def _called(function: Callable[..., Any], *arguments: object) -> Any:
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004  # an object whose call is async
        return await function(*arguments)
    found = await asyncio.to_thread(function, *arguments)
    return await found if inspect.isawaitable(found) else found


def load_brain(name: str) -> Brain:
    """The brain that `module:name` names: a `Brain`, or a function that becomes one's `run`."""
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise InvalidOption(f"a brain is named as module:name, not {name!r}")
    try:
        found: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise InvalidOption(f"there is no brain {name!r}: {error}") from error
    if isinstance(found, Brain):
        return found
    if callable(found):
        return Brain(found)
    raise InvalidOption(f"{name!r} is neither a Brain nor a function")
