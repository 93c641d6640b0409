"""Webhook endpoints for each sender: `/api/hooks/<sender>/<name>`. The plan of the trial is in the query (`plan=`), because
the body and the headers belong to the sender.
"""

from __future__ import annotations

from typing import Any

import flask
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from tests.http.behaviour.trials import TrialHandlers

from onceward.http import Rule, idempotency, webhooks

SENDERS = {
    "standard": webhooks.standard(),
    "stripe": webhooks.stripe(),
    "github": webhooks.github(),
    "slack": webhooks.slack(),
    "shopify": webhooks.shopify(),
    "twilio": webhooks.twilio(),
    "cloudevents": webhooks.cloudevents(),
}


def add_to_starlette(app: Starlette, trials: TrialHandlers) -> None:
    for sender, rule in SENDERS.items():
        app.router.routes.append(
            Route(f"/api/hooks/{sender}/{{name}}", _starlette_endpoint(trials, Rule(webhook=rule)), methods=["POST"])
        )


def _starlette_endpoint(trials: TrialHandlers, rule: Rule) -> Any:
    async def hook(request: Request) -> Response:
        assert await request.body(), "the sender's body reaches the handler"
        plan = request.query_params.get("plan", "{}").encode()
        reply = await run_in_threadpool(trials.run, request.path_params["name"], plan, idempotency(request))
        assert isinstance(reply.body, bytes)
        return Response(reply.body, reply.status, reply.headers, reply.media_type)

    return rule(hook)


def add_to_flask(app: flask.Flask, trials: TrialHandlers) -> None:
    def hook(name: str) -> flask.Response:
        assert flask.request.get_data(), "the sender's body reaches the handler"
        plan = flask.request.args.get("plan", "{}").encode()
        reply = trials.run(name, plan, idempotency(flask.request))
        return flask.Response(reply.body, reply.status, reply.headers, content_type=reply.media_type)

    for sender, rule in SENDERS.items():
        view = Rule(webhook=rule)(lambda name: hook(name))  # noqa: PLW0108  # every rule stands on a function of its own
        app.add_url_rule(f"/api/hooks/{sender}/<name>", f"hook {sender}", view, methods=["POST"])
