"""The console in a real Chromium: every page, with data and without, and the tasks of an operator.

`make console-screenshots` also saves a picture of every page, light and dark, on a phone and on a desktop.
"""

from __future__ import annotations

import base64
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

import httpx
import pytest
from playwright.sync_api import Browser, Page, Route, ViewportSize, expect
from tests.hub.console.browser_window import DESKTOP, PHONE, Window, window
from tests.hub.console.sample_claims import HOSTILE, begin, doubt, settle
from tests.hub.console.shop import Shop, WaitingClient
from tests.hub.hub_process import RunningHub, running_hub
from tests.servers.chromium import running_chromium
from tests.waiting import until

from onceward.http.client import Intents
from onceward.hub.config import data_folder
from onceward.hub.config.config import Config, HubSettings
from onceward.hub.console.visit import SECTIONS
from onceward.hub.security import tokens
from onceward.ledger import Ledger

TELEGRAM = '{"text": "Buy milk, and bread", "source": {"chat_id": 7, "message_id": 42}}'
LINK = '{"text": "https://example.com/article?utm_source=x", "source": {"chat_id": 7, "message_id": 43}}'
MAIL = (
    "From: Sender <news@example.com>\r\nSubject: Weekly update\r\nMessage-ID: <1@example.com>\r\n"
    "Date: Tue, 17 Feb 2026 10:00:00 +0000\r\nList-Id: news\r\n\r\nAll the news of this week.\r\n"
)
CLICKS_MAX = 4
# One pixel.
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)
# Far more than it takes, also on a busy machine.
expect.set_options(timeout=30_000)
PICTURES = os.environ.get("ONCEWARD_SCREENSHOTS", "")
MAIN, MORE = (
    {one.title.lower().replace(" ", "-"): one.path for one in SECTIONS if one.is_more is is_more}
    for is_more in (False, True)
)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    return Config(HubSettings(data_dir=str(tmp_path_factory.mktemp("console") / "data")))


@pytest.fixture(scope="module")
def hub(config: Config) -> Iterator[RunningHub]:
    with running_hub(data_dir=Path(config.hub.data_dir), args=["--brain", "tests.hub.console.slow_desk:brain"]) as hub:
        yield hub


@pytest.fixture(scope="module")
def ledger(config: Config, hub: RunningHub) -> Iterator[Ledger]:  # noqa: ARG001  # it creates the file
    with data_folder.ledger(config) as ledger:
        yield ledger


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_chromium() as browser:
        yield browser


def save_screenshot(opened: Window, name: str) -> None:
    if PICTURES:
        Path(PICTURES).mkdir(parents=True, exist_ok=True)
        opened.page.screenshot(path=f"{PICTURES}/{name}.png", full_page=True)


# A size, a theme and a window.
View: TypeAlias = tuple[str, Literal["light", "dark"], ViewportSize]
LIGHT: View = ("desktop", "light", DESKTOP)
DARK: View = ("phone", "dark", PHONE)
ALL_VIEWS: tuple[View, ...] = (DARK, LIGHT, ("desktop", "dark", DESKTOP), ("phone", "light", PHONE))


# The rules whose result depends on the theme and on the size of the window. The others see the same document.
VIEW_RULES = "color-contrast link-in-text-block target-size scrollable-region-focusable"


def check_pages(browser: Browser, hub: RunningHub, paths: dict[str, str], prefix: str, views: Sequence[View]) -> None:
    """Load each page once. Check all rules in its first view, and in the others those that depend on the view."""
    # With motion, colors would still change while the rules for contrast run.
    with window(browser, hub, reduced_motion="reduce") as opened:
        for name, path in paths.items():
            for number, (size, scheme, viewport) in enumerate(ALL_VIEWS if PICTURES else views):
                opened.page.set_viewport_size(viewport)
                opened.page.emulate_media(color_scheme=scheme)
                if number == 0:
                    opened.open(path)
                save_screenshot(opened, f"{prefix}{name}-{size}-{scheme}")
                opened.check(f"{prefix}{name} {size} {scheme}", VIEW_RULES if number else "")


