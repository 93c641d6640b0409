"""Ask S3 whether an object was uploaded: `reconcile=s3_object("s3://reports/{key}.pdf")`."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from onceward.core.claim import Entry
from onceward.core.verdict import Verdict
from onceward.errors import InvalidOption, missing_extra
from onceward.reconcile.entry_template import EntryTemplate
from onceward.reconcile.evidence import FoundFunction, Hook, NoEvidence, absent, check_options, hook, verdict_of

_PLAIN = re.compile(r"[A-Za-z0-9/._-]*")

Expected: TypeAlias = str | Callable[[Entry], str | None]


def s3_object(
    url: str,
    *,
    etag: Expected | None = None,
    sha256: Expected | None = None,
    found: FoundFunction | None = None,
    final_after_seconds: float | None = None,
    config: Mapping[str, Any] | None = None,
    timeout_seconds: float = 30.0,
) -> Hook:
    """Return a reconcile hook that looks for an object in an S3 bucket.

    The object is evidence if only this effect writes under its name. Otherwise also give its `etag` or `sha256`: an
    object with another content proves nothing, so it means unknown. A missing object means pending until
    `final_after_seconds` have passed, and not committed afterwards. A missing bucket, a refused access, a timeout and
    any other failure mean unknown.

    Args:
        url: The address of the object, `s3://bucket/name`: a template with `{key}`, `{version}`, `{attempt}`,
            `{recovery_point}` or `{recovery_point[name]}`.
        etag: The expected ETag, or a function of the entry that returns it.
        sha256: The expected SHA-256 of the content in hex, or a function of the entry that returns it. The hook then
            reads the whole object.
        found: A function of a mapping with `path`, `size` and `etag`. It returns a verdict or the value of the effect.
            By default, the mapping is the value.
        final_after_seconds: How long after the claim began an upload of it can still be completed. Set it only if that
            is certain. Without it, a missing object never means not committed.
        config: Options of obstore's `S3Store`, such as `endpoint`, `region`, `access_key_id` and `client_options`. By
            default, the environment variables of AWS apply.
        timeout_seconds: How long to wait for the answer.

    Returns:
        The hook, an `async def` function of the entry.

    Raises:
        InvalidOption: If an option is not valid.
        ModuleNotFoundError: If the extra `s3` is not installed.
    """
    check_options(timeout_seconds, final_after_seconds, found)
    bucket, template = _parse(url)
    try:
        import obstore  # noqa: PLC0415  # the extra `s3`
        from obstore.store import S3Store  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise missing_extra(error, "onceward.reconcile.s3_object", "s3") from error
    # One retry: the caller waits, and may ask again.
    options: Any = {"retry_config": {"max_retries": 1}, **(config or {})}

    async def ask(entry: Entry) -> Verdict:
        path = template.fill(entry)
        async with asyncio.timeout(timeout_seconds):
            store = S3Store(bucket, **options)
            try:
                head = await obstore.head_async(store, path)
            except FileNotFoundError:
                # A missing bucket gives the same error. Only a bucket that can be listed proves that the object is missing.
                async for _ in obstore.list(store, prefix=_signable_prefix(path), chunk_size=1):
                    break
                return absent(entry, final_after_seconds)
            await _check_content(store, path, _expected(sha256, entry))
        described = {"path": path, "size": head["size"], "etag": _unquoted_etag(head["e_tag"])}
        wanted = _expected(etag, entry)
        if wanted is not None and described["etag"] != _unquoted_etag(wanted):
            raise NoEvidence("the object has another ETag, so another request may have written it")
        return await verdict_of(found, described)

    return hook("s3_object", ask)


def _parse(url: str) -> tuple[str, EntryTemplate]:
    bucket, _, path = url.removeprefix("s3://").partition("/") if isinstance(url, str) else ("", "", "")
    if not isinstance(url, str) or not url.startswith("s3://") or not bucket or "{" in bucket or not path:
        raise InvalidOption(f"url must have the form s3://bucket/name, and only the name may have fields, not {url!r}")
    return bucket, EntryTemplate("url", path, str)


def _expected(value: Expected | None, entry: Entry) -> str | None:
    if value is None:
        return None
    wanted = value(entry) if callable(value) else value
    if not isinstance(wanted, str) or not wanted:
        raise NoEvidence("the expected ETag or SHA-256 is not known for this entry")
    return wanted


def _signable_prefix(path: str) -> str:
    """Return the start of a path up to the first character that servers encode differently when they check a signature.

    Some refuse a query with a space or a `*`. Which part of the bucket is listed does not matter here.
    """
    return _PLAIN.match(path)[0] or path  # type: ignore[index]  # it matches nothing, too


def _unquoted_etag(etag: str | None) -> str:
    return (etag or "").removeprefix("W/").strip('"')


async def _check_content(store: Any, path: str, wanted: str | None) -> None:
    if wanted is None:
        return
    import obstore  # noqa: PLC0415

    digest = hashlib.sha256()
    content = await obstore.get_async(store, path)
    async for part in content.stream():
        digest.update(part)
    if digest.hexdigest() != wanted.lower():
        raise NoEvidence("the object has another SHA-256, so another request may have written it")
