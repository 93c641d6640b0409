"""Workers of one agent framework, as the tests use them."""

from __future__ import annotations

import json
import os
import select
import signal
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tests.faults.fork_server import ForkServer

# Far longer than a call takes on a busy machine.
REPORT_SECONDS_MAX = 60.0


class AdapterSpec(NamedTuple):
    """An adapter: its module, which imports the framework, and its name there.

    `after_cancel` is the status of a retry after the framework's caller was cancelled during the effect: `unknown` if
    the effect was interrupted, `replayed` if it goes on and its result is recorded.
    """

    module: str
    name: str
    after_cancel: Literal["unknown", "replayed"]


ADAPTERS = (
    AdapterSpec("once_tool_adapter", "async", "unknown"),
    AdapterSpec("once_tool_adapter", "sync", "replayed"),  # a thread cannot be cancelled
    AdapterSpec("mcp_adapter", "server", "replayed"),
    AdapterSpec("mcp_adapter", "wrap", "replayed"),
    AdapterSpec("fastmcp_adapter", "middleware", "replayed"),
    AdapterSpec("langchain_adapter", "agent", "unknown"),
    AdapterSpec("langchain_adapter", "agent-sync", "replayed"),
    AdapterSpec("langchain_adapter", "tool-node", "unknown"),
    AdapterSpec("pydantic_ai_adapter", "agent", "unknown"),
    AdapterSpec("openai_agents_adapter", "async", "unknown"),
    AdapterSpec("openai_agents_adapter", "sync", "replayed"),
)


class AgentWorker:
    """A process that runs the tool through a framework."""

    def __init__(self, fork_server: ForkServer, adapter: AdapterSpec, folder: Path) -> None:
        self._after_cancel = adapter.after_cancel
        reads, orders = os.pipe()
        self._reports, writes = os.pipe()
        self._orders = os.fdopen(orders, "wb", buffering=0)
        self.pid = fork_server.fork([adapter.name, str(folder / "ledger.db"), str(folder / "effects")], reads, writes)
        self._process = os.pidfd_open(self.pid)
        os.close(reads)
        os.close(writes)
        self._unread = b""

    def order(
        self,
        order_id: str = "42",
        amount: int = 5,
        note: str = "",
        *,
        conversation: str = "chat-1",
        call_id: str = "call-1",
        mode: str = "",
    ) -> None:
        arguments = {"order_id": order_id, "amount": amount, "note": note}
        order = {
            "after_cancel": self._after_cancel,
            "arguments": arguments,
            "conversation": conversation,
            "call_id": call_id,
            "mode": mode,
        }
        self._orders.write(json.dumps(order).encode() + b"\n")

    def call(self, *args: Any, **options: Any) -> dict[str, Any]:
        """Call the tool; gives the envelope, or `status` "cancelled" or "raised"."""
        self.order(*args, **options)
        return self.report()

    def report(self) -> dict[str, Any]:
        while b"\n" not in self._unread:
            readable, _, _ = select.select([self._reports], [], [], REPORT_SECONDS_MAX)
            assert readable, "the worker did not report"
            data = os.read(self._reports, 65536)
            assert data, "the worker ended"
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found

    def go_on(self) -> None:
        """Let an effect that was ordered to pause return."""
        self._orders.write(b"\n")

    def kill(self) -> None:
        signal.pidfd_send_signal(self._process, signal.SIGKILL)
        assert select.select([self._process], [], [], REPORT_SECONDS_MAX)[0]

    def close(self) -> None:
        self._orders.close()
        if not select.select([self._process], [], [], 2.0)[0]:
            self.kill()
        os.close(self._process)
        os.close(self._reports)
