"""One policy in a form: the same checks and the same line of the audit log as `PUT /policies`.

The form names the schema and the whole policy that it was made from. If either is another one by now, nothing is
written: two people who edit the same policy cannot undo each other's change without seeing it.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from starlette.responses import Response

from onceward.errors import Conflict, InvalidInput, NotFound
from onceward.hub.audit.actor import actor_of
from onceward.hub.audit.log import append
from onceward.hub.console.forms import Form
from onceward.hub.console.rendering import url
from onceward.hub.console.visit import Visit, see_other
from onceward.hub.db.engine import Transaction
from onceward.hub.db_threads import in_thread
from onceward.hub.ingest.entries.columns import UPDATABLE
from onceward.hub.ingest.entries.policy import Policy, list_policies, put_policy
from onceward.hub.ingest.entries.schema import active_schema

_NEW: dict[str, Any] = {
    "policy_key": "",
    "source": "",
    "content_type": "",
    "conflict_action": "update",
    "update_fields": None,
    "enabled": True,
    "secondary_role": "identity",
}


async def show(visit: Visit) -> Response:
    """Show the form of a policy, or an empty one."""
    policy_key = visit.query("policy_key")
    schema, policy = await _find(visit, policy_key)
    if policy_key and policy is None:
        raise NotFound(f"schema {schema} has no policy {policy_key[:128]!r}")
    return await _page(visit, schema, "" if policy is None else policy.text, _NEW if policy is None else asdict(policy))


async def change(visit: Visit, form: Form) -> Response:
    """Create or change a policy."""
    seen, schema_name, given = form.raw("seen"), form.text("schema"), _given(form)
    actor = actor_of(visit.request.scope, "console")

    def work(tx: Transaction) -> Policy:
        schema = active_schema(tx)
        if schema.name != schema_name:
            raise Conflict(
                f"test mode was switched: the active schema is {schema.name}, and the form is for another one"
            )
        policy = put_policy(tx, schema, seen=seen, **given)
        append(tx, actor, "policy.put", policy.policy_key, {"schema": schema.name, **given})
        return policy

    try:
        policy = await visit.hub.database.writer.run(work, ("policies",))
    except InvalidInput as error:
        problem = "; ".join(f"{name} {message}" for name, message in error.fields) or str(error)
        return await _page(visit, schema_name, seen, given, problem, 400)
    except Conflict as error:
        return await _page(visit, schema_name, seen, given, str(error), 409)
    return see_other(url("ingest", saved=policy.policy_key))


async def _find(visit: Visit, policy_key: str) -> tuple[str, Policy | None]:
    database = visit.hub.database

    def read() -> tuple[str, Policy | None]:
        with database.read() as tx:
            schema = active_schema(tx)
            found = (one for one in list_policies(tx, schema) if one.policy_key == policy_key)
            return schema.name, next(found, None)

    return await in_thread(read)


async def _page(
    visit: Visit, schema: str, seen: str, fields: dict[str, Any], problem: str = "", status: int = 200
) -> Response:
    return await visit.page(
        "policy.html",
        status,
        schema=schema,
        seen=seen,
        policy=fields,
        updatable=UPDATABLE,
        problem=problem,
        is_conflict=status == 409,  # noqa: PLR2004  # Conflict
    )


def _given(form: Form) -> dict[str, Any]:
    """Return the fields as `PUT /policies` takes them. A form always sends all of them."""
    return {
        "policy_key": form.text("policy_key"),
        "source": form.text("source"),
        "content_type": form.text("content_type"),
        "conflict_action": form.text("conflict_action"),
        "update_fields": list(form.all("update_field")) if form.text("updates") == "some" else None,
        "enabled": form.text("enabled") == "yes",
        "secondary_role": form.text("secondary_role"),
    }
