"""Bad input: one clear exception each, with a stable code, before anything is written or run."""

from __future__ import annotations

import asyncio
import functools
import math
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.backends import Servers

from onceward import Ledger, errors, open_ledger, open_store


@pytest.fixture
def ledger(store_url: str) -> Iterator[Ledger]:
    """A ledger that must be empty at the end of the test."""
    with open_ledger(store_url) as ledger:
        yield ledger
        assert ledger.blocking.scan().entries == ()


def never() -> None:
    raise AssertionError("the effect ran")


BAD_KEYS = {
    "empty": "", "too long": "k" * 1025, "too long in bytes": "é" * 513, "a number": 5, "nothing": None,
    "bytes": b"order", "with NUL": "a\x00b", "with half a character": "\ud800",
}  # fmt: skip
bad_keys = pytest.mark.parametrize("key", BAD_KEYS.values(), ids=BAD_KEYS)


@bad_keys
def test_bad_keys_are_refused(ledger: Ledger, key: Any) -> None:
    with pytest.raises(errors.InvalidKey) as blocking:
        ledger.blocking.run(key, never, effect="pure")
    with pytest.raises(errors.InvalidKey):
        asyncio.run(ledger.run(key, never, effect="pure"))

    assert blocking.value.code == "invalid-key"


BAD_SCOPES: dict[str, Any] = {"a number": 5, "bytes": b"x", "a list": ["a"], "nothing": None, "empty": ""}


@pytest.mark.parametrize("scope", BAD_SCOPES.values(), ids=BAD_SCOPES)
def test_bad_scopes_are_refused(ledger: Ledger, scope: Any) -> None:
    with pytest.raises(errors.InvalidKey):
        ledger.blocking.begin(scope, "key", repeatable=True)
    with pytest.raises(errors.InvalidKey):
        ledger.blocking.read(scope, "key")


def test_bad_labels_and_pages_are_refused(ledger: Ledger) -> None:
    blocking: Any = ledger.blocking
    labels: list[dict[str, Any]] = [{"user_id": None}, {"endpoint": 5}]
    for label in labels:
        with pytest.raises(errors.InvalidKey, match="must be text"):
            blocking.begin("s", "key", repeatable=True, **label)
    pages: list[dict[str, Any]] = [{"limit": "a"}, {"limit": True}, {"after": 5}]
    for page in pages:
        with pytest.raises(errors.InvalidOption):
            blocking.scan(**page)
    with pytest.raises(errors.InvalidOption):
        blocking.purge("a")


@pytest.mark.parametrize("undo", [max, dict.update])
def test_an_undo_with_unknown_arguments_is_refused_at_declaration(undo: Any) -> None:
    with open_ledger("memory:") as ledger, pytest.raises(errors.InvalidOption, match="undo="):
        ledger.once(key="k", effect="compensatable", undo=undo)(never)


def yields() -> Iterator[None]:
    never()
    yield


async def yields_later() -> Any:
    never()
    yield


def takes_one(_argument: int) -> None:
    never()


def takes_one_by_name(*, _argument: int) -> None:
    never()


class Taker:
    def one(self, _argument: int) -> None:
        never()


BAD_EFFECTS: dict[str, tuple[Any, str]] = {
    "a number": (3, "not 3"), "nothing": (None, "not None"), "a generator": (yields, "is a generator"),
    "an async generator": (yields_later, "is a generator"), "with an argument": (takes_one, "needs arguments"),
    "with a name": (takes_one_by_name, "needs arguments"), "a method with an argument": (Taker().one, "needs arguments"),
}  # fmt: skip


@pytest.mark.parametrize(("effect", "why"), BAD_EFFECTS.values(), ids=BAD_EFFECTS)
def test_bad_effects_are_refused(ledger: Ledger, effect: Any, why: str) -> None:
    """Such an effect cannot have done anything, so nothing may be in doubt."""
    with pytest.raises(errors.InvalidOption, match=why):
        ledger.blocking.run("k", effect, effect="irreversible")
    with pytest.raises(errors.InvalidOption, match=why):
        asyncio.run(ledger.run("k", effect, effect="irreversible"))


