"""`WSGIIdempotencyMiddleware`: the idempotency middleware for Flask, Django and every other WSGI application.

    app.wsgi_app = WSGIIdempotencyMiddleware(app.wsgi_app, store="sqlite:///keys.db")                # Flask
    application = WSGIIdempotencyMiddleware(get_wsgi_application(), store="postgresql://…")          # Django

It uses the same code as the ASGI middleware, and waits for it on the request's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Unpack

from onceward.core.claim import Busy, Claim, Entry, Replay
from onceward.errors import ClaimLost, InvalidKey, InvalidOption, StoreUnavailable
from onceward.http import problem
from onceward.http.keyed import principal as principals
from onceward.http.keyed.admission import (
    Admission,
    KeyedRequest,
    compared,
)
from onceward.http.keyed.operation import ENVIRON_KEY, GUARDED, outer_operation
from onceward.http.keyed.options import MiddlewareOptions
from onceward.http.keyed.principal import CREDENTIAL_HEADERS, KeyPrincipal
from onceward.http.keyed.refusal import refusal_of
from onceward.http.keyed.rules import BODY, JSON, Rule, declared
from onceward.http.middleware.handler_lookup import wsgi_rule
from onceward.http.problem import Response
from onceward.http.request.buffered_body import BodyTooLarge, BufferedBody, digest_header, promised_digest
from onceward.http.request.headers import fingerprint_of, key_of, length_of, media_type_of, wait_seconds_of
from onceward.http.request.key_source import KEY_HEADERS_SOURCE, BodyNeeded, RequestHead, field_of
from onceward.http.response.recorded_stream import RecordedStream
from onceward.http.response.replay import INTERRUPTED, REPLAYED, has_events, stored_response
from onceward.http.response.settlement import Settlement, outcome_after_takeover
from onceward.http.response.shape import echo_of, shaped, shaped_start
from onceward.http.response.sse import interrupted, place_of
from onceward.http.response.wsgi_exchange import WsgiExchange, close
from onceward.ledger.blocking import wait
from onceward.ledger.ledger import Ledger
from onceward.store import Store

Environ = dict[str, Any]
Start = Callable[..., Any]
App = Callable[[Environ, Start], Iterable[bytes]]

SILENT = "The stream sent no data for too long. Retry with the same key."

# Headers whose names have no prefix in a WSGI environ.
_UNPREFIXED = ("CONTENT_TYPE", "CONTENT_LENGTH")
# The size of one read of a request body.
_PIECE_BYTES = 64 * 1024


class WSGIIdempotencyMiddleware:
    """WSGI middleware that makes requests with an `Idempotency-Key` safe to retry.

    Args:
        app: The WSGI application to wrap.
        store: A store URL, a store or a ledger. The middleware opens a URL itself; `close` closes it.
        options: See `MiddlewareOptions`.

    Raises:
        InvalidOption: An option is unknown or has a wrong value.
        InvalidStoreUrl: The store URL is malformed, or its driver is not installed.
    """

    def __init__(self, app: App, store: str | Store | Ledger, **options: Unpack[MiddlewareOptions]) -> None:
        self.app = app
        self._admission = admission = Admission(store, options)
        self._methods = admission.methods if admission.enabled else frozenset()

    def close(self) -> None:
        """Close the ledger if the middleware opened it. WSGI has no shutdown event, so call this yourself."""
        self._admission.close()

    def __call__(self, environ: Environ, start_response: Start) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] in self._methods and self._admission.covers(path := _path(environ)):
            if declared.keys or self._admission.finds_keys:
                return self._find_key(environ, self._rule(environ, path), path, start_response)
            if "HTTP_IDEMPOTENCY_KEY" in environ or "HTTP_X_IDEMPOTENCY_KEY" in environ:
                return self._keyed(environ, self._rule(environ, path), path, start_response)
            if (declared.required or self._admission.requires) and (rule := self._rule(environ, path)).required:
                return _respond(shaped_start(start_response, rule), problem.key_required())
        environ.setdefault(ENVIRON_KEY, GUARDED)
        return self.app(environ, start_response)

    def _rule(self, environ: Environ, path: str) -> Rule:
        return self._admission.rule(wsgi_rule(self.app, environ), path)

    def _find_key(self, environ: Environ, rule: Rule, path: str, start_response: Start) -> Iterable[bytes]:
        """Handle a request that may carry its key anywhere."""
        source = rule.source or KEY_HEADERS_SOURCE
        head = _head(environ, path)
        body: BufferedBody | None = None
        start = shaped_start(start_response, rule)
        try:
            try:
                key = source.find(head, None)
            except BodyNeeded:
                read = _read(environ, rule)
                if isinstance(read, Response):
                    return _respond(start, read)
                body = read
                key = source.find(head, body.content())
        except InvalidKey as error:
            if body is not None:
                body.close()
            return _respond(start, problem.bad_key(str(error), field_of(source)))
        if key is not None:
            return self._claim(environ, rule, path, key, body, start_response)
        passes = rule.webhook is not None and rule.webhook.passes
        if rule.required and not (passes and body is not None and passes(head, body.content())):
            if body is not None:
                body.close()
            return _respond(start, problem.key_required(source.name, field_of(source)))
        environ.setdefault(ENVIRON_KEY, GUARDED)
        if body is None:
            return self.app(environ, start_response)
        return _Unprotected(self.app(environ, start_response), body)

    def _keyed(self, environ: Environ, rule: Rule, path: str, start_response: Start) -> Iterable[bytes]:
        try:
            key = key_of(_lines(environ, "HTTP_IDEMPOTENCY_KEY"), _lines(environ, "HTTP_X_IDEMPOTENCY_KEY"))
        except InvalidKey as error:
            return _respond(shaped_start(start_response, rule), problem.bad_key(str(error)))
        return self._claim(environ, rule, path, key, None, start_response)

    def _claim(
        self, environ: Environ, rule: Rule, path: str, key: str, read: BufferedBody | None, start_response: Start
    ) -> Iterable[bytes]:
        """Handle a request with a key. `read` is its body if finding the key needed it."""
        outer = outer_operation(environ, ENVIRON_KEY)
        if outer is not None and outer.key == key:  # an outer middleware has the claim
            pieces = self.app(environ, start_response)
            return pieces if read is None else _Unprotected(pieces, read)
        if rule.echo or rule.problem is not None:
            start_response = shaped_start(start_response, rule, echo_of(environ.get("HTTP_IDEMPOTENCY_KEY", ""), key))
        body = _read(environ, rule) if read is None else read
        if isinstance(body, Response):
            return _respond(start_response, body)
        try:
            request = self._keyed_request(environ, rule, path, key, body)
            return self._decide(environ, request, body, start_response)
        except BaseException:
            body.close()
            raise

    def _keyed_request(self, environ: Environ, rule: Rule, path: str, key: str, body: BufferedBody) -> KeyedRequest:
        method = environ["REQUEST_METHOD"]
        query = environ.get("QUERY_STRING", "").encode("latin-1")
        media_type = media_type_of(environ.get("CONTENT_TYPE", ""))
        digest = _promised(environ, rule) or body.digest(rule.fields, as_json=rule.compare == JSON)
        seconds = wait_seconds_of(_lines(environ, "HTTP_PREFER"))
        raw, delivery, counted = _raw_path(environ), "", ""
        principal = self._principal(environ) if rule.webhook is None else principals.of_sender(rule.webhook.sender)
        if not rule.is_plain:
            address = environ.get("REMOTE_ADDR", "")
            principal, counted = self._admission.scoped(rule, principal, method, raw, address)
            query, media_type, digest, delivery = compared(rule, query, media_type, digest)
        return KeyedRequest(
            key,
            principal,
            fingerprint_of(method, raw, query, media_type, digest, self._admission.variant(environ)),
            f"{method} {path}",
            rule,
            (rule.wait_seconds or 0.0) if seconds is None else seconds,
            delivery,
            counted,
        )

    def _principal(self, environ: Environ) -> KeyPrincipal:
        if self._admission.principal is not None:
            name = self._admission.principal(environ)
            if hasattr(name, "__await__"):
                raise InvalidOption("principal= must not be an async function under WSGI; use a plain function")
            return principals.named(name)
        found = principals.of_user(environ.get("REMOTE_USER") or None)
        if found is None:
            names = {name: "HTTP_" + name.upper().replace("-", "_") for name in CREDENTIAL_HEADERS}
            sent = [(name, environ[line].encode("latin-1")) for name, line in names.items() if environ.get(line)]
            found = principals.of_request(sent, self._admission.session_cookies)
            if found.fleeting:
                self._admission.warn_fleeting()
        return found

    def _decide(
        self, environ: Environ, request: KeyedRequest, body: BufferedBody, start_response: Start
    ) -> Iterable[bytes]:
        try:
            found = wait(self._admission.admit(request))
        except StoreUnavailable as error:
            body.close()
            return _respond(start_response, problem.store_failed(error))
        if isinstance(found, Claim):
            return self._run(environ, request, found, body, start_response)
        if found is None:
            environ.setdefault(ENVIRON_KEY, GUARDED)
            return _Unprotected(self.app(environ, start_response), body)
        body.close()
        match found:
            case Replay(entry):
                return self._replay(entry, environ, start_response)
            case Busy(entry) if entry.outcome.chunks:
                return self._replay(entry, environ, start_response)
            case _:
                return _respond(start_response, refusal_of(found))

    def _run(
        self, environ: Environ, request: KeyedRequest, claim: Claim, body: BufferedBody, start_response: Start
    ) -> Iterable[bytes]:
        settlement = Settlement(self._admission, request, claim)
        environ[ENVIRON_KEY] = settlement.operation
        place = place_of(environ.get("HTTP_LAST_EVENT_ID", ""))
        preface = interrupted(INTERRUPTED) if place is not None and place[0] != claim.version else b""

        def lost() -> Iterable[bytes]:
            entry = wait(outcome_after_takeover(self._admission, request))
            if isinstance(entry, Response):
                return _respond(start_response, entry)
            return self._replay(entry, {}, start_response)

        exchange = WsgiExchange(
            settlement, start_response, lost, body.close, preface, self._admission.max_stream_seconds
        )
        exchange.call(self.app, environ)
        return exchange

    def _replay(self, entry: Entry, environ: Environ, start_response: Start) -> Iterable[bytes]:
        """Replay the recorded response of an entry. If it is still being written, follow it to its end."""
        if not entry.outcome.chunks:
            return _respond(start_response, stored_response(self._admission.codec, entry))
        recorded = RecordedStream(self._admission.ledger, self._admission.codec, entry)
        last_event_id = environ.get("HTTP_LAST_EVENT_ID", "")
        resumed = True
        try:
            head = wait(recorded.head())
            if last_event_id and head is not None and has_events(head[1]):
                resumed = wait(recorded.resume(last_event_id))
        except StoreUnavailable as error:
            return _respond(start_response, problem.store_failed(error))
        if head is None:
            return _respond(start_response, problem.busy() if recorded.interrupted else problem.not_kept())
        status, headers = head
        start_response(_status(status), _texts([*headers, REPLAYED]))
        return self._pages(recorded, has_events(headers), resumed)

    def _pages(self, recorded: RecordedStream, events: bool, resumed: bool) -> Iterator[bytes]:
        if not resumed:
            yield interrupted(INTERRUPTED)
        # WSGI does not report that a client disconnected, so limit the wait for a silent stream.
        while pieces := wait(recorded.page(self._admission.max_stream_seconds)):
            yield b"".join(pieces)
        if recorded.interrupted:
            if not events:
                why = "no data arrived for too long" if recorded.silent else "the process that produced it has stopped"
                raise ClaimLost(f"the recorded response is incomplete: {why}")
            yield interrupted(SILENT if recorded.silent else INTERRUPTED)


class _Unprotected:
    """The response of a request that runs without a claim. `close` also closes the buffered request body."""

    def __init__(self, pieces: Iterable[bytes], body: BufferedBody) -> None:
        self._pieces = pieces
        self._body = body

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._pieces)

    def close(self) -> None:
        try:
            close(self._pieces)
        finally:
            self._body.close()


def _path(environ: Environ) -> str:
    return _raw_path(environ).decode("utf-8", "replace")


def _raw_path(environ: Environ) -> bytes:
    """Return the undecoded path. WSGI passes each of its bytes as one character."""
    raw: str = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
    return raw.encode("latin-1")


def _lines(environ: Environ, name: str) -> list[str]:
    """Return the lines of a header. WSGI servers join them with commas, so a key with a comma must be quoted."""
    if name not in environ:
        return []
    line: str = environ[name]
    if name == "HTTP_PREFER" or line.lstrip().startswith('"'):
        return [line]
    return line.split(",")


def _head(environ: Environ, path: str) -> RequestHead:
    """Return the head of a request, for sources of its key."""

    def find(name: str) -> list[str]:
        variable = name.upper().replace("-", "_")
        return _lines(environ, variable if variable in _UNPREFIXED else f"HTTP_{variable}")

    return RequestHead(environ["REQUEST_METHOD"], path, environ.get("QUERY_STRING", ""), find)


def _read(environ: Environ, rule: Rule) -> BufferedBody | Response:
    """Read the body into a file for the application, or return a problem if it is refused."""
    bytes_max = rule.max_body_bytes or 0
    remaining = length_of(environ.get("CONTENT_LENGTH") or "")
    if remaining is not None and remaining > bytes_max:
        return problem.too_large(bytes_max)
    if remaining is None and not environ.get("wsgi.input_terminated"):
        if environ.get("HTTP_TRANSFER_ENCODING"):
            return problem.problem(400, "The server cannot tell where this body ends. Send Content-Length.")
        remaining = 0
    body = BufferedBody("" if rule.compare == BODY else environ.get("CONTENT_TYPE", ""), bytes_max)
    try:
        while remaining is None or remaining > 0:
            data = environ["wsgi.input"].read(_PIECE_BYTES if remaining is None else min(remaining, _PIECE_BYTES))
            if not data:
                break
            body.feed(data)
            remaining = None if remaining is None else remaining - len(data)
    except BodyTooLarge:
        body.close()
        return problem.too_large(bytes_max)
    except BaseException:
        body.close()
        raise
    if remaining:
        body.close()
        return problem.problem(400, "The client disconnected before the body was complete.")
    promised = _promised(environ, rule)
    if promised is not None and promised != body.sha256:
        body.close()
        return problem.wrong_digest(digest_header(environ.get("HTTP_CONTENT_DIGEST", "")))
    environ["wsgi.input"] = body.file()
    environ["CONTENT_LENGTH"] = str(body.size)
    return body


def _promised(environ: Environ, rule: Rule) -> bytes | None:
    """Return the digest from the header of the request, if its route accepts one."""
    if not rule.digest:
        return None
    return promised_digest(environ.get("HTTP_CONTENT_DIGEST", ""), environ.get("HTTP_REPR_DIGEST", ""))


def _respond(start_response: Start, response: Response) -> Iterable[bytes]:
    response = shaped(start_response, response)
    start_response(_status(response.status), _texts(response.headers))
    return [response.body]


def _status(status: int) -> str:
    return f"{status} {problem.phrase(status)}"


def _texts(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