def test_every_page_of_an_empty_hub_is_accessible_and_within_its_policy(browser: Browser, hub: RunningHub) -> None:
    check_pages(
        browser, hub, {section.title.lower().replace(" ", "-"): section.path for section in SECTIONS}, "empty-", [DARK]
    )


@pytest.fixture(scope="module")
def sample_paths(hub: RunningHub, ledger: Ledger) -> dict[str, str]:
    """Operations in every state, turns that were superseded, events; gives the paths of single pages."""
    with httpx.Client(base_url=hub.url) as api:
        api.post("/v1/tasks", json={"id": "t0", "title": "Paint the shed"})
        files = {"content": ("plan.md", b"# The shed\n\nGreen, with a *white* door.\n")}
        fields = {"kind": "spec", "labels": ["draft", "green"]}
        plan = api.post("/v1/tasks/t0/attachments", data=fields, files=files).json()["id"]
        files = {"content": (f"{HOSTILE.replace('/', '-')}.png", PNG)}
        fields = {"kind": "diagram", "title": HOSTILE, "labels": "<script>alert(1)</script>"}
        image = api.post("/v1/tasks/t0/attachments", data=fields, files=files).json()["id"]
        link = {"kind": "spec", "external_url": f"https://example.com/{'a-long-path/' * 9}"}
        api.post("/v1/tasks/t0/attachments/link", json=link)
        for title in ("Order 17", "Order 17", "Order 18"):
            api.post("/api/v1/topics", json={"title": title}, headers={"Idempotency-Key": "topic-17"})
        for kind, message in (("telegram", TELEGRAM), ("telegram", LINK), ("email", MAIL)):
            media = {"Content-Type": "message/rfc822" if kind == "email" else "application/json"}
            entry = api.post(f"/normalize/{kind}", content=message, headers=media).json()
            api.post("/db/insert", json=entry)
        api.post("/db/insert", json={"source": HOSTILE, "content_type": HOSTILE, "title": HOSTILE})
        chat = {"customer_id": "grace", "session_key": "s-1"}
        first = api.post("/chat", json={"message": "Refund my order", **chat}).json()["turn_id"]
        until(lambda: api.get(f"/turns/{first}").json()["status"] == "processing")
        wait = {"Prefer": "wait=10"}
        second = api.post("/chat", json={"message": "12345, please", **chat}, headers=wait).json()["turn_id"]
    for number in range(6):
        settle(ledger, f"charge:order-{number}", body=b'{"charge": "ch_3PzK"}')
    running = begin(ledger, "import-2026-11", "imports", endpoint="")
    ledger.blocking.renew(running, lease_seconds=300.0)
    silent = begin(ledger, "export-2026-10", "exports", endpoint="")
    ledger.blocking.lapse(silent)
    failed = begin(ledger, "mail-88", "http:user:grace", endpoint="POST /mails")
    ledger.blocking.fail(failed, "SMTP 451: try again later")
    claim = doubt(ledger, "pay-2026-0017", note="the connection to the bank was lost after the request was sent")
    ledger.blocking.mark(claim, 1, '{"payment_intent": "pi_3PzK8e", "amount": 4990, "currency": "eur"}')
    doubt(ledger, HOSTILE.replace(" ", "_"), "http:user:mallory", endpoint=f"POST /{HOSTILE}", note=HOSTILE)
    doubt(ledger, "refund:order:991:turn_group:grp_9", "tool:acme:ada", endpoint="", note="holder disappeared")
    return {
        "operation-in-doubt": "/console/operation?scope=http:user:ada&key=pay-2026-0017",
        "operation-completed": "/console/operation?scope=http:user:local&key=topic-17",
        "resolve-happened": "/console/in-doubt/resolve?scope=http:user:ada&key=pay-2026-0017&verdict=committed",
        "resolve-not": "/console/in-doubt/resolve?scope=http:user:ada&key=pay-2026-0017&verdict=not_committed",
        "plan": "/console/in-doubt/bulk?verdict=not_committed",
        "turn": f"/console/turns/{first}",
        "turn-answered": f"/console/turns/{second}",
        "task": "/console/tasks/t0",
        "task-delete": "/console/tasks/t0/delete",
        "attachment-text": f"/console/attachments/{plan}",
        "attachment-image": f"/console/attachments/{image}",
        "attachment-remove": f"/console/attachments/{image}/remove",
        "message": "/console/ingest/message",
        "policy": "/console/ingest/policy?policy_key=telegram_thought_v1",
        "policy-new": "/console/ingest/policy",
        "not-found": "/console/operation?scope=charges&key=none",
    }