def test_an_effect_that_was_already_called_is_refused(ledger: Ledger) -> None:
    async def send() -> None:
        never()

    called = send()
    with pytest.raises(errors.InvalidOption, match="pass the function itself"):
        ledger.blocking.run("k", called, effect="irreversible")  # type: ignore[call-overload]
    called.close()


@pytest.mark.parametrize(
    "options",
    [{"max_result_bytes": -1}, {"retries": 3}, {"lease": 5}],
    ids=["a negative size", "an unknown one", "another unknown one"],
)
def test_bad_options_of_one_call_are_refused(ledger: Ledger, options: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidOption, match=next(iter(options))):
        ledger.blocking.run("k", never, effect="pure", **options)


UNDECORATED: dict[str, Any] = {
    "a partial": functools.partial(never), "an object": Taker(), "a class": int, "a property": property(),
}  # fmt: skip


@pytest.mark.parametrize("thing", UNDECORATED.values(), ids=UNDECORATED)
def test_undecoratable_objects_are_refused(ledger: Ledger, thing: Any) -> None:
    with pytest.raises(errors.InvalidOption, match="the decorated object must be a function"):
        ledger.once(key="k", effect="pure")(thing)


def test_names_to_ignore_given_as_one_string_are_refused(ledger: Ledger) -> None:
    with pytest.raises(errors.InvalidOption, match="tuple of names"):
        ledger.once(key="k", effect="pure", ignore="_argument")(takes_one)


@bad_keys
def test_bad_keys_returned_by_a_function_are_refused(ledger: Ledger, key: Any) -> None:
    @ledger.once(key=lambda: key, effect="pure")
    def work() -> None:
        never()

    with pytest.raises(errors.InvalidKey):
        work()


@pytest.mark.parametrize("key", ["k" * 1024, "é" * 512, " ", "💶", "a\nb", "{}%:'\""])
def test_keys_at_the_limits_are_accepted(store_url: str, key: str) -> None:
    with open_ledger(store_url) as ledger:
        assert [ledger.blocking.run(key, lambda: 1, effect="irreversible") for _ in range(2)] == [1, 1]


@pytest.mark.parametrize("value", [None, True, 1.5, b"x", object(), ["a"], ""])
def test_key_fields_without_one_obvious_text_are_refused(ledger: Ledger, value: object) -> None:
    @ledger.once(key="{order_id}", effect="pure")
    def work(order_id: object) -> None:
        never()
        assert order_id

    with pytest.raises(errors.InvalidKey):
        work(value)


@pytest.mark.parametrize(
    "template", ["", "{missing}", "{a", "a}", "{}", "{a!r}", "{a:>10}", "{a}{b}", "{a}x{b}", "k" * 1025]
)
def test_bad_key_templates_are_refused_at_decoration(ledger: Ledger, template: str) -> None:
    with pytest.raises(errors.InvalidKey):

        @ledger.once(key=template, effect="pure")
        def work(a: str, b: str) -> None:
            assert a != b
            never()


BAD_DECORATIONS: dict[str, dict[str, Any]] = {
    "an unknown effect": {"effect": "harmless"},
    "no effect": {"effect": None},
    "compensatable without undo": {"effect": "compensatable"},
    "undo without compensatable": {"effect": "idempotent", "undo": never},
    "not_done that is not a tuple": {"effect": "irreversible", "not_done": ValueError},
    "not_done with something else in it": {"effect": "irreversible", "not_done": ("ValueError",)},
    "ignore of what is not there": {"effect": "pure", "ignore": ["nothing"]},
    "an undo that is not a function": {"effect": "compensatable", "undo": 5},
    "a reconcile hook that is not a function": {"effect": "irreversible", "reconcile": "ask"},
    "a duration that is not a number": {"effect": "pure", "wait_seconds": "5"},
    "a size that is not a number": {"effect": "pure", "max_result_bytes": "5"},
    "a key that is neither text nor function": {"effect": "pure", "key": 5},
}


