"""Ask Stripe for a payment, a charge or a refund, over its HTTP API and without its package."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import quote, urlsplit

from onceward.core import verdict
from onceward.core.claim import Entry
from onceward.core.verdict import Committed, NotCommitted, Open, Verdict
from onceward.errors import InvalidOption
from onceward.reconcile.evidence import (
    FoundFunction,
    Hook,
    NoEvidence,
    check_options,
    hook,
    text_from,
    verdict_of,
)
from onceward.reconcile.json_request import FOUND, get_json, require_httpx

VerdictName: TypeAlias = Literal["committed", "pending", "unknown", "not_committed"]

# The revision of the API that the table was checked against. Each request asks for it by name, so that an account with
# another default revision gets the same statuses.
API_REVISION: Final = "2024-12-18.acacia"

# The meaning of each status for an effect that creates and confirms the object. Only a status that Stripe never leaves
# is not committed. A payment that only waits for its capture has not moved money yet.
STATUSES: Final[Mapping[str, Mapping[str, VerdictName]]] = {
    "payment_intent": {
        "succeeded": "committed",
        "processing": "pending",
        "requires_action": "pending",
        "requires_capture": "pending",
        "requires_confirmation": "unknown",  # the request that confirms it may be on its way
        "requires_payment_method": "unknown",  # an attempt failed, and another may follow
        "canceled": "not_committed",
    },
    "charge": {"succeeded": "committed", "pending": "pending", "failed": "not_committed"},
    "refund": {
        "succeeded": "committed",
        "pending": "pending",
        "requires_action": "pending",
        "failed": "not_committed",
        "canceled": "not_committed",
    },
}
_PATHS = {"pi_": "payment_intents", "ch_": "charges", "py_": "charges", "re_": "refunds"}
_SEARCHABLE = ("payment_intents", "charges")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_SHOWN = ("id", "object", "status", "amount", "currency")


def stripe(
    api_key: str | Callable[[], str],
    *,
    metadata: str | None = None,
    search: Literal["payment_intents", "charges"] = "payment_intents",
    found: FoundFunction | None = None,
    statuses: Mapping[str, VerdictName] | None = None,
    base_url: str = "https://api.stripe.com",
    timeout_seconds: float = 10.0,
) -> Hook:
    """Return a reconcile hook that asks Stripe whether a payment, a charge or a refund was made.

    If the effect recorded the id of the object as its recovery point (a string such as `pi_…`, or a mapping with the
    field `id`, `payment_intent`, `charge` or `refund`), the hook reads that object. Otherwise, and with `metadata=`, it
    searches for an object whose metadata contains the key of the claim. A search that finds nothing proves nothing,
    because Stripe's index may be an hour behind.

    Args:
        api_key: The secret or restricted key, or a function that returns it. It needs to read only.
        metadata: The name of the metadata field in which the effect stores `current_claim().key`.
        search: The kind of object to search for by metadata.
        found: A function of the object that returns the value of the effect, or a verdict. By default, the value is a
            mapping with `id`, `object`, `status`, `amount` and `currency`.
        statuses: Other meanings of statuses, such as `{"requires_capture": "committed"}` for an effect that only
            authorises.
        base_url: The address of the API, for tests.
        timeout_seconds: How long to wait for the whole response.

    Returns:
        The hook, an `async def` function of the entry.

    Raises:
        InvalidOption: If an option is not valid.
        ModuleNotFoundError: If the extra `client` is not installed.
    """
    check_options(timeout_seconds, found=found)
    _check(api_key, metadata, search, statuses, base_url)
    require_httpx("onceward.reconcile.stripe")
    overrides = statuses or {}

    async def get(path: str, params: Mapping[str, str] | None = None) -> Any:
        key = api_key() if callable(api_key) else api_key
        headers = {"Authorization": f"Bearer {key}", "Stripe-Version": API_REVISION}
        status, data = await get_json(f"{base_url.rstrip('/')}/v1/{path}", headers, timeout_seconds, params)
        if status != FOUND or not isinstance(data, dict):
            # Another account or the other mode also gives 404, so it does not prove that the payment was not made.
            raise NoEvidence(f"Stripe responded with the status {status} and no object")
        return data

    async def ask(entry: Entry) -> Verdict:
        point = entry.recovery_point
        if point is not None:
            wanted = text_from(point, "id", "payment_intent", "charge", "refund")
            one = await get(f"{_path_of(wanted)}/{quote(wanted, safe='')}")
            if one.get("id") != wanted:
                raise NoEvidence("Stripe returned another object than the one that was asked for")
            return await _verdict_on(one, _verdict_name(one, overrides), found)
        if metadata is None:
            raise NoEvidence("the effect recorded no recovery point, and metadata= is not set")
        page = await get(f"{search}/search", {"query": _query(metadata, entry.key), "limit": "100"})
        return await _verdict_on_all(_matching(page, metadata, entry.key), overrides, found)

    return hook("stripe", ask)


def _check(api_key: object, metadata: object, search: object, statuses: object, base_url: object) -> None:
    if not callable(api_key) and not (isinstance(api_key, str) and api_key):
        raise InvalidOption("api_key must be a key of Stripe, or a function that returns one")
    if metadata is not None and not (isinstance(metadata, str) and metadata):
        raise InvalidOption(f"metadata must be the name of a metadata field, not {metadata!r}")
    if search not in _SEARCHABLE:
        raise InvalidOption(f"search must be one of {', '.join(_SEARCHABLE)}, not {search!r}")
    known = {status for table in STATUSES.values() for status in table}
    words = {"committed", "pending", "unknown", "not_committed"}
    if statuses is not None and not (isinstance(statuses, Mapping) and {*statuses} <= known):
        raise InvalidOption(f"statuses must map statuses of Stripe ({', '.join(sorted(known))}) to verdicts")
    if isinstance(statuses, Mapping) and not {*statuses.values()} <= words:
        raise InvalidOption(f"statuses must map to {', '.join(sorted(words))}")
    parts = urlsplit(base_url) if isinstance(base_url, str) else None
    if parts is None or not (parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK)):
        raise InvalidOption(f"base_url must begin with https://, because the key is sent to it, not {base_url!r}")


def _path_of(wanted: str) -> str:
    path = _PATHS.get(wanted[:3])
    if path is None:
        raise NoEvidence(f"the recovery point is not the id of a payment intent, a charge or a refund: {wanted[:12]!r}")
    return path


def _verdict_name(one: Mapping[str, Any], overrides: Mapping[str, VerdictName]) -> VerdictName:
    kind, status = str(one.get("object")), str(one.get("status"))
    if kind == "charge" and status == "succeeded" and one.get("captured") is False:
        status = "requires_capture"
    meaning = overrides.get(status) or STATUSES.get(kind, {}).get(status)
    if status == "requires_capture" and meaning is None:
        meaning = STATUSES["payment_intent"][status]
    if meaning is None:
        raise NoEvidence(f"the meaning of the status {status!r} of a {kind!r} is not known")
    return meaning


async def _verdict_on(one: Mapping[str, Any], word: VerdictName, found: FoundFunction | None) -> Verdict:
    match word:
        case "committed":
            return await verdict_of(found or _value, one)
        case "not_committed":
            return NotCommitted(verdict.Final.PROVIDER_FINAL)
        case "pending":
            return Open.PENDING
        case "unknown":
            raise NoEvidence(f"the status {one.get('status')!r} does not say whether the effect will happen")


def _value(one: Mapping[str, Any]) -> Committed:
    return Committed({name: one[name] for name in _SHOWN if name in one})


def _query(name: str, value: str) -> str:
    def quoted(text: str) -> str:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    return f"metadata[{quoted(name)}]:{quoted(value)}"


def _matching(page: Mapping[str, Any], name: str, value: str) -> list[Mapping[str, Any]]:
    data = page.get("data")
    if not isinstance(data, list):
        raise NoEvidence("Stripe returned no list")
    # A search may be broader than the question. Only an exact match is evidence.
    return [one for one in data if isinstance(one, dict) and (one.get("metadata") or {}).get(name) == value]


async def _verdict_on_all(
    ones: list[Mapping[str, Any]], overrides: Mapping[str, VerdictName], found: FoundFunction | None
) -> Verdict:
    """Return committed if any of them is; never not committed, because the index may lack another one."""
    words = [_verdict_name(one, overrides) for one in ones]
    done = [one for one, word in zip(ones, words, strict=True) if word == "committed"]
    if done:
        return await _verdict_on(min(done, key=lambda one: int(one.get("created", 0))), "committed", found)
    if "pending" in words:
        return Open.PENDING
    raise NoEvidence(f"the search found {len(ones)} objects, none of which is a payment that was made")
