"""The current names of modules and classes that had another name in 0.1.

The table lists the modules that the documentation named, and those whose classes may be part of stored outcomes. A
stored class is named `module:qualname` and must be found after its module has moved.

A class is always stored under the first name it had. Fingerprints contain that name, and an earlier version of Onceward
can read outcomes that this one has stored.
"""

from __future__ import annotations

# Old module: new module.
MOVED: dict[str, str] = {
    "onceward.blobs": "onceward.hub.blobs",
    "onceward.blobs.archive": "onceward.hub.archives",
    "onceward.blobs.archive.tally": "onceward.hub.archives.limits",
    "onceward.blobs.folder": "onceward.hub.blobs.folder",
    "onceward.blobs.media": "onceward.hub.media",
    "onceward.blobs.media.settle": "onceward.hub.media.declared",
    "onceward.blobs.media.sniff": "onceward.hub.media.detect",
    "onceward.blobs.spool": "onceward.hub.blobs.temp_file",
    "onceward.db": "onceward.hub.db",
    "onceward.db.engine": "onceward.hub.db.engine",
    "onceward.db.migrate": "onceward.hub.db.migrate",
    "onceward.events": "onceward.hub.events",
    "onceward.events.log": "onceward.hub.events.log",
    "onceward.http.intents": "onceward.http.client.intents",
    "onceward.http.rules": "onceward.http.keyed.rules",
    "onceward.hub.client.answers": "onceward.hub.client.responses",
    "onceward.hub.client.values": "onceward.hub.client.types",
    "onceward.ingest": "onceward.hub.ingest",
    "onceward.ingest.draft": "onceward.hub.ingest.entries.draft",
    "onceward.ingest.insert": "onceward.hub.ingest.entries.insert",
    "onceward.ingest.inserted": "onceward.hub.ingest.entries.result",
    "onceward.ingest.payload": "onceward.hub.ingest.payload",
    "onceward.ingest.policy": "onceward.hub.ingest.entries.policy",
    "onceward.ingest.schema": "onceward.hub.ingest.entries.schema",
    "onceward.ingest.telegram": "onceward.hub.ingest.telegram",
    "onceward.open": "onceward.ledger.open",
    "onceward.run": "onceward.ledger.run",
    "onceward.store.flight": "onceward.store.dispatch.inflight",
    "onceward.tasks": "onceward.hub.tasks",
    "onceward.tasks.attachment": "onceward.hub.tasks.attachment",
    "onceward.tasks.backfill": "onceward.hub.tasks.spec_backfill",
    "onceward.tasks.check": "onceward.hub.tasks.fsck",
    "onceward.tasks.collect": "onceward.hub.tasks.gc",
    "onceward.tasks.content": "onceward.hub.tasks.content",
    "onceward.tasks.fields": "onceward.hub.tasks.validation",
    "onceward.tasks.insert": "onceward.hub.tasks.insert",
    "onceward.tasks.task": "onceward.hub.tasks.task",
    "onceward.tasks.upload": "onceward.hub.tasks.upload",
    "onceward.terms": "onceward.ledger.terms",
    "onceward.topics": "onceward.hub.topics",
    "onceward.topics.attachment": "onceward.hub.topics.attachment",
    "onceward.topics.identity": "onceward.hub.topics.identity",
    "onceward.topics.message": "onceward.hub.topics.message",
    "onceward.topics.topic": "onceward.hub.topics.topic",
    "onceward.turns.artifacts": "onceward.hub.turns.artifacts.artifacts",
    "onceward.turns.beat": "onceward.hub.turns.compat.beat",
    "onceward.turns.cache": "onceward.hub.turns.compat.cache",
    "onceward.turns.brain": "onceward.hub.turns.execution.brain",
    "onceward.turns.engine": "onceward.hub.turns.execution.engine",
    "onceward.turns.call": "onceward.tools.call",
    "onceward.turns.decision": "onceward.hub.turns.model.decision",
    "onceward.turns.envelope": "onceward.tools.envelope",
    "onceward.turns.message": "onceward.hub.turns.model.message",
    "onceward.turns.observe": "onceward.tools.observer",
    "onceward.turns.receive": "onceward.hub.turns.intake.receive",
    "onceward.turns.stream": "onceward.hub.turns.model.stream",
    "onceward.turns.tool": "onceward.tools.tool",
    "onceward.turns.turn": "onceward.hub.turns.model.turn",
}

# Old class: new class, each as a stored value names it.
RENAMED: dict[str, str] = {
    "onceward.blobs.archive.tally:Tally": "onceward.hub.archives.limits:ArchiveTally",
    "onceward.blobs.s3:Place": "onceward.hub.blobs.s3:S3Location",
    "onceward.db.page:Page": "onceward.hub.db.page:RowPage",
    "onceward.events.paging:Page": "onceward.hub.events.paging:LogPage",
    "onceward.ingest.backfill.normalizing:Normalizing": "onceward.hub.ingest.backfill.normalizer:Normalizer",
    "onceward.ingest.batch:Outcome": "onceward.hub.ingest.entries.batch:EntryOutcome",
    "onceward.ingest.decide:Decision": "onceward.hub.ingest.entries.decision:EntryDecision",
    "onceward.ingest.email.body:Body": "onceward.hub.ingest.email.body:MailBody",
    "onceward.ingest.email.classify:Kind": "onceward.hub.ingest.email.classify:MailKind",
    "onceward.ingest.email.entry:Letter": "onceward.hub.ingest.email.entry:MailMessage",
    "onceward.ingest.email.entry:Said": "onceward.hub.ingest.email.entry:MailOverrides",
    "onceward.ingest.email.mail:Part": "onceward.hub.ingest.email.parser:MailPart",
    "onceward.ingest.keys:Keys": "onceward.hub.ingest.normalize.keys:EntryKeys",
    "onceward.ingest.schema:Schema": "onceward.hub.ingest.entries.schema:EntrySchema",
    "onceward.ingest.table:Looked": "onceward.hub.ingest.entries.table:LookupResult",
    "onceward.ingest.telegram.entry:Message": "onceward.hub.ingest.telegram.entry:TelegramMessage",
    "onceward.ingest.telegram.entry:Said": "onceward.hub.ingest.telegram.entry:TelegramOverrides",
    "onceward.tasks.attachment:Attachment": "onceward.hub.tasks.attachment:TaskAttachment",
    "onceward.turns.engine:Ending": "onceward.hub.turns.execution.engine:RunStatus",
    "onceward.turns.engine:Ran": "onceward.hub.turns.execution.engine:RunResult",
    "onceward.tasks.fields:NewAttachment": "onceward.hub.tasks.validation:NewTaskAttachment",
}

_FIRST_MODULE = {new: old for old, new in MOVED.items()}
_FIRST_CLASS = {new: old for old, new in RENAMED.items()}


def first_class_name(module: str, qualname: str) -> str:
    """Return the first name that a class had, under which it is stored and fingerprinted."""
    name = f"{module}:{qualname}"
    return _FIRST_CLASS.get(name) or f"{_FIRST_MODULE.get(module, module)}:{qualname}"


def current_name(name: str) -> str:
    """Return the current name of a module. The modules of a moved package have moved with it."""
    if name in MOVED:
        return MOVED[name]
    parent, _, child = name.rpartition(".")
    package = current_name(parent) if parent else ""
    return name if package == parent else f"{package}.{child}"
