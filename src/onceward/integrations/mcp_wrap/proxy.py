"""The proxy between an MCP client and an MCP server: it intercepts `tools/call`, and passes on everything else.

    client ── tools/call of a tool with effects ──▶ ledger ──▶ server      once; a retry gets the first result
    client ── everything else, byte for byte ────────────────▶ server
    client ◀── everything else, byte for byte ─────────────── server

It knows as little of the protocol as possible, so that new messages and new versions pass through. An intercepted call
keeps its id on the way to the server: progress and requests of the server reach the client as without the proxy.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from onceward.errors import NotDone, OncewardError
from onceward.integrations.mcp_identity import Request, may_have_key
from onceward.integrations.mcp_result import foreign_result, lacks_result, text_of
from onceward.integrations.mcp_wrap import message as rpc
from onceward.integrations.mcp_wrap.config import WrapConfig
from onceward.ledger.ledger import Ledger
from onceward.tools.envelope import CallStatus, Envelope
from onceward.tools.json_schema import problem
from onceward.tools.receipts import error_envelope
from onceward.tools.tool import Once

Send: TypeAlias = Callable[[bytes], Awaitable[None]]

_VERSION_NAME = "io.modelcontextprotocol/protocolVersion"
# The longest text of an error in a message.
_TEXT_LENGTH_MAX = 500
# A server whose list of tools has more pages than this is not asked further.
_PAGES_MAX = 100


class ToolFailed(Exception):
    """The tool reported an error, or its server ended. The effect may have happened."""


class NotSent(NotDone):
    """The server cannot have received the call."""


@dataclass(slots=True)
class _RunningCall:
    """A call that is running: whether the client has cancelled it, and what the server returned in this call."""

    cancelled: bool = False
    # A response that is passed on as it is: the server asks for input, or refuses the request itself.
    verbatim: dict[str, Any] | None = None
    # The tool's own result if it reported an error.
    failed: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class _Schema:
    """Facts about a tool from the server's list."""

    parameters: dict[str, Any] = field(default_factory=dict)
    structured: bool = False

    @property
    def declared(self) -> frozenset[str]:
        """The names of the arguments that the tool declares."""
        properties = self.parameters.get("properties")
        return frozenset(properties) if isinstance(properties, dict) else frozenset()

    def problem(self, arguments: Mapping[str, Any]) -> str | None:
        """Describe the first argument that the server's own schema does not allow; None if there is none."""
        checked = self.parameters
        if "patternProperties" in checked:
            checked = {name: value for name, value in checked.items() if name != "additionalProperties"}
        try:
            return problem(checked, arguments)
        except (TypeError, AttributeError, RecursionError):
            return None  # a form of schema that is not checked here; the server checks it