@pytest.mark.parametrize("options", BAD_DECORATIONS.values(), ids=BAD_DECORATIONS)
def test_bad_options_are_refused_at_decoration(ledger: Ledger, options: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidOption) as caught:
        ledger.once(**{"key": "order", **options})(never)

    assert caught.value.code == "invalid-option"


def test_the_effect_has_to_be_declared(ledger: Ledger) -> None:
    with pytest.raises(TypeError, match="effect"):
        ledger.once(key="order")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="effect"):
        ledger.blocking.run("order", never)  # type: ignore[call-overload]


def test_generators_are_refused(ledger: Ledger) -> None:
    def generate() -> Iterator[int]:
        yield 1

    async def generate_later() -> Any:
        yield 1

    for function in (generate, generate_later):
        with pytest.raises(errors.InvalidOption):
            ledger.once(key="order", effect="pure")(function)


BAD_SECONDS = [-1, "5", math.nan, math.inf, True, 1e12]


@pytest.mark.parametrize("value", BAD_SECONDS)
@pytest.mark.parametrize("option", ["lease_seconds", "retain_seconds", "wait_seconds", "max_run_seconds"])
def test_bad_durations_are_refused(ledger: Ledger, option: str, value: Any) -> None:
    if option != "max_run_seconds":
        with pytest.raises(errors.InvalidOption, match=option):
            open_ledger("memory:", **{option: value})
    with pytest.raises(errors.InvalidOption, match=option):
        ledger.blocking.run("order", never, effect="pure", **{option: value})


def test_a_lease_of_zero_is_refused(ledger: Ledger) -> None:
    with pytest.raises(errors.InvalidOption):
        open_ledger("memory:", lease_seconds=0)
    with pytest.raises(errors.InvalidOption):
        ledger.blocking.run("order", never, effect="pure", lease_seconds=0)


@pytest.mark.parametrize("namespace", ["", "a b", "a:b", "ü", "x" * 65, None, 5])
def test_bad_namespaces_are_refused(namespace: Any) -> None:
    with pytest.raises(errors.InvalidKey):
        open_ledger("memory:", namespace=namespace)


BAD_URLS = [
    "", None, 5, "payments.db", "mysql://host/db", "file:///x.db", "://", "memory:name", "sqlite:", "sqlite://", "sqlite:///",
    "sqlite://host/x.db", "sqlite:///x.db?mode=ro", "sqlite:///x.db#part", "sqlite:///:memory:", "postgresql://host:port/db",
    "postgresql://host/db?no_such_option=1", "redis://host:port", "redis://host/name", "redis://host?no_such_option=1",
    "redis://host?volatile=maybe", "redis://", "redis+cluster://host/1", "redis://host/-1", "sqlite://[", "sqlite://[x]/a",
    "sqlite:///a%00b", "sqlite:///\ud800.db", "sqlite:///a\nb.db", "sqlite:///" + "n" * 300, "postgresql://\ud800/x",
    "postgresql://host:99999/x", "redis://\ud800", "memory:\n",
]  # fmt: skip


@pytest.mark.parametrize("url", BAD_URLS, ids=ascii)
@pytest.mark.parametrize("open_it", [open_ledger, open_store])
def test_bad_store_urls_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: Any, open_it: Callable[[str], object]
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(errors.InvalidStoreUrl) as caught:
        open_it(url)

    assert caught.value.code == "invalid-store-url"
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with open_ledger(f"sqlite:///{tmp_path}/no/ledger.db") as ledger, pytest.raises(errors.InvalidStoreUrl):
        ledger.blocking.run("order", never, effect="pure")

    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_not_a_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "letter.txt"
    path.write_text("Dear Sir or Madam, " * 100)

    with open_ledger(f"sqlite:///{path}") as ledger, pytest.raises(errors.InvalidStoreUrl):
        ledger.blocking.run("order", never, effect="pure")

    assert path.read_text() == "Dear Sir or Madam, " * 100