def test_every_page_with_data_is_accessible_and_within_its_policy(
    browser: Browser, hub: RunningHub, sample_paths: dict[str, str]
) -> None:
    # For the guide, without the hostile names.
    guide = {"guide-in-doubt": "/console/in-doubt?q=user:ada"} if PICTURES else {}

    check_pages(browser, hub, {**MAIN, **guide, **sample_paths, **MORE}, "", [DARK, LIGHT])


@pytest.mark.usefixtures("sample_paths")
def test_a_payment_in_doubt_is_resolved_and_the_waiting_client_gets_the_answer(
    browser: Browser, hub: RunningHub, ledger: Ledger, tmp_path: Path
) -> None:
    """The client is another thread with a socket of its own. Nothing tells it that somebody has decided."""
    with (
        Shop(ledger) as shop,
        WaitingClient(shop.url, Intents(tmp_path / "intents.db"), "order-21").running() as client,
        window(browser, hub, java_script_enabled=False) as opened,
    ):
        assert client.asked.wait(30.0)
        opened.open()
        opened.click("In doubt", exact=False)
        opened.page.get_by_role("article").filter(has_text="POST /pay/order-21").get_by_text("It happened").click()
        opened.page.get_by_label("Status").fill("201")
        opened.page.get_by_label("Body").fill('{"charge":"ch_21"}')
        opened.page.get_by_label("How do you know?").fill("ch_21 is in the bank's journal")
        before = len(client.responses)
        opened.click("Record that it happened", "button")
        expect(opened.page.get_by_role("status")).to_contain_text("Recorded: it happened")
        client.join(30.0)
        *refused, answer = client.responses

    assert {response.json()["code"] for response in refused if response.status_code == 409} == {"in-doubt"}
    assert len(refused) >= before > 0
    assert (answer.status_code, answer.json(), shop.charged) == (201, {"charge": "ch_21"}, ["order-21"])
    assert answer.headers["Idempotent-Replayed"] == "true"
    assert opened.clicks + 1 <= CLICKS_MAX


@pytest.mark.usefixtures("sample_paths")
def test_seventeen_doubts_are_resolved_with_a_filter(browser: Browser, hub: RunningHub, ledger: Ledger) -> None:
    for number in range(17):
        doubt(ledger, f"wire-{number}", "http:user:bulk", endpoint="POST /wires")
    with window(browser, hub) as opened:
        opened.open()
        opened.click("In doubt", exact=False)
        opened.await_script("In doubt")
        opened.page.keyboard.press("/")
        opened.page.keyboard.type("endpoint:/wires")
        opened.page.keyboard.press("Enter")
        opened.click("Did not happen", exact=False)
        expect(opened.page.get_by_role("heading", name="17 match")).to_be_visible()
        opened.clicks += 1
        opened.page.get_by_label("The provider says so").check()
        opened.page.get_by_label("How do you know?").fill("the bank has rejected the file")
        opened.click("Record that they did not happen", "button")
        expect(opened.page.get_by_role("heading", name="17 of 17 recorded")).to_be_visible()
        opened.check("results of a bulk action")
        save_screenshot(opened, "results-desktop-light")

    assert opened.clicks <= CLICKS_MAX