class Proxy:
    """The proxy of one server, between two functions that send lines.

    Args:
        config: The settings.
        ledger: The ledger that records the calls.
        server: The name of the server.
        to_client: Sends a line to the client.
        to_server: Sends a line to the server. It raises `OSError` if the server cannot receive it.
    """

    def __init__(self, config: WrapConfig, ledger: Ledger, server: str, to_client: Send, to_server: Send) -> None:
        self._ledger = ledger
        self._rules = config.rules
        self._tools = {tool.name: tool for tool in config.rules}
        self._not_done = config.not_done
        self._identity = config.identity(server)
        self._to_client = to_client
        self._to_server = to_server
        self._server_has_ended = False
        # Requests to the server whose response is for the proxy, by their id.
        self._waiting: dict[rpc.MessageId, asyncio.Future[dict[str, Any]]] = {}
        # Intercepted calls of the client, by their id.
        self._running: dict[rpc.MessageId, _RunningCall] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        # Requests of the client for the list of tools, and what is known from the responses.
        self._listings: set[rpc.MessageId] = set()
        self._schemas: dict[str, _Schema] = {}

    # Lines.

    async def from_client(self, line: bytes) -> None:
        """Handle a line from the client.

        Args:
            line: The line, with its end.
        """
        if not line.strip():
            return
        try:
            found = rpc.decode(line)
        except ValueError as error:
            # The server might read it as a call of a tool.
            await self._reply(rpc.failure(None, rpc.PARSE_ERROR, f"the line is not a JSON message: {error}"))
            return
        if isinstance(found, list):
            # Older versions of the protocol have batches. Each message of one is answered by itself.
            for one in found:
                await self._client_message(one, rpc.encode(one))
        else:
            await self._client_message(found, line)

    async def from_server(self, line: bytes) -> None:
        """Handle a line from the server.

        Args:
            line: The line, with its end.
        """
        try:
            found = rpc.decode(line)
        except ValueError:
            await self._to_client(line)
            return
        if isinstance(found, list):
            for one in found:
                await self._server_message(one, rpc.encode(one))
        else:
            await self._server_message(found, line)

    def server_ended(self) -> None:
        """End all calls that wait for the server. Their outcome is unknown."""
        self._server_has_ended = True
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(ToolFailed("the server ended before it returned a result"))

    async def finish(self, seconds: float | None = None) -> None:
        """Wait until all intercepted calls have ended.

        Args:
            seconds: The longest time to wait; None for no limit.
        """
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)

    # Messages.

    async def _client_message(self, message: Any, line: bytes) -> None:
        method = message.get("method") if isinstance(message, dict) else None
        match method:
            case "tools/call":
                await self._client_call(message, line)
                return
            case "notifications/cancelled":
                params = message.get("params")
                cancelled = self._running.get(_id(params, "requestId"))
                if cancelled is not None:
                    # The effect may have begun. Its outcome is recorded for a retry, instead of a doubt.
                    cancelled.cancelled = True
                    return
            case "tools/list":
                self._listings.add(_id(message))
        await self._pass_to_server(message, line)

    async def _client_call(self, message: dict[str, Any], line: bytes) -> None:
        params = message.get("params")
        name = params.get("name") if isinstance(params, dict) else None
        if not isinstance(name, str) or self._rules.passes(name):
            await self._pass_to_server(message, line)
            return
        message_id = rpc.id_of(message)
        if message_id is None:
            return  # a notification; nobody would learn the outcome of the call
        if message_id in self._running:
            await self._reply(rpc.failure(message["id"], rpc.INVALID_REQUEST, "the id belongs to a running request"))
            return
        call = self._running[message_id] = _RunningCall()
        task = asyncio.create_task(self._run_call(call, message_id, message, line))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pass_to_server(self, message: Any, line: bytes) -> None:
        try:
            await self._to_server(line)
        except OSError:
            if isinstance(message, dict) and "method" in message and "id" in message:
                await self._reply(rpc.failure(message["id"], rpc.INTERNAL_ERROR, "the server has ended"))

    async def _server_message(self, message: Any, line: bytes) -> None:
        if rpc.is_response(message):
            message_id = _id(message)
            waiting = self._waiting.get(message_id)
            if waiting is not None:
                if not waiting.done():
                    waiting.set_result(message)
                return
            if message_id in self._listings:
                self._listings.discard(message_id)
                self._learn(message.get("result"))
        elif isinstance(message, dict) and message.get("method") == "notifications/tools/list_changed":
            self._schemas.clear()
        await self._to_client(line)

    async def _reply(self, message: dict[str, Any]) -> None:
        await self._to_client(rpc.encode(message))

    # Intercepted calls.

    async def _run_call(
        self, call: _RunningCall, message_id: rpc.MessageId, message: dict[str, Any], line: bytes
    ) -> None:
        try:
            response = await self._response(call, message_id, message, line)
        except Exception as error:  # noqa: BLE001  # the client waits for a response
            response = rpc.failure(message["id"], rpc.INTERNAL_ERROR, f"onceward: {error!r:.{_TEXT_LENGTH_MAX}}")
        finally:
            self._running.pop(message_id, None)
        if not call.cancelled:
            await self._reply(response)

    async def _response(
        self, call: _RunningCall, message_id: rpc.MessageId, message: dict[str, Any], line: bytes
    ) -> dict[str, Any]:
        params = message["params"]
        name = params["name"]
        try:
            envelope = await self._envelope(call, message_id, message, line)
        except OncewardError as error:
            envelope = error_envelope(name, error)
        if call.verbatim is not None:
            return {**call.verbatim, "id": message["id"]}
        structured = False
        if lacks_result(envelope):
            with contextlib.suppress(ToolFailed, NotSent):  # without the server, the client cannot check a schema
                structured = (await self._schema(name, params.get("_meta"))).structured
        result = foreign_result(envelope, call.failed, structured=structured)
        if _has_version(params.get("_meta")):
            # The first call may have come from a client of an older version, whose results have no type.
            result = {"resultType": "complete", **result}
        return {"jsonrpc": "2.0", "id": message["id"], "result": result}

    async def _envelope(
        self, call: _RunningCall, message_id: rpc.MessageId, message: dict[str, Any], line: bytes
    ) -> Envelope:
        params = message["params"]
        name = params["name"]
        arguments = params.get("arguments")
        arguments = {} if arguments is None else arguments
        meta = params.get("_meta")
        if not isinstance(arguments, dict):
            return _refused(name, "the arguments must be an object")
        if params.get("task") is not None:
            return _refused(name, "the outcome of a task cannot be recorded; call the tool without a task")
        tool = self._tools.get(name)
        if tool is None:
            return _refused(
                name,
                f"the configuration of onceward mcp wrap does not list the tool {name!r:.80}, and refuses such tools;"
                f" declare its effect in a table [tools.{name:.80}], or set unlisted",
                code="not-found",
            )
        try:
            schema = await self._schema(name, meta) if may_have_key(arguments) else _Schema()
        except (ToolFailed, NotSent) as error:
            return replace(_refused(name, f"the server did not list its tools: {error}"), may_retry=True)
        options = self._identity.call_options(
            arguments,
            Request(meta=meta if isinstance(meta, dict) else {}),
            None,
            declared=schema.declared,
            needs_group=tool.once is not Once.EVER,
            retain_seconds=tool.idempotent_for,
        )
        remaining = options.pop("arguments")
        group = options.pop("turn_group_id", None)
        # Servers report wrong arguments like an error after the effect, which would leave the call in doubt.
        wrong = self._schemas.get(name, _Schema()).problem(remaining)
        if wrong is not None:
            return _refused(name, wrong)

        async def handler() -> dict[str, Any]:
            if call.cancelled:
                raise NotDone("the client cancelled the call before it began")
            sent = (
                line
                if remaining == arguments
                else rpc.encode({**message, "params": {**params, "arguments": remaining}})
            )
            return self._result(call, name, await self._ask(message_id, sent))

        return await self._rules.call(name, remaining, handler, ledger=self._ledger, scope=group, **options)

    def _result(self, call: _RunningCall, name: str, response: Mapping[str, Any]) -> dict[str, Any]:
        """Return the result of a call that happened, or raise what is known about it otherwise."""
        if "error" in response:
            error = response["error"] if isinstance(response["error"], dict) else {}
            text = f"the server reported an error: {error.get('message', '')}"[:_TEXT_LENGTH_MAX]
            if error.get("code") in rpc.NOTHING_RAN:
                call.verbatim = dict(response)
                raise NotDone(text)
            raise NotDone(text) if name in self._not_done else ToolFailed(text)
        result = response.get("result")
        if not isinstance(result, dict):
            raise ToolFailed("the server returned no result")
        if result.get("resultType") == "input_required":
            # The server has not run the call yet. The client repeats it with the input.
            call.verbatim = dict(response)
            raise NotDone("the server asks for input first")
        if result.get("isError") is True:
            call.failed = result
            text = f"the tool reported an error: {text_of(result)}"[:_TEXT_LENGTH_MAX]
            raise NotDone(text) if name in self._not_done else ToolFailed(text)
        return result

    # Requests to the server.

    async def _ask(self, message_id: rpc.MessageId, line: bytes) -> dict[str, Any]:
        if self._server_has_ended:
            raise NotSent("the server has ended")
        response = asyncio.get_running_loop().create_future()
        self._waiting[message_id] = response
        try:
            try:
                await self._to_server(line)
            except OSError as error:
                # Without its end, the line is not a message: the server has not received the call.
                raise NotSent("the server has ended") from error
            found: dict[str, Any] = await response
            return found
        finally:
            del self._waiting[message_id]
            if response.done() and not response.cancelled():
                response.exception()  # retrieve it, so that asyncio does not log it

    async def _schema(self, name: str, meta: Any) -> _Schema:
        """Return what the server's list says about a tool. Ask for the list if the client has not."""
        if name in self._schemas:
            return self._schemas[name]
        # Newer versions of the protocol put the version and the client's capabilities into each request.
        common = {key: value for key, value in (meta.items() if isinstance(meta, dict) else ()) if "/" in key}
        cursor: Any = None
        for _ in range(_PAGES_MAX):
            params = {**({"_meta": common} if common else {}), **({} if cursor is None else {"cursor": cursor})}
            own_id = f"onceward-{uuid.uuid4()}"
            request = {"jsonrpc": "2.0", "id": own_id, "method": "tools/list", "params": params}
            result = (await self._ask(("text", own_id), rpc.encode(request))).get("result")
            self._learn(result)
            cursor = result.get("nextCursor") if isinstance(result, dict) else None
            if name in self._schemas or cursor is None:
                break
        return self._schemas.get(name, _Schema())

    def _learn(self, result: Any) -> None:
        tools = result.get("tools") if isinstance(result, dict) else None
        for one in tools if isinstance(tools, list) else ():
            if isinstance(one, dict) and isinstance(one.get("name"), str):
                schema = one.get("inputSchema")
                parameters = schema if isinstance(schema, dict) else {}
                self._schemas[one["name"]] = _Schema(parameters, one.get("outputSchema") is not None)


def _id(message: Any, name: str = "id") -> rpc.MessageId:
    found = rpc.id_of(message, name) if isinstance(message, dict) else None
    return ("none", 0) if found is None else found


def _has_version(meta: Any) -> bool:
    """Return whether a request names the version of its protocol, as all requests do since 2026."""
    return isinstance(meta, dict) and _VERSION_NAME in meta


def _refused(name: str, detail: str, code: str = "invalid-input") -> Envelope:
    return Envelope(CallStatus.REFUSED, name, detail=detail, code=code)
