"""The guarantees of the public API: examples, documentation and external checks use exactly these names."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import onceward
import onceward.ledger
from onceward import Ledger, errors, open_ledger


@pytest.fixture
def ledger(store_url: str) -> Iterator[Ledger]:
    with open_ledger(store_url, wait_seconds=10) as ledger:
        yield ledger


# Opening.


def test_the_promised_names_exist() -> None:
    assert callable(onceward.open_ledger)
    assert onceward.errors is errors
    assert set(onceward.__all__) >= {"open_ledger", "errors", "Ledger"}


def test_the_package_has_its_version() -> None:
    assert onceward.__version__ == metadata.version("onceward")
    assert not hasattr(onceward, "no_such_name")


def test_the_value_types_of_the_ledger_are_exported_beside_it() -> None:
    names = ("Claim", "Replay", "Busy", "Mismatch", "InDoubt", "Entry", "Outcome", "Status")

    assert set(names) < set(onceward.ledger.__all__)
    assert all(isinstance(getattr(onceward.ledger, name), type) for name in names)


def test_open_ledger_takes_its_four_options_by_name() -> None:
    ledger = open_ledger("memory:", lease_seconds=5, retain_seconds=60, wait_seconds=1.5, namespace="shop")

    assert (ledger.lease_seconds, ledger.retain_seconds, ledger.wait_seconds) == (5, 60, 1.5)
    assert ledger.namespace == "shop"


@pytest.mark.parametrize("url", ["sqlite:///{folder}/new.db", "postgresql://127.0.0.1:1/none", "redis://127.0.0.1:1"])
def test_a_ledger_connects_on_first_use(tmp_path: Path, url: str) -> None:
    open_ledger(url.format(folder=tmp_path)).close()

    assert list(tmp_path.iterdir()) == []


def test_a_relative_path_is_relative_to_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    with open_ledger("sqlite:///payments.db") as ledger:
        ledger.blocking.run("order 1", lambda: 1, effect="pure")

    assert (tmp_path / "payments.db").is_file()


def test_namespaces_in_one_store_share_no_keys(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    with open_ledger(url, namespace="one") as one, open_ledger(url, namespace="two") as two:
        first = one.blocking.run("order 1", lambda: "one's", effect="irreversible", fingerprint=1)
        second = two.blocking.run("order 1", lambda: "two's", effect="irreversible", fingerprint=2)
        seen = [[entry.scope for entry in ledger.blocking.scan().entries] for ledger in (one, two)]

    assert (first, second) == ("one's", "two's")
    assert seen == [["one:call"], ["two:call"]]


# @ledger.once


def test_once_runs_a_def_once_for_each_key(ledger: Ledger) -> None:
    charged: list[tuple[str, int]] = []

    @ledger.once(key="charge:{order_id}", effect="irreversible")
    def charge(order_id: str, amount: int) -> dict[str, int]:
        """Charge it."""
        charged.append((order_id, amount))
        return {"charged": amount}

    assert [charge("a", 10), charge("a", amount=10), charge(amount=10, order_id="a")] == [{"charged": 10}] * 3
    assert charge("b", 20) == {"charged": 20}
    assert charged == [("a", 10), ("b", 20)]
    assert (charge.__name__, charge.__doc__) == ("charge", "Charge it.")


def test_once_runs_an_async_def_once_for_each_key(ledger: Ledger) -> None:
    charged: list[str] = []

    @ledger.once(key="charge:{order_id}", effect="irreversible")
    async def charge(order_id: str, amount: int) -> int:
        await asyncio.sleep(0)
        charged.append(order_id)
        return amount

    async def main() -> list[int]:
        return list(await asyncio.gather(*(charge("a", 10) for _ in range(5)), charge("b", 20)))

    assert inspect.iscoroutinefunction(charge)
    assert asyncio.run(main()) == [10] * 5 + [20]
    assert sorted(charged) == ["a", "b"]


def test_once_accepts_a_function_of_the_same_arguments_as_its_key(ledger: Ledger) -> None:
    @ledger.once(key=lambda order, **_: f"charge:{order['id']}", effect="idempotent")
    def charge(order: dict[str, str], currency: str = "EUR") -> str:
        return f"{order['id']} {currency}"

    assert charge({"id": "a"}) == charge({"id": "a"}, currency="EUR") == "a EUR"
    assert ledger.blocking.read("call", "charge:a") is not None


def test_different_values_never_give_one_key(ledger: Ledger) -> None:
    @ledger.once(key="{left}:{right}", effect="pure")
    def join(left: str, right: str) -> str:
        return f"{left}|{right}"

    assert join("a:b", "c") == "a:b|c"
    assert join("a", "b:c") == "a|b:c"


def test_an_omitted_default_and_the_same_explicit_value_are_one_call(ledger: Ledger) -> None:
    @ledger.once(key="charge:{order_id}", effect="irreversible")
    def charge(order_id: str, currency: str = "EUR") -> str:
        return order_id + currency

    assert charge("a") == charge("a", "EUR")
    with pytest.raises(errors.KeyReused):
        charge("a", "USD")


def test_ignored_arguments_do_not_make_another_call(ledger: Ledger) -> None:
    @ledger.once(key="charge:{order_id}", effect="irreversible", ignore=["session", "trace_id"])
    def charge(order_id: str, session: object, trace_id: str = "") -> str:
        assert session
        return order_id + trace_id

    assert charge("a", object(), "1") == charge("a", object(), "2") == "a1"


@pytest.mark.parametrize("argument", [object(), threading.Lock(), lambda: None, {"nested": [object()]}])
def test_arguments_without_a_canonical_form_are_refused_before_the_effect(ledger: Ledger, argument: object) -> None:
    runs: list[int] = []

    @ledger.once(key="charge:{order_id}", effect="irreversible")
    def charge(order_id: str, what: object) -> None:
        runs.append(len(order_id) + bool(what))

    with pytest.raises(errors.InvalidKey, match="ignore="):
        charge("a", argument)

    assert runs == []
    assert ledger.blocking.scan().entries == ()


@pytest.mark.parametrize("value", [None, 0, "", [], {}, False])
def test_empty_results_are_results_like_any_other(ledger: Ledger, value: object) -> None:
    runs: list[int] = []

    @ledger.once(key="order", effect="irreversible")
    def work() -> object:
        runs.append(1)
        return value

    results = [work(), work()]

    assert results == [value, value]
    assert runs == [1]


@dataclass
class Receipt:
    amount: int


@dataclass
class Imposter:
    amount: int


def test_a_typed_result_comes_back_as_its_class(ledger: Ledger) -> None:
    @ledger.once(key="charge:{order_id}", effect="irreversible")
    def charge(order_id: str) -> Receipt:
        return Receipt(len(order_id))

    assert charge("abc") == charge("abc") == Receipt(3)


def test_a_class_that_is_not_imported_here_is_rebuilt_only_as_the_declared_type(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.blocking.run("order 1", lambda: Receipt(3), effect="irreversible")
    monkeypatch.delitem(globals(), "Receipt")

    with pytest.raises(errors.OutcomeNotKept, match="Receipt"):
        ledger.blocking.run("order 1", lambda: None, effect="irreversible")
    assert ledger.blocking.run("order 1", lambda: None, effect="irreversible", returns=Imposter) == Imposter(3)


# ledger.run and ledger.blocking.run


def effect_def() -> str:
    return "done"


async def effect_async_def() -> str:
    await asyncio.sleep(0)
    return "done"


@pytest.mark.parametrize("effect_fn", [effect_def, effect_async_def])
def test_run_and_blocking_run_accept_def_and_async_def(ledger: Ledger, effect_fn: Callable[[], Any]) -> None:
    async def main() -> list[Any]:
        return [
            await ledger.run(key, effect_fn, fingerprint={"amount": 10}, effect="irreversible") for key in ("a", "b")
        ]

    first = ledger.blocking.run("a", effect_fn, fingerprint={"amount": 10}, effect="irreversible")

    assert first == "done"
    assert asyncio.run(main()) == ["done"] * 2


def test_run_refuses_another_fingerprint(ledger: Ledger) -> None:
    ledger.blocking.run("charge:42", effect_def, fingerprint={"amount": 10, "to": "x"}, effect="irreversible")

    assert ledger.blocking.run("charge:42", effect_def, fingerprint={"to": "x", "amount": 10}, effect="irreversible")
    with pytest.raises(errors.KeyReused):
        ledger.blocking.run("charge:42", effect_def, fingerprint={"amount": 11, "to": "x"}, effect="irreversible")


def test_an_effect_whose_outcome_is_unknown_is_in_doubt(ledger: Ledger) -> None:
    def fail() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        ledger.blocking.run("charge:42", fail, effect="irreversible")
    with pytest.raises(errors.InDoubt) as doubt:
        ledger.blocking.run("charge:42", effect_def, effect="irreversible")

    entry = ledger.blocking.read("call", "charge:42")
    assert entry is not None
    assert doubt.value.version == entry.version


def test_a_racing_caller_that_does_not_wait_gets_busy(ledger: Ledger) -> None:
    def inside() -> str:
        with pytest.raises(errors.Busy) as busy:
            ledger.blocking.run("charge:42", effect_def, effect="idempotent", wait_seconds=0)
        assert 0 < busy.value.retry_after_seconds <= ledger.lease_seconds
        return "first"

    assert ledger.blocking.run("charge:42", inside, effect="idempotent") == "first"


def test_a_racing_caller_waits_and_gets_the_winners_result(ledger: Ledger) -> None:
    started, go_on = threading.Event(), threading.Event()

    def work() -> str:
        started.set()
        assert go_on.wait(10)
        return "the winner's"

    with ThreadPoolExecutor(2) as threads:
        winner = threads.submit(ledger.blocking.run, "charge:42", work, effect="irreversible")
        assert started.wait(10)
        other = threads.submit(ledger.blocking.run, "charge:42", effect_def, effect="irreversible")
        go_on.set()

        assert (winner.result(), other.result()) == ("the winner's", "the winner's")


def test_an_effect_may_use_the_ledger_for_another_key(ledger: Ledger) -> None:
    def outer() -> str:
        return "outer " + ledger.blocking.run("inner", lambda: "inner", effect="irreversible")

    assert ledger.blocking.run("outer", outer, effect="irreversible") == "outer inner"


# @ledger.cached: the different verb


def test_cached_computes_again_when_its_arguments_or_dependencies_change(ledger: Ledger) -> None:
    version, runs = ["v1"], list[int]()

    @ledger.cached(key="summary:{page}", for_seconds=3600, depends_on=lambda: version[0])
    def summarise(page: str, length: int) -> str:
        runs.append(length)
        return f"{page} {length} {version[0]}"

    first = [summarise("a", 1), summarise("a", 1), summarise("a", 2)]
    version[0] = "v2"
    second = summarise("a", 1)

    assert first == ["a 1 v1", "a 1 v1", "a 2 v1"]
    assert second == "a 1 v2"
    assert runs == [1, 2, 1]


def test_cached_computes_again_after_its_maximum_age_and_after_an_error(ledger: Ledger) -> None:
    runs: list[int] = []

    @ledger.cached(key="flaky", for_seconds=3600)
    def flaky() -> int:
        runs.append(1)
        if len(runs) == 1:
            raise TimeoutError
        return len(runs)

    @ledger.cached(key="brief", for_seconds=0)
    def brief() -> int:
        runs.append(1)
        return len(runs)

    with pytest.raises(TimeoutError):
        flaky()

    assert [flaky(), flaky()] == [2, 2]
    assert [brief(), brief()] == [3, 4]


# The exception tree.

PROMISED = {
    "InvalidKey": False, "KeyReused": False, "Busy": True, "InDoubt": False, "NotDone": True, "ClaimLost": True,
    "StoreUnavailable": True, "OutcomeNotKept": False,
}  # fmt: skip


@pytest.mark.parametrize(("name", "retryable"), PROMISED.items())
def test_every_promised_error_has_one_root_a_code_and_says_whether_to_retry(name: str, retryable: bool) -> None:
    kind = getattr(errors, name)

    assert issubclass(kind, errors.OncewardError)
    assert kind("why").code == "".join(f"-{c.lower()}" if c.isupper() else c for c in name).lstrip("-")
    assert kind("why").retryable is retryable


def test_every_error_has_a_code_of_its_own() -> None:
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.OncewardError)]

    assert len({kind.code for kind in kinds}) == len(kinds)
    assert all(kind.__doc__ for kind in kinds)