@pytest.mark.usefixtures("sample_paths")
def test_a_pasted_message_shows_what_would_happen_to_it(browser: Browser, hub: RunningHub) -> None:
    with window(browser, hub, viewport=PHONE, color_scheme="dark", reduced_motion="reduce") as opened:
        opened.open()
        opened.page.locator("summary", has_text="More").click()
        opened.click("Ingest")
        opened.click("Paste a message", exact=False)
        opened.page.get_by_label("A Telegram message, as JSON").check()
        opened.page.get_by_label("Message", exact=True).fill(TELEGRAM.replace("milk", "oat milk"))
        opened.click("Show what would happen", "button")
        expect(opened.page.get_by_label("What would happen")).to_contain_text("It would be updated")
        opened.check("a pasted message")
        for size, scheme, viewport in (LIGHT, DARK) if PICTURES else ():
            opened.page.set_viewport_size(viewport)
            opened.page.emulate_media(color_scheme=scheme)
            save_screenshot(opened, f"message-updated-{size}-{scheme}")
        opened.page.get_by_label("Message", exact=True).fill("{")
        opened.click("Show what would happen", "button")
        expect(opened.page.get_by_role("status")).to_contain_text("Refused with 400")
        opened.check("a refused message")


@pytest.mark.usefixtures("sample_paths")
def test_the_reason_for_a_409_is_found_by_the_key(browser: Browser, hub: RunningHub) -> None:
    with window(browser, hub) as opened:
        opened.open()
        opened.click("Operations")
        opened.page.get_by_label("Filter").fill("key:pay-2026-0017")
        opened.page.keyboard.press("Enter")
        opened.click("pay-2026-0017")
        sentence = opened.page.get_by_label("What a retry gets")
        expect(sentence).to_contain_text("A retry now gets 409 “in-doubt”")
        expect(sentence).to_contain_text("nobody knows whether it happened")

    assert opened.clicks <= CLICKS_MAX


@pytest.mark.usefixtures("sample_paths")
def test_a_superseded_turn_leads_to_its_answer(browser: Browser, hub: RunningHub) -> None:
    with window(browser, hub) as opened:
        opened.open()
        opened.click("Turns")
        opened.clicks += 1
        opened.page.get_by_role("row").filter(has_text="superseded").get_by_role("link").first.click()
        opened.click("see the answer", exact=False)
        expect(opened.page.get_by_text("has been refunded")).to_be_visible()

    assert opened.clicks <= CLICKS_MAX


def test_an_upload_arrives_live_in_a_second_window_and_waits_while_paused(browser: Browser, hub: RunningHub) -> None:
    with window(browser, hub) as opened, httpx.Client(base_url=hub.url) as api:
        opened.open()
        opened.click("Events")
        expect(opened.page.locator("#live-state")).to_have_text("live")
        api.post("/v1/tasks", json={"id": "t1", "title": "Paint the shed"}).raise_for_status()
        files = {"content": ("plan.txt", b"Paint the shed in green.")}
        api.post("/v1/tasks/t1/attachments", data={"kind": "spec"}, files=files).raise_for_status()
        arrived = opened.page.locator("li.new .name", has_text="task.attachment_added")
        expect(arrived).to_have_count(1)
        opened.click("Pause", "button")
        resume_point = opened.page.locator("#resume").text_content()
        api.post("/v1/tasks/t1/attachments", data={"kind": "spec"}, files=files).raise_for_status()
        expect(opened.page.locator("#live-state")).to_contain_text("1 new")
        assert opened.page.locator("#resume").text_content() == resume_point
        opened.page.get_by_role("button", name="Resume").click()
        expect(arrived).to_have_count(2)
        assert opened.problems == []

    assert opened.clicks <= CLICKS_MAX


DROP = """files => {
  const data = new DataTransfer();
  for (const [name, text] of files) data.items.add(new File([text], name));
  const target = document.querySelector("main");
  for (const type of ["dragover", "drop"]) {
    target.dispatchEvent(new DragEvent(type, { bubbles: true, cancelable: true, dataTransfer: data }));
  }
}"""


