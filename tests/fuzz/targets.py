"""All targets by name, and the modules with a parser that gets no bytes from outside, or only checked ones."""

from __future__ import annotations

from tests.fuzz import http_targets, hub_targets, ingest_targets, key_targets
from tests.fuzz.engine import Target

TARGETS: dict[str, Target] = {
    one.name: one
    for one in (*http_targets.TARGETS, *key_targets.TARGETS, *hub_targets.TARGETS, *ingest_targets.TARGETS)
}

_OWN_ROWS = "parses JSON that this process or another hub has written to its own database"
_OWN_URL = "takes a URL apart that the settings have checked"
_CONVERTS = "only converts a value that Onceward itself has made"
NOT_EXTERNAL: dict[str, str] = {
    "cli.demo.bank": "the demo's own processes",
    "cli.demo.shop": "the demo's own processes",
    "cli.demo.story": "the demo's own processes",
    "cli.local.claims": _OWN_URL,
    "core.timestamp": _CONVERTS,
    "http.client.intents": "the application's own SQLite file",
    "http.openapi_refusals": _CONVERTS,
    "hub.audit.log": _OWN_ROWS,
    "hub.backup.backup": _OWN_URL,
    "hub.client.connection": "the URL that the program itself passes; httpx parses it",
    "hub.client.ingest": "fields of a response that `hub.client.responses` has parsed",
    "hub.console.pages.events": _OWN_ROWS,
    "hub.console.rendering": _CONVERTS,
    "hub.console.visit": _CONVERTS,
    "hub.doctor.machine": _OWN_URL,
    "hub.doctor.running_hub": "fields of a response that `hub.client.responses` has parsed",
    "hub.doctor.server": _OWN_URL,
    "hub.ingest.backfill.checkpoint": "a file that the backfill itself has written",
    "hub.ingest.entries.decision": _OWN_ROWS,
    "hub.ingest.entries.events": _OWN_ROWS,
    "hub.ingest.entries.policy": _OWN_ROWS,
    "hub.ingest.entries.result": _OWN_ROWS,
    "hub.ingest.entries.sqlite_table": _OWN_ROWS,
    "hub.ingest.newest": _OWN_ROWS,
    "hub.routes.progress": _CONVERTS,
    "hub.server.listener": "the address of the hub's own socket",
    "hub.tasks.attachment": _OWN_ROWS,
    "hub.topics.attachment": _OWN_ROWS,
    "hub.topics.message": _OWN_ROWS,
    "hub.topics.topic": _OWN_ROWS,
    "hub.turns.compat.cache": "an outcome that `core.value` decodes",
    "hub.turns.execution.beat_claims": "an outcome that `core.value` decodes",
    "hub.turns.execution.responses": _OWN_ROWS,
    "hub.turns.intake.new_turns": _OWN_ROWS,
    "hub.turns.model.transitions": _CONVERTS,
    "hub.turns.model.turn": _OWN_ROWS,
    "hub.turns.runners.hatchet": _CONVERTS,
    "hub.turns.runners.local": _CONVERTS,
    "integrations.openai_agents": _CONVERTS,
    "ledger.provider_key": _CONVERTS,
    "ledger.run": "an outcome that `core.value` decodes",
    "reconcile.stripe": "the URL that the program itself passes",
    "tools.tool": _CONVERTS,
}
