"""Webhooks of every sender, over real sockets: one effect per delivery, however often it is repeated."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import httpx
import pytest
from tests.backends import ONE_OF_EACH_KIND
from tests.http.behaviour.conftest import Stores, few
from tests.http.behaviour.deliveries import DELIVERIES, Delivery
from tests.http.behaviour.demo_server import BUSY, DemoServer, ForkServer, assert_problem, is_replay, new_name

# In the usual run, one server under ASGI and one under WSGI, each on another store.
PAIRS = few(
    "starlette sqlite",
    "flask redis",
    of=tuple(f"{one} {two}" for one in ("starlette", "flask") for two in ONE_OF_EACH_KIND),
)
# A store in memory does not survive its process.
LASTING_PAIRS = tuple(pair for pair in PAIRS if "memory" not in pair)
Get = Callable[[str], DemoServer]


@pytest.fixture(scope="module")
def hook_servers(fork_server: ForkServer, stores: Stores, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Get]:
    running: dict[str, DemoServer] = {}
    with ExitStack() as stack:

        def get(pair: str) -> DemoServer:
            if pair not in running:
                framework, store = pair.split()
                folder = tmp_path_factory.mktemp(f"hooks-{framework}-{store}")
                server = DemoServer(fork_server, folder, framework, stores.url(store, folder), hooks=True)
                running[pair] = stack.enter_context(closing(server))
            return running[pair]

        yield get


class Hooks:
    """The endpoint of one sender on one server."""

    def __init__(self, server: DemoServer, sender: str) -> None:
        self.server, self.sender = server, sender
        self.endpoint = new_name()

    def deliver(
        self, event: str, attempt: int = 0, text: str = "hello", *, plan: Any = None, endpoint: str = ""
    ) -> httpx.Response:
        return self.send(DELIVERIES[self.sender](event, attempt, text), plan, endpoint)

    def send(self, delivery: Delivery, plan: Any = None, endpoint: str = "") -> httpx.Response:
        path = f"/api/hooks/{self.sender}/{endpoint or self.endpoint}"
        query = {} if plan is None else {"plan": json.dumps(plan)}
        return self.server.client.post(path, content=delivery.body, headers=delivery.headers, params=query)

    @property
    def effects(self) -> int:
        return self.server.runs(self.endpoint)


each_server = pytest.mark.parametrize("pair", PAIRS)
each_lasting_server = pytest.mark.parametrize("pair", LASTING_PAIRS)
each_sender = pytest.mark.parametrize("sender", DELIVERIES)
# A key in the body and one in the headers; a restart of the server takes half a second.
few_senders = pytest.mark.parametrize("sender", few("stripe", "shopify", of=tuple(DELIVERIES)))


@pytest.fixture
def hooks(hook_servers: Get, pair: str, sender: str) -> Hooks:
    return Hooks(hook_servers(pair), sender)


@each_server
@each_sender
def test_a_redelivery_in_any_order_gets_the_first_response(hooks: Hooks) -> None:
    first, second = new_name(), new_name()
    responses = [hooks.deliver(event, attempt) for attempt, event in enumerate((first, second, second, first, second))]

    assert [response.status_code for response in responses] == [200] * 5
    assert [is_replay(response) for response in responses] == [False, False, True, True, True]
    assert responses[3].content == responses[0].content
    assert hooks.effects == 2


@each_server
@each_sender
def test_a_duplicate_gets_409_while_the_first_delivery_runs(hooks: Hooks) -> None:
    event, gate = new_name(), new_name()
    first = threading.Thread(target=hooks.deliver, args=(event,), kwargs={"plan": {"gate": gate}})
    first.start()
    hooks.server.gates.wait_until_reached(gate)

    during = hooks.deliver(event, 1)
    hooks.server.gates.open(gate)
    first.join()
    after = hooks.deliver(event, 2)

    assert_problem(during, *BUSY)
    assert int(during.headers["retry-after"]) >= 1
    assert is_replay(after)
    assert hooks.effects == 1


@each_server
@each_sender
def test_a_changed_body_under_the_same_id_is_logged_and_gets_the_recorded_response(hooks: Hooks) -> None:
    event = new_name()
    first = hooks.deliver(event)

    second = hooks.deliver(event, text="changed")

    assert is_replay(second)
    assert second.content == first.content
    assert hooks.effects == 1
    log = hooks.server.wait_for_log(f"/api/hooks/{hooks.sender}/{hooks.endpoint}")
    assert "webhook_body_changed" in log


@each_server
@each_sender
def test_two_endpoints_each_get_the_delivery_once(hooks: Hooks) -> None:
    event, other = new_name(), new_name()

    for attempt in range(2):
        hooks.deliver(event, attempt)
        hooks.deliver(event, attempt, endpoint=other)

    assert (hooks.effects, hooks.server.runs(other)) == (1, 1)


@each_server
@each_sender
@pytest.mark.parametrize("status", few(400, 500, of=(302, 400, 401, 404, 409, 410, 429, 500, 503)))
def test_only_a_success_is_stored(hooks: Hooks, status: int) -> None:
    event = new_name()
    plan = {"turns": [{"status": status}, {}]}

    responses = [hooks.deliver(event, attempt, plan=plan) for attempt in range(3)]

    assert [response.status_code for response in responses] == [status, 200, 200]
    assert [is_replay(response) for response in responses] == [False, False, True]
    assert hooks.effects == 2


@each_server
@each_sender
def test_a_delivery_without_its_id_gets_400(hooks: Hooks) -> None:
    whole = DELIVERIES[hooks.sender](new_name(), 0, "hello")
    ids = ("webhook-id", "x-github-delivery", "x-shopify-event-id", "i-twilio-idempotency-token")
    headers = {name: value for name, value in whole.headers.items() if name.lower() not in ids}
    body = whole.body.replace(b'"id"', b'"no"').replace(b'"event_id"', b'"no"')

    assert_problem(hooks.send(Delivery(headers, body)), 400, "badRequest")
    assert hooks.effects == 0


@each_lasting_server
@few_senders
def test_after_a_crash_the_redelivery_runs(hooks: Hooks) -> None:
    event, gate = new_name(), new_name()
    server = hooks.server
    plan = {"turns": [{"gate": gate}, {}]}
    connection = threading.Thread(target=_deliver_to_a_server_that_dies, args=(hooks, event, plan))
    connection.start()
    server.gates.wait_until_reached(gate)
    server.kill()
    connection.join()
    server.start()

    again, last = hooks.deliver(event, 1, plan=plan), hooks.deliver(event, 2, plan=plan)

    assert (again.status_code, is_replay(again), is_replay(last)) == (200, False, True)
    assert again.json()["attempt"] == 2
    assert hooks.effects == 2, "the first run never ended"


def _deliver_to_a_server_that_dies(hooks: Hooks, event: str, plan: Any) -> None:
    with pytest.raises(httpx.TransportError):
        hooks.deliver(event, plan=plan)


@each_server
def test_slack_verifies_its_url_without_an_event_id(hook_servers: Get, pair: str) -> None:
    hooks = Hooks(hook_servers(pair), "slack")
    body = {"token": "Jhj5dZrVaK7ZwHHjRyZWjbDl", "challenge": "3eZbrw1aBm", "type": "url_verification"}
    request = Delivery({"Content-Type": "application/json"}, json.dumps(body).encode())

    assert [hooks.send(request).status_code for _ in range(2)] == [200, 200]
    assert hooks.effects == 2
    assert_problem(hooks.send(Delivery(request.headers, b'{"type":"event_callback"}')), 400, "badRequest")
    assert_problem(hooks.send(Delivery(request.headers, b"{}")), 400, "badRequest")


@each_server
def test_the_same_shopify_event_on_another_topic_is_another_delivery(hook_servers: Get, pair: str) -> None:
    hooks = Hooks(hook_servers(pair), "shopify")
    delivery = DELIVERIES["shopify"](new_name(), 0, "hello")
    other = Delivery({**delivery.headers, "X-Shopify-Topic": "orders/paid"}, delivery.body)

    for sent in (delivery, other, delivery, other):
        assert hooks.send(sent).status_code == 200

    assert hooks.effects == 2


@each_server
def test_a_batch_of_cloudevents_gets_400(hook_servers: Get, pair: str) -> None:
    hooks = Hooks(hook_servers(pair), "cloudevents")
    batch = Delivery({"Content-Type": "application/cloudevents-batch+json"}, b'[{"id":"1","source":"/a"}]')

    assert_problem(hooks.send(batch), 400, "badRequest")
    assert hooks.effects == 0