def lose_response(route: Route) -> None:
    """Let the hub store the upload, and break the connection before the browser gets the response."""
    assert route.fetch().status == 201
    route.abort()


def test_dropped_files_are_attached_once_each_while_a_second_window_shows_them_live(
    browser: Browser, hub: RunningHub
) -> None:
    with window(browser, hub) as opened, window(browser, hub) as second, httpx.Client(base_url=hub.url) as api:
        api.post("/v1/tasks", json={"id": "t2", "title": "Build a fence"}).raise_for_status()
        second.open("/console/events?name=task.attachment_added")
        expect(second.page.locator("#live-state")).to_have_text("live")
        opened.open("/console/tasks/t2")
        opened.await_script("Build a fence")
        page = opened.page
        page.evaluate(DROP, [["plan.txt", "Green."], ["notes.txt", "Terra."]])
        page.get_by_label("Kind").first.select_option("diagnostic")
        page.get_by_label("Expires").first.fill("2001-01-01")
        opened.click("Attach 2 files", "button")
        expect(page.get_by_role("status")).to_contain_text("0 of 2 attached")
        expect(page.get_by_role("button", name="Try notes.txt again")).to_be_visible()
        opened.check("refused uploads")
        save_screenshot(opened, "uploads-refused-desktop-light")
        page.get_by_label("Expires").first.fill("")
        page.route("**/console/tasks/t2", lose_response, times=1)
        page.get_by_role("button", name="Try plan.txt again").click()
        expect(page.get_by_text("The connection broke.")).to_be_visible()
        page.get_by_role("button", name="Try plan.txt again").click()
        expect(page.get_by_role("status")).to_contain_text("1 of 2 attached")
        opened.click("Attach", "button", exact=True)
        expect(page.get_by_text("The files are attached.")).to_be_visible()
        expect(second.page.locator("li.new .name", has_text="task.attachment_added")).to_have_count(2)
        stored = api.get("/v1/tasks/t2/attachments").json()["attachments"]

        assert {(one["filename"], one["kind"]) for one in stored} == {
            ("plan.txt", "diagnostic"),
            ("notes.txt", "diagnostic"),
        }
        assert len(stored) == 2
        assert second.problems == []


@pytest.mark.usefixtures("sample_paths")
def test_a_file_is_attached_opened_and_removed_without_script(browser: Browser, hub: RunningHub) -> None:
    with window(browser, hub, java_script_enabled=False) as opened:
        opened.open("/console/tasks")
        opened.page.get_by_text("New task").click()
        opened.page.get_by_label("Title").fill("Dig a pond")
        opened.click("Create the task", "button")
        opened.page.get_by_label("File", exact=True).set_input_files(
            {"name": "pond.png", "mimeType": "image/png", "buffer": PNG}
        )
        opened.click("Attach", "button", exact=True)
        opened.click("pond.png")
        expect(opened.page.get_by_role("img", name="pond.png")).to_have_js_property("naturalWidth", 1)
        opened.click("Remove")
        opened.click("Remove the attachment", "button")
        expect(opened.page.get_by_text("The attachment is removed.")).to_be_visible()
        assert opened.problems == []


def test_the_keyboard_is_enough(browser: Browser, hub: RunningHub, sample_paths: dict[str, str]) -> None:
    assert sample_paths
    with window(browser, hub) as opened:
        opened.open()
        page = opened.page
        opened.await_script("Overview")
        page.keyboard.press("Tab")
        expect(page.get_by_text("Skip to the content")).to_be_focused()
        page.keyboard.press("?")
        expect(page.get_by_role("dialog")).to_be_visible()
        page.keyboard.press("Escape")
        page.keyboard.press("3")
        opened.await_script("Operations")
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="Timeline")).to_be_visible()

    assert opened.problems == []


def stream_after_revocation(opened: Window, config: Config, token_id: str) -> float:
    """Revoke the token of an open live stream; return the seconds until the page says that the stream has ended."""
    opened.open("/console/events")
    expect(opened.page.locator("#live-state")).to_have_text("live")
    with data_folder.opened(config) as database, database.write() as tx:
        tokens.revoke(tx, token_id)
    began = time.monotonic()
    expect(opened.page.locator("#live-state")).to_have_text("log in again")
    return time.monotonic() - began