def test_a_password_in_a_bad_url_is_not_shown() -> None:
    for url in ("postgresql://me:s3cret@host:port/db", "redis://me:s3cret@host:port", "mysql://me:s3cret@host/db"):
        with pytest.raises(errors.InvalidStoreUrl) as caught:
            open_ledger(url)

        assert "s3cret" not in str(caught.value)


def test_a_closed_ledger_refuses_calls(store_url: str) -> None:
    ledger = open_ledger(store_url)
    ledger.blocking.run("order 1", lambda: 1, effect="pure")

    @ledger.once(key="order 2", effect="pure")
    def work() -> None:
        never()

    ledger.close()
    ledger.close()

    calls: list[Callable[[], object]] = [
        lambda: ledger.blocking.run("order 1", never, effect="pure"),
        lambda: asyncio.run(ledger.run("order 1", never, effect="pure")),
        lambda: ledger.blocking.read("call", "order 1"),
        ledger.blocking.scan,
        ledger.blocking.purge,
        work,
    ]
    for call in calls:
        with pytest.raises(errors.StoreClosed) as caught:
            call()
        assert caught.value.code == "store-closed"


def newer_sqlite(_: Servers, tmp_path: Path) -> str:
    path = tmp_path / "ledger.db"
    open_and_use(f"sqlite:///{path}")
    db = sqlite3.connect(path)
    with db:
        db.execute("UPDATE platform_idempotency_meta SET schema_version = schema_version + 1")
    db.close()
    return f"sqlite:///{path}"


def newer_postgres(servers: Servers, _: Path) -> str:
    url = servers.postgres.create_database()
    open_and_use(url)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("UPDATE platform_idempotency_meta SET schema_version = schema_version + 1")
    return url


def newer_redis(servers: Servers, _: Path) -> str:
    url = servers.redis.fresh_url()
    open_and_use(url)
    prefix = url.partition("prefix=")[2]
    servers.redis.execute("INCR", prefix + ":{00}:schema")
    return url


def open_and_use(url: str) -> None:
    with open_ledger(url) as ledger:
        ledger.blocking.run("order 1", lambda: 1, effect="pure")


@pytest.mark.parametrize("make", [newer_sqlite, newer_postgres, newer_redis])
def test_a_store_of_a_newer_onceward_is_refused(
    servers: Servers, tmp_path: Path, make: Callable[[Servers, Path], str]
) -> None:
    with open_ledger(make(servers, tmp_path)) as ledger:
        for key in ("order 1", "order 2"):
            with pytest.raises(errors.SchemaTooNew) as caught:
                ledger.blocking.run(key, never, effect="pure")
            assert caught.value.code == "schema-too-new"
        with pytest.raises(errors.SchemaTooNew):
            ledger.blocking.scan()


def test_a_boolean_is_not_a_duration_even_if_its_number_was_used_before() -> None:
    """Python treats True as 1, and so would a cache of durations."""
    with open_ledger("memory:") as ledger:
        assert ledger._lease_of(1.0) == ledger._retain_of(1) == 1_000_000
        for span in (ledger._lease_of, ledger._retain_of):
            with pytest.raises(errors.InvalidOption, match="number of seconds"):
                span(True)


def test_a_folder_is_not_accepted_as_an_sqlite_file(tmp_path: Path) -> None:
    with open_ledger(f"sqlite:///{tmp_path}") as ledger, pytest.raises(errors.InvalidStoreUrl, match="is a folder"):
        ledger.blocking.run("k", never, effect="pure")
