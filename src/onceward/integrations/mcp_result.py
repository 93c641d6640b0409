"""Results of calls over the Model Context Protocol, as JSON: envelopes, and results of other people's tools.

A tool of a toolbox returns the envelope as its structured content. A tool that Onceward did not declare has a result and
an output schema of its own, so a call that happened returns the tool's own result, and the envelope is beside it in
`_meta.onceward`. A replayed result also says so in a text for the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, cast

from onceward.core.canonical import Json
from onceward.core.json_text import compact
from onceward.tools.envelope import CallStatus, Envelope

# The name of the envelope in the `_meta` of a result.
META_NAME: Final = "onceward"


def foreign_result(
    envelope: Envelope, failed: Mapping[str, Any] | None = None, *, structured: bool = False
) -> dict[str, Any]:
    """Return the result of a call of a tool that Onceward did not declare.

    Args:
        envelope: The envelope of the call. Its result is the result of the tool, as JSON.
        failed: The tool's own result in this call if it reported an error.
        structured: Whether the tool has an output schema. Then clients refuse a result without structured content that
            is not marked as an error.

    Returns:
        A `CallToolResult` as JSON. A call that has not happened has no structured content: it would have to match the
        tool's output schema.
    """
    about = replace(envelope, result=None).json()
    del about["result"]
    found = envelope.result if envelope.ok else failed
    if _is_whole(found):
        own: dict[str, Any] = dict(cast("Mapping[str, Any]", found))
    else:
        # An operator resolved the call with a value, or the result was not kept, or there is none.
        content = [] if found is None else [_text(cast("Json", found))]
        own = {"content": content, "isError": structured or not envelope.ok}
    if envelope.status is CallStatus.DONE and not envelope.detail:
        shown = own["content"]
    else:
        shown = [*own["content"], _text(about)]
    meta = own.get("_meta")
    return {**own, "content": shown, "_meta": {**(meta if isinstance(meta, Mapping) else {}), META_NAME: about}}


def lacks_result(envelope: Envelope) -> bool:
    """Return whether a call happened, but the tool's own result is not known.

    The result could not be stored, or an operator decided that the call happened. Then it matters whether the tool has an
    output schema.
    """
    return envelope.ok and not _is_whole(envelope.result)


def text_of(result: Mapping[str, Any]) -> str:
    """Return the text in the content of a result, for a message."""
    content = result.get("content")
    parts = (one.get("text") for one in content if isinstance(one, Mapping)) if isinstance(content, list) else ()
    return " ".join(part for part in parts if isinstance(part, str))


def _is_whole(result: object) -> bool:
    return isinstance(result, Mapping) and isinstance(result.get("content"), list)


def _text(value: Json) -> dict[str, Json]:
    return {"type": "text", "text": compact(value)}