def test_a_stream_ends_within_two_seconds_without_a_valid_token_and_a_login_follows(
    browser: Browser, hub: RunningHub, config: Config
) -> None:
    """From now on, the hub requires a token."""
    with window(browser, hub) as opened:
        opened.open("/console/events")
        expect(opened.page.locator("#live-state")).to_have_text("live")
        with data_folder.opened(config) as database, database.write() as tx:
            _, secret = tokens.create(tx, "ada", ["read"])
            boss_token, boss = tokens.create(tx, "boss", ["read", "admin"], valid_seconds=3600.0)
        began = time.monotonic()
        expect(opened.page.locator("#live-state")).to_have_text("log in again")
        seconds = time.monotonic() - began
        opened.open("/console/in-doubt")
        save_screenshot(opened, "login-desktop-light")
        opened.check("login")
        opened.page.get_by_label("Access token").fill(secret)
        opened.click("Log in", "button")
        expect(opened.page.get_by_role("heading", name="In doubt", level=1)).to_be_visible()
        assert opened.page.get_by_text("It happened").count() == 0
        save_screenshot(opened, "in-doubt-reader-desktop-light")
        opened.click("Log out", "button")
        opened.page.get_by_label("Access token").fill(boss)
        opened.click("Log in", "button")
        opened.page.set_viewport_size(PHONE)
        for name in ("tokens", "audit"):
            opened.open(f"/console/{name}")
            expect(opened.page.get_by_text("boss").first).to_be_attached()
            opened.check(f"{name} with rows")
            save_screenshot(opened, f"{name}-rows-phone-light")
        seconds_of_revocation = stream_after_revocation(opened, config, boss_token.token_id)
        opened.open("/console/events")
        expect(opened.page.get_by_role("heading", name="Log in")).to_be_visible()

    # Two seconds, and what a busy machine takes to show it.
    assert seconds < 2.0 + 5.0
    assert seconds_of_revocation < 2.0 + 5.0


# The API reference at /docs. These tests create a token, so they follow those of a hub without one.

TOPICS = "#post-api-v1-topics"


@pytest.fixture(scope="module")
def token(config: Config) -> str:
    with data_folder.opened(config) as database, database.write() as tx:
        return tokens.create(tx, "reader", ["read", "write"])[1]


def opened_form(opened: Window, anchor: str) -> Page:
    opened.open(f"/docs{anchor}")
    opened.page.locator(f"{anchor} .try > summary").click()
    return opened.page


