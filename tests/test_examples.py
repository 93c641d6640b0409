"""The examples run unchanged, and do what they say."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.forked_python import forked_python
from tests.hub.hub_process import running_hub
from tests.servers.postgres import PostgresServer
from tests.servers.s3 import S3Server

EXAMPLES = Path(__file__).parent.parent / "examples"


# Imported by several examples and by the processes that they start.
IMPORTS = (
    "onceward.hub.app",
    "onceward.hub.server.serve",
    "onceward.cli.commands.serve",
    "onceward.cli.commands.mcp",
    "mcp.server",
    "langchain",
    "langgraph.graph",
    "pydantic_ai",
    "agents",
)


def output_of(name: str, folder: Path, **environment: str) -> list[str]:
    """Run a file, or the `__main__.py` of a folder."""
    command = [forked_python(*IMPORTS), str(EXAMPLES / name)]
    env = {**os.environ, **environment}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_every_example_is_in_the_list_with_its_command_and_in_a_test() -> None:
    listed = set(re.findall(r"(?:examples[/.]|, `)(\w+(?:\.py)?)", (EXAMPLES / "README.md").read_text("utf-8")))
    there = {path.name for path in EXAMPLES.iterdir() if path.suffix == ".py" or (path / "__main__.py").exists()}
    tested = Path(__file__).read_text("utf-8")

    assert listed == there
    families = ("http_", "agent_")  # whose names the tests put together
    assert [name for name in there if name not in tested and not name.startswith(families)] == []


def test_quickstart_charges_once(tmp_path: Path) -> None:
    printed = output_of("quickstart.py", tmp_path)

    assert printed[0].removeprefix("first:") == printed[1].removeprefix("again:")
    assert printed[2] == "the provider was called 1 time"
    assert printed[3].startswith("refused:")


def test_exactly_once_leaves_one_row(tmp_path: Path) -> None:
    printed = output_of("exactly_once.py", tmp_path)

    assert printed == ["first: {'paid': '42'}", "again: {'paid': '42'}", "rows:  1"]


def test_in_doubt_is_resolved_by_evidence(tmp_path: Path) -> None:
    printed = output_of("in_doubt.py", tmp_path)

    assert printed[0] == "first:  the provider did not respond"
    assert printed[1].startswith("again:  it is unknown whether")
    assert printed[2] == "asked:  message-1"


def test_a_server_behind_the_proxy_gets_one_call(tmp_path: Path) -> None:
    paid = "{'order': '42', 'paid_back': 10}"

    printed = [line.partition(":") for line in output_of("mcp_proxy", tmp_path)]

    assert {name: text.strip() for name, _, text in printed} == {
        "first": f"done {paid}",
        "again": f"replayed {paid}",
        "other amount": "refused key-reused",
        "not listed": "refused not-found",
        "new server": f"replayed {paid}",
        "refunds": "1",
    }


def test_a_lost_submit_is_found_by_polling(tmp_path: Path) -> None:
    assert output_of("reconcile.py", tmp_path) == [
        "first: RemoteProtocolError",
        "still running: InDoubt",
        "done: {'state': 'done'}",
        "batches: 1",
    ]


def test_an_mcp_client_gets_one_refund_for_each_key(tmp_path: Path) -> None:
    paid = "{'order': '42', 'paid_back': 10}"

    printed = [line.partition(":") for line in output_of("mcp_server", tmp_path)]

    assert {name: text.strip() for name, _, text in printed} == {
        "first": f"done {paid}",
        "again": f"replayed {paid}",
        "with a key": f"done {paid}",
        "its retry": f"replayed {paid}",
        "other amount": "refused None key-reused",
        "new server": f"replayed {paid}",
        "refunds": "2",
    }


@pytest.mark.parametrize("example", ["agent_langchain.py", "pydantic_ai_agent", "agent_openai_agents.py"])
def test_an_agent_that_plans_a_call_again_pays_back_once(example: str, tmp_path: Path) -> None:
    assert output_of(example, tmp_path) == [
        "call-1: done {'order': '42', 'paid_back': 10}",
        "call-2: replayed {'order': '42', 'paid_back': 10}",
        "call-3: refused None key-reused",
        "refunds: 1",
    ]


def test_a_langgraph_agent_on_a_hub_is_interrupted_in_three_ways_and_refunds_each_order_once(tmp_path: Path) -> None:
    assert output_of("langgraph_agent", tmp_path) == [
        "",
        "customer:  Refund order 1234",
        "desk:      Let me see.",
        "",
        "customer:  No wait, order 1243",
        "hub:       the running turn is superseded; a new turn has both messages",
        "effects:   none",
        "desk:      Refunded: 1243.",
        "effects:   refund 1243: done",
        "",
        "customer:  Refund order 1250",
        "desk:      Let me see.",
        "",
        "customer:  And also order 1251",
        "hub:       absorbed; the running turn starts over with both messages",
        "desk:      Refunded: 1250, 1251.",
        "effects:   refund 1250: done, refund 1251: done",
        "",
        "customer:  Refund order 1260",
        "bank:      a refund has begun",
        "",
        "customer:  Stop, not that one",
        "hub:       queued in a turn of its own: the running turn has reached its commit point",
        "desk:      Refunded: 1260.",
        "effects:   refund 1260: done",
        "desk:      Let me see. Nothing is left to refund.",
        "effects:   none",
        "",
        "refunds:   1243, 1250, 1251, 1260",
    ]


def test_the_program_of_the_readme_prints_the_shown_output_of_its_second_run(tmp_path: Path) -> None:
    readme = (EXAMPLES.parent / "README.md").read_text("utf-8")
    promised = re.search(r"second time, and it prints `(.+?)` where the first run printed `(.+?)`", readme)
    assert promised is not None
    program = readme[: promised.start()].rpartition("```python\n")[2].partition("```\n")[0]

    runs = [
        subprocess.run(
            [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
        )
        for _ in range(2)
    ]

    first, second = [run.stdout.splitlines() for run in runs]
    assert len(first) == len(second) == 3
    changed = [(now, before) for now, before in zip(second, first, strict=True) if now != before]
    assert changed == [(promised[1], promised[2])]


@pytest.mark.parametrize(
    "example",
    ["django_orm", "fastapi_payments", "flask_payments", "http_litestar.py", "http_quart.py", "http_starlette.py"],
)
def test_a_retry_gets_the_first_response_under_every_framework(example: str, tmp_path: Path) -> None:
    first, again, charged = output_of(example, tmp_path)

    assert first.startswith("first: 201 {")
    assert first.endswith("} fresh")
    assert again == first.replace("first:", "again:").replace("} fresh", "} replayed")
    assert charged == "charged: 1"


def test_a_client_on_a_bad_connection_pays_once_for_each_payment(tmp_path: Path) -> None:
    assert output_of("client.py", tmp_path) == [
        "tries: 2",
        "response: 201 {'payment': 1, 'amount': 10} replayed",
        "first life: {'payment': 2, 'amount': 20}",
        "second life: {'payment': 2, 'amount': 20}",
        "unfinished: []",
        "charged: [10, 20]",
    ]


def test_a_webhook_is_handled_once_and_a_forged_one_never(tmp_path: Path) -> None:
    assert output_of("stripe_webhooks", tmp_path) == [
        "first: 200 {'booked': 'evt_1'}",
        "again: 200 {'booked': 'evt_1'}",
        "two at once: 200 {'booked': 'evt_2'} 200 {'booked': 'evt_2'}",
        "forged: 400 {'error': 'the signature is not valid'}",
        "booked: ['evt_1', 'evt_2']",
    ]


def test_updates_that_telegram_delivers_again_are_stored_once(tmp_path: Path) -> None:
    assert output_of("telegram_ingest", tmp_path) == [
        "a note: inserted",
        "a link: inserted",
        "its edit: updated",
        "the note again: updated",
        "the link again: skipped",
        "the same page: skipped",
        "stored: ['Buy green tea', 'https://example.com/tea?utm_source=bot']",
    ]


def test_a_mail_in_two_archives_is_imported_once(tmp_path: Path) -> None:
    assert output_of("mail_backfill", tmp_path) == ["first run:  inserted 4, skipped 1", "second run: skipped 5"]


def test_a_file_that_one_hub_attached_is_attached_at_the_other(
    postgres_server: PostgresServer, s3_server: S3Server, tmp_path: Path
) -> None:
    stores = {"DATABASE": postgres_server.create_database(), "BLOBS": s3_server.fresh_url()}

    assert output_of("hub_postgres_s3", tmp_path, **stores, **s3_server.environ) == [
        "first hub:  1 attachment, content same",
        "second hub: 1 attachment, content same",
        "the same attachment: True",
    ]


def test_topics_on_a_hub_have_no_duplicates(tmp_path: Path) -> None:
    assert output_of("hub_topics.py", tmp_path) == [
        "first life: message of event 2",
        "second life: message of event 2",
        "attached Rocks",
        "already there: Rocks",
        "event: 1 topic.created",
        "event: 2 topic.message_added",
        "event: 3 topic.attachment_added",
        "continue after: 3",
    ]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("data")
    # Port 0: the system chooses, and the log names the port. A port found free earlier may be taken by then.
    command = [forked_python(*IMPORTS), "-m", "examples.demo", "fastapi", "--port", "0", "--data-dir", str(folder)]
    with subprocess.Popen(command, stdout=-1, stderr=-1, text=True, cwd=EXAMPLES.parent) as process:
        assert process.stderr is not None
        found = None
        while found is None:
            line = process.stderr.readline()
            assert line, "the demo ended before it listened"
            found = re.search(r"running on (http://127\.0\.0\.1:\d+)", line)
        yield found[1]
        process.terminate()
        _, log = process.communicate(timeout=20)
    assert "Finished server process" in log, "SIGTERM ends it cleanly"


def post(url: str, key: str, content: object) -> tuple[int, dict[str, object]]:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    headers = {"Idempotency-Key": key, "Authorization": "Bearer ada-token", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/api/stories", data, headers)  # noqa: S310  # our own server
    try:
        with urllib.request.urlopen(request, timeout=20) as response:  # noqa: S310
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


@pytest.mark.parametrize(
    "content", [b"not json", {"title": "x"}, {"title": "", "text": "x"}, {"title": 1, "text": "x"}, b"[" * 70_000]
)
def test_the_demo_answers_bad_input_clearly(demo: str, content: object) -> None:
    code, answer = post(demo, f"bad-{content!r:.20}".replace(" ", "_"), content)

    assert code == 400
    assert answer["detail"]


def test_the_demo_refuses_another_story_under_the_same_key(demo: str) -> None:
    post(demo, "told", {"title": "one", "text": "x"})

    code, answer = post(demo, "told", {"title": "two", "text": "x"})

    assert (code, answer["code"]) == (422, "unprocessable")


def command_in(page: Path) -> urllib.request.Request:
    """Return the request that the `curl` command in the guide sends."""
    text = page.read_text("utf-8").replace("\\\\\n", "\\\n")
    found = re.search(r"curl [^\n]*http://127\.0\.0\.1:8787(?:[^\n]*\\\n)*[^\n]*", text)
    assert found is not None
    words = iter(shlex.split(found[0].replace("\\\n", " "))[1:])
    url, data, headers = "", b"", {}
    for word in words:
        match word:
            case "-H":
                name, value = next(words).split(": ", 1)
                headers[name] = value
            case "-d":
                data = next(words).encode()
            case "-X":
                assert next(words) == "POST"
            case _:
                url = word
    return urllib.request.Request(url, data, headers)  # noqa: S310  # our own server


def check_that_a_retry_replays(request: urllib.request.Request, url: str) -> None:
    """Run the command as a user would paste it, except for the port; and run it a second time."""
    request.full_url = request.full_url.replace("http://127.0.0.1:8787", url)
    answers = []
    for _ in range(2):
        with urllib.request.urlopen(request, timeout=20) as response:  # noqa: S310
            answers.append((response.status, response.read(), response.headers.get("Idempotent-Replayed")))

    assert answers[0][0] in {200, 201}
    assert answers[0][:2] == answers[1][:2]
    assert answers[1][2] == "true"


@pytest.fixture(scope="module")
def hub_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_hub(data_dir=tmp_path_factory.mktemp("hub") / "data") as hub:
        yield hub.url


def test_the_command_in_the_readme_does_what_it_says(hub_url: str) -> None:
    check_that_a_retry_replays(command_in(EXAMPLES.parent / "README.md"), hub_url)


def test_the_command_in_the_demo_does_what_it_says(demo: str) -> None:
    check_that_a_retry_replays(command_in(EXAMPLES / "demo" / "__main__.py"), demo)
