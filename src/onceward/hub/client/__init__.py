"""A client for the hub. It needs httpx, but not the packages of the extra `hub`.

Not here: retries of any HTTP request (`http/client/`).
Start with `hub.py`.

async with Hub("http://127.0.0.1:8787", token="…") as hub:
    made = await hub.create_topic("Release 2.0")

with BlockingHub("http://127.0.0.1:8787") as hub:
    made = hub.create_topic("Release 2.0")
"""

from onceward.errors import missing_extra

try:
    import httpx as _  # noqa: F401  # imported first, so that the error names its extra
except ModuleNotFoundError as error:
    raise missing_extra(error, __name__, "client") from error

from onceward.hub.client.audit import Audit, AuditEntry, AuditOnly, AuditPage
from onceward.hub.client.blocking import (
    BlockingAudit,
    BlockingChat,
    BlockingClaims,
    BlockingFollowing,
    BlockingHub,
    BlockingIngest,
    BlockingStorage,
)
from onceward.hub.client.chat import Chat, ChatAnswer, ChatEvent, ChatMessage, Saying, ToolSeen, TurnSeen
from onceward.hub.client.claims import ClaimPage, Claims, ClaimSeen
from onceward.hub.client.follow import Following
from onceward.hub.client.hub import Hub
from onceward.hub.client.ingest import Entry, EntryInserted, Ingest, Policy
from onceward.hub.client.storage import CounterDifference, Storage, StorageCheck, StorageUsage
from onceward.hub.client.types import (
    About,
    Attached,
    Attachment,
    Backfilled,
    Collected,
    Damage,
    Downloaded,
    Event,
    EventPage,
    Gap,
    Message,
    MessageMade,
    Readiness,
    Task,
    TaskAttachment,
    Topic,
    TopicMade,
)

__all__ = [
    "About",
    "Attached",
    "Attachment",
    "Audit",
    "AuditEntry",
    "AuditOnly",
    "AuditPage",
    "Backfilled",
    "BlockingAudit",
    "BlockingChat",
    "BlockingClaims",
    "BlockingFollowing",
    "BlockingHub",
    "BlockingIngest",
    "BlockingStorage",
    "Chat",
    "ChatAnswer",
    "ChatEvent",
    "ChatMessage",
    "ClaimPage",
    "ClaimSeen",
    "Claims",
    "Collected",
    "CounterDifference",
    "Damage",
    "Downloaded",
    "Entry",
    "EntryInserted",
    "Event",
    "EventPage",
    "Following",
    "Gap",
    "Hub",
    "Ingest",
    "Message",
    "MessageMade",
    "Policy",
    "Readiness",
    "Saying",
    "Storage",
    "StorageCheck",
    "StorageUsage",
    "Task",
    "TaskAttachment",
    "ToolSeen",
    "Topic",
    "TopicMade",
    "TurnSeen",
]