def run(command: str, token: str, folder: Path) -> str:
    """Run a command of the page in a shell, with the token in its environment."""
    done = subprocess.run(
        ["sh", "-c", command],
        env={**os.environ, "TOKEN": token},
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_a_reader_sends_a_request_with_a_token_and_sees_the_replay_of_its_retry(
    browser: Browser, hub: RunningHub, token: str, tmp_path: Path
) -> None:
    with window(browser, hub, viewport=DESKTOP, color_scheme="light") as opened:
        page = opened_form(opened, TOPICS)
        form, outcome = page.locator(f"{TOPICS} form"), page.locator(f"{TOPICS} .outcome")
        page.get_by_role("button", name="Send", exact=True).click()
        expect(outcome).to_contain_text("401")
        page.get_by_label("Token").fill(token)
        form.locator("[data-body]").fill('{"title": "It\'s $HOME `17`"}')
        key = form.get_by_label("Idempotency-Key").input_value()
        page.get_by_role("button", name="Send", exact=True).click()
        expect(outcome).to_contain_text("201")
        new_key = form.get_by_label("Idempotency-Key").input_value()
        assert new_key != key
        expect(outcome).not_to_contain_text("Replayed")
        page.get_by_role("button", name="Send again with the same key").click()
        expect(outcome).to_contain_text("Idempotent-Replayed: true")
        expect(form.get_by_label("Idempotency-Key")).to_have_value(new_key)
        expect(form.locator(".answer")).to_contain_text("It's $HOME `17`")
        form.locator(".command summary").click()
        command = form.locator(".curl").text_content() or ""
        save_screenshot(opened, "reference-sent-desktop-light")
        page.get_by_label("Filter operations").fill("create a topic")
        opened.check("a sent request")
        assert token not in page.content().replace(f'value="{token}"', "")
        assert token not in page.url
        assert page.evaluate("[sessionStorage.length, localStorage.length, document.cookie]") == [0, 0, ""]
        page.reload()
        expect(page.get_by_label("Token")).to_have_value("")

    repeated = run(command, token, tmp_path)
    assert "idempotent-replayed: true" in repeated.lower()
    assert "It's $HOME `17`" in repeated


def test_an_upload_and_a_stream_work_on_a_phone(browser: Browser, hub: RunningHub, token: str, tmp_path: Path) -> None:
    file = tmp_path / 'it\'s "here".txt'
    file.write_text("Paint the shed.")
    with window(browser, hub, viewport=PHONE, color_scheme="dark") as opened:
        page = opened_form(opened, "#get-api-v1-events-stream")
        page.get_by_label("Token").fill(token)
        stream = page.locator("#get-api-v1-events-stream")
        stream.get_by_label("after").fill("0")
        stream.get_by_role("button", name="Send", exact=True).click()
        expect(stream.locator(".outcome")).to_contain_text("200")
        for anchor, field, value in (
            ("#post-v1-tasks", "", ""),
            ("#post-v1-tasks-task_id-attachments", "task_id", "t9"),
        ):
            page.evaluate(f"location.hash = '{anchor}'")
            page.locator(f"{anchor} .try > summary").click()
            form = page.locator(f"{anchor} form")
            if not field:
                form.locator("[data-body]").fill('{"id": "t9", "title": "Paint the shed"}')
            else:
                form.get_by_label(field).fill(value)
                form.locator("[type=file]").set_input_files(file)
                form.locator("[data-list]").first.fill("green\nshed")
            form.get_by_role("button", name="Send", exact=True).click()
            expect(form.locator(".outcome")).to_contain_text("201")
        expect(form.locator(".answer")).to_contain_text('"green"')
        form.locator(".command summary").click()
        command = form.locator(".curl").text_content() or ""
        expect(stream.locator(".answer")).to_contain_text("task.attachment_added")
        save_screenshot(opened, "reference-sent-phone-dark")
        stream.get_by_role("button", name="Stop").click()
        expect(stream.locator(".outcome")).to_contain_text("stopped")
        assert opened.problems == []

    assert "idempotent-replayed: true" in run(command, token, tmp_path).lower()


def test_the_reference_is_found_by_a_filter_and_readable_without_script(browser: Browser, hub: RunningHub) -> None:
    with window(browser, hub, viewport=PHONE, color_scheme="light") as opened:
        opened.open("/docs")
        opened.page.keyboard.press("/")
        opened.page.keyboard.type("post claims/resolve")
        expect(opened.page.get_by_text("1 operation", exact=True)).to_be_visible()
        expect(opened.page.locator(".operation:visible")).to_have_count(1)
        save_screenshot(opened, "reference-filter-phone-light")
    with window(browser, hub, viewport=DESKTOP, color_scheme="dark", java_script_enabled=False) as opened:
        opened.open("/docs")
        operation = opened.page.locator(TOPICS)
        operation.locator("> summary").click()
        expect(operation.get_by_text('curl -i -X POST "$HUB"/api/v1/topics')).to_be_visible()
        expect(opened.page.get_by_text(f"HUB={hub.url}")).to_be_visible()
        assert opened.page.get_by_role("button", name="Send", exact=True).count() == 0
        assert opened.page.get_by_text("Send a request", exact=True).and_(opened.page.locator(":visible")).count() == 0
        save_screenshot(opened, "reference-no-script-desktop-dark")
