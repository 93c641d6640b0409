"""A model for OpenAI Agents with scripted answers, without a network."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, cast

from agents import Model, ModelResponse, ToolCallOutputItem, Usage
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText


class FakeModel(Model):
    def __init__(self, *outputs: Any) -> None:
        self._outputs = iter(outputs)
        self.inputs: list[Any] = []

    async def get_response(self, *_args: Any, **options: Any) -> ModelResponse:
        self.inputs.append(options["input"])
        return ModelResponse([next(self._outputs)], Usage(), response_id=None)

    def stream_response(self, *_args: Any, **_options: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


def calls(name: str, arguments: dict[str, Any], call_id: str) -> ResponseFunctionToolCall:
    return ResponseFunctionToolCall(name=name, arguments=json.dumps(arguments), call_id=call_id, type="function_call")


def says(text: str) -> ResponseOutputMessage:
    part = ResponseOutputText(text=text, type="output_text", annotations=[])
    return ResponseOutputMessage(id="message", content=[part], role="assistant", status="completed", type="message")


def tool_outputs(run: Any) -> dict[str, Any]:
    """Return the output that the model sees of each call, by the id of the call."""
    raw = [cast("Any", one.raw_item) for one in run.new_items if isinstance(one, ToolCallOutputItem)]
    return {one["call_id"]: one["output"] for one in raw}
