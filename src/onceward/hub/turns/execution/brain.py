"""Brains: the user's code that answers a turn, and its declarations."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from onceward.core.canonical import Json
from onceward.core.log_event import log_event
from onceward.errors import InvalidOption
from onceward.hub.turns.model.decision import Decision
from onceward.hub.turns.model.message import UserMessage
from onceward.hub.turns.model.turn import Message, Turn

if TYPE_CHECKING:
    from onceward.hub.turns.execution.context import Context
    from onceward.tools.toolbox import Toolbox

Run: TypeAlias = "Callable[[Context], Any]"
Decide: TypeAlias = "Callable[[Turn, Sequence[Message], UserMessage], Any]"

_log = logging.getLogger("onceward.turns")


@dataclass(frozen=True, slots=True)
class Brain:
    """The code that answers turns, and its declarations.

    Args:
        run: Called with a `Context`; returns the response, a string or any other JSON value. `async def`, or `def`,
            which runs in a thread.
        toolbox: The tools that it may call.
        decide: Called when a message arrives while a turn is unfinished, with the turn, its messages and the new
            message. Returns a `Decision`, or None for the default rule.
        versions: The versions, by name, of everything that the answer depends on, such as the model and the policy.
            Artifacts with the scope `same_input_same_dep` are computed again when one of them changes.
        reuse: When each artifact may be reused, by its name; see `onceward.hub.turns.artifacts.reuse`.
        meaningful_metadata: The metadata keys that change the meaning of a message. With another value under one of
            them, it is another message, and another input of artifacts. None: all keys except `timestamp`, `trace_id`
            and `request_id`.

    Raises:
        errors.InvalidOption: `meaningful_metadata` is a string.
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
                f"meaningful_metadata must be a list of metadata keys, got the string {self.meaningful_metadata!r}"
            )

    async def decided(self, turn: Turn, messages: Sequence[Message], new: UserMessage) -> Decision | None:
        """Return the decision that the brain wants about an unfinished turn.

        An exception of `decide` is logged and counts as no preference, so that the message is not lost.

        Args:
            turn: The unfinished turn.
            messages: Its messages.
            new: The message that arrived.

        Returns:
            The decision, or None if the brain has no preference.
        """
        if self.decide is None:
            return None
        try:
            found = await _invoke(self.decide, turn, messages, new)
            return None if found is None else Decision(found)
        except Exception as error:  # noqa: BLE001  # user code may raise anything
            log_event(
                _log.error, "brain_decide_failed", error, turn_id=turn.id, hint="the default rule decides instead"
            )
            return None

    async def answer(self, context: Context) -> Json:
        """Run the brain on a turn.

        Args:
            context: The context of the run.

        Returns:
            The response.

        Raises:
            Exception: Any exception of `run`.
        """
        found: Json = await _invoke(self.run, context)
        return found


async def _invoke(function: Callable[..., Any], *arguments: object) -> Any:
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004  # an object with an async __call__
        return await function(*arguments)
    found = await asyncio.to_thread(function, *arguments)
    return await found if inspect.isawaitable(found) else found


def load_brain(name: str) -> Brain:
    """Import a brain by its name.

    Args:
        name: `module:name` of a `Brain`, or of a function that becomes the `run` of one. The part after the colon may
            have dots.

    Returns:
        The brain.

    Raises:
        errors.InvalidOption: The name has another form, cannot be imported, or names something else.
    """
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise InvalidOption(f"a brain must be named as module:name, got {name!r}")
    try:
        found: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise InvalidOption(f"cannot import the brain {name!r}: {error}") from error
    if isinstance(found, Brain):
        return found
    if callable(found):
        return Brain(found)
    raise InvalidOption(f"{name!r} must be a Brain or a function, got {type(found).__name__}")
