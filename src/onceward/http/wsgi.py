"""`WSGIIdempotencyMiddleware`: the twin of the ASGI middleware for Flask, Django and anything else under WSGI.

    app.wsgi_app = WSGIIdempotencyMiddleware(app.wsgi_app, store="sqlite:///keys.db")                # Flask
    application = WSGIIdempotencyMiddleware(get_wsgi_application(), store="postgresql://…")          # Django

What it decides and records is the same code, waited for on the request's own thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Unpack, assert_never

from onceward.blocking import wait
from onceward.core.claim import Busy, Claim, Entry, InDoubt, Mismatch, Replay
from onceward.core.request import fingerprint_of, key_of, length_of, media_type_of, wait_seconds_of
from onceward.errors import ClaimLost, InvalidKey, InvalidOption, StoreUnavailable
from onceward.http import principal as principals
from onceward.http import problem
from onceward.http.ending import Ending
from onceward.http.events import interrupted, place_of
from onceward.http.guard import Asked, Guard, Options, PrincipalChanged, retry_seconds
from onceward.http.operation import ENVIRON_KEY, GUARDED, operation_around
from onceward.http.principal import CREDENTIAL_HEADERS, Principal
from onceward.http.problem import Answer
from onceward.http.replay import INTERRUPTED, REPLAYED, has_events, kept_answer
from onceward.http.responding import Responding, close
from onceward.http.routes import wsgi_rule
from onceward.http.rules import Rule
from onceward.http.spool import Body, TooLarge, digest_header, promised_digest
from onceward.http.stream import Recorded
from onceward.http.winner import outcome_of_winner
from onceward.ledger import Ledger
from onceward.store import Store

Environ = dict[str, Any]
Start = Callable[..., Any]
App = Callable[[Environ, Start], Iterable[bytes]]

SILENT = "The stream was silent for too long. Retry with the same key."

# One read of a request's body.
_PIECE_BYTES = 64 * 1024


class WSGIIdempotencyMiddleware:
    """Wraps a WSGI application. `store` is a URL, a store or a ledger; see `Options` for the rest."""

    def __init__(self, app: App, store: str | Store | Ledger, **options: Unpack[Options]) -> None:
        self.app = app
        self._guard = guard = Guard(store, options)
        self._methods = guard.methods if guard.enabled else frozenset()

    def close(self) -> None:
        """Let go of the ledger, if it is the middleware's own. WSGI has no moment of its own for it."""
        self._guard.close()

    def __call__(self, environ: Environ, start_response: Start) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] in self._methods and self._guard.covers(path := _path(environ)):
            if "HTTP_IDEMPOTENCY_KEY" in environ or "HTTP_X_IDEMPOTENCY_KEY" in environ:
                return self._keyed(environ, self._rule(environ, path), path, start_response)
            if self._guard.may_require and self._rule(environ, path).required:
                return _answer(start_response, problem.key_required())
        environ.setdefault(ENVIRON_KEY, GUARDED)
        return self.app(environ, start_response)

    def _rule(self, environ: Environ, path: str) -> Rule:
        return self._guard.rule(wsgi_rule(self.app, environ), path)

    def _keyed(self, environ: Environ, rule: Rule, path: str, start_response: Start) -> Iterable[bytes]:
        try:
            key = key_of(_lines(environ, "HTTP_IDEMPOTENCY_KEY"), _lines(environ, "HTTP_X_IDEMPOTENCY_KEY"))
        except InvalidKey as error:
            return _answer(start_response, problem.bad_key(str(error)))
        outer = operation_around(environ, ENVIRON_KEY)
        if outer is not None and outer.key == key:
            return self.app(environ, start_response)  # the middleware is there twice, and the outer one has the claim
        body = _read(environ, rule)
        if isinstance(body, Answer):
            return _answer(start_response, body)
        try:
            asked = self._asked(environ, rule, path, key, body)
            return self._decide(environ, asked, body, start_response)
        except BaseException:
            body.close()
            raise

    def _asked(self, environ: Environ, rule: Rule, path: str, key: str, body: Body) -> Asked:
        method = environ["REQUEST_METHOD"]
        query = environ.get("QUERY_STRING", "").encode("latin-1")
        media_type = media_type_of(environ.get("CONTENT_TYPE", ""))
        digest = _promised(environ, rule) or body.digest(rule.fields)
        seconds = wait_seconds_of(_lines(environ, "HTTP_PREFER"))
        return Asked(
            key,
            self._principal(environ),
            fingerprint_of(method, _raw_path(environ), query, media_type, digest, self._guard.variant(environ)),
            f"{method} {path}",
            rule,
            (rule.wait_seconds or 0.0) if seconds is None else seconds,
        )

    def _principal(self, environ: Environ) -> Principal:
        if self._guard.principal is not None:
            name = self._guard.principal(environ)
            if hasattr(name, "__await__"):
                raise InvalidOption("principal= is an async function, which WSGI cannot await; give a plain one")
            return principals.named(name)
        found = principals.of_user(environ.get("REMOTE_USER") or None)
        if found is None:
            names = {name: "HTTP_" + name.upper().replace("-", "_") for name in CREDENTIAL_HEADERS}
            sent = [(name, environ[line].encode("latin-1")) for name, line in names.items() if environ.get(line)]
            found = principals.of_request(sent, self._guard.session_cookies)
            if found.fleeting:
                self._guard.tell_fleeting()
        return found

    def _decide(self, environ: Environ, asked: Asked, body: Body, start_response: Start) -> Iterable[bytes]:
        try:
            found = wait(self._guard.admit(asked))
        except StoreUnavailable:
            body.close()
            return _answer(start_response, problem.unavailable())
        if isinstance(found, Claim):
            return self._run(environ, asked, found, body, start_response)
        if found is None:
            environ.setdefault(ENVIRON_KEY, GUARDED)
            return _Unprotected(self.app(environ, start_response), body)
        body.close()
        match found:
            case Replay(entry):
                return self._replay(entry, environ, start_response)
            case Busy(entry):
                if entry.outcome.chunks:
                    return self._replay(entry, environ, start_response)
                return _answer(start_response, problem.busy(retry_seconds(found)))
            case Mismatch():
                return _answer(start_response, problem.mismatch())
            case PrincipalChanged():
                return _answer(start_response, problem.principal_changed())
            case InDoubt():
                return _answer(start_response, problem.in_doubt())
            case _:
                assert_never(found)

    def _run(self, environ: Environ, asked: Asked, claim: Claim, body: Body, start_response: Start) -> Iterable[bytes]:
        ending = Ending(self._guard, asked, claim)
        environ[ENVIRON_KEY] = ending.operation
        place = place_of(environ.get("HTTP_LAST_EVENT_ID", ""))
        preface = interrupted(INTERRUPTED) if place is not None and place[0] != claim.version else b""

        def lost() -> Iterable[bytes]:
            entry = wait(outcome_of_winner(self._guard, asked))
            if isinstance(entry, Answer):
                return _answer(start_response, entry)
            return self._replay(entry, {}, start_response)

        responding = Responding(ending, start_response, lost, body.close, preface, self._guard.max_stream_seconds)
        responding.call(self.app, environ)
        return responding

    def _replay(self, entry: Entry, environ: Environ, start_response: Start) -> Iterable[bytes]:
        """What is recorded of this entry, followed to its end if it is still being written."""
        if not entry.outcome.chunks:
            return _answer(start_response, kept_answer(self._guard.form, entry))
        recorded = Recorded(self._guard.ledger, self._guard.form, entry)
        last_event_id = environ.get("HTTP_LAST_EVENT_ID", "")
        behind = True
        try:
            head = wait(recorded.head())
            if last_event_id and head is not None and has_events(head[1]):
                behind = wait(recorded.resume(last_event_id))
        except StoreUnavailable:
            return _answer(start_response, problem.unavailable())
        if head is None:
            return _answer(start_response, problem.busy() if recorded.interrupted else problem.not_kept())
        status, headers = head
        start_response(_status(status), _texts([*headers, REPLAYED]))
        return self._pages(recorded, has_events(headers), behind)

    def _pages(self, recorded: Recorded, events: bool, behind: bool) -> Iterator[bytes]:
        if not behind:
            yield interrupted(INTERRUPTED)
        # Nobody tells this thread that its client went away: it does not follow a silent stream for ever.
        while pieces := wait(recorded.page(self._guard.max_stream_seconds)):
            yield b"".join(pieces)
        if recorded.interrupted:
            if not events:
                why = "it was silent for too long" if recorded.silent else "its producer is gone"
                raise ClaimLost(f"a recorded response stops before its end: {why}")
            yield interrupted(SILENT if recorded.silent else INTERRUPTED)


class _Unprotected:
    """The response of a request that runs without a claim. Its body is let go of when the server is through."""

    def __init__(self, pieces: Iterable[bytes], body: Body) -> None:
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
    """The path undecoded: WSGI hands over each of its bytes as a character."""
    raw: str = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
    return raw.encode("latin-1")


def _lines(environ: Environ, name: str) -> list[str]:
    """The header's lines. A WSGI server joins them with commas; a comma that belongs to a key must be in quotes."""
    if name not in environ:
        return []
    line: str = environ[name]
    if name == "HTTP_PREFER" or line.lstrip().startswith('"'):
        return [line]
    return line.split(",")


def _read(environ: Environ, rule: Rule) -> Body | Answer:
    """The body, which the application then reads again, or why it is refused."""
    bytes_max = rule.max_body_bytes or 0
    left = length_of(environ.get("CONTENT_LENGTH") or "")
    if left is not None and left > bytes_max:
        return problem.too_large(bytes_max)
    if left is None and not environ.get("wsgi.input_terminated"):
        if environ.get("HTTP_TRANSFER_ENCODING"):
            return problem.problem(400, "The server cannot see where this body ends; send Content-Length")
        left = 0
    body = Body(environ.get("CONTENT_TYPE", ""), bytes_max)
    try:
        while left is None or left > 0:
            data = environ["wsgi.input"].read(_PIECE_BYTES if left is None else min(left, _PIECE_BYTES))
            if not data:
                break
            body.feed(data)
            left = None if left is None else left - len(data)
    except TooLarge:
        body.close()
        return problem.too_large(bytes_max)
    except BaseException:
        body.close()
        raise
    if left:
        body.close()
        return problem.problem(400, "The request ended before all of its body had come")
    promised = _promised(environ, rule)
    if promised is not None and promised != body.sha256:
        body.close()
        return problem.wrong_digest(digest_header(environ.get("HTTP_CONTENT_DIGEST", "")))
    environ["wsgi.input"] = body.file()
    environ["CONTENT_LENGTH"] = str(body.size)
    return body


def _promised(environ: Environ, rule: Rule) -> bytes | None:
    """The digest that stands for the body, where its route takes one."""
    if not rule.digest:
        return None
    return promised_digest(environ.get("HTTP_CONTENT_DIGEST", ""), environ.get("HTTP_REPR_DIGEST", ""))


def _answer(start_response: Start, whole: Answer) -> Iterable[bytes]:
    start_response(_status(whole.status), _texts(whole.headers))
    return [whole.body]


def _status(status: int) -> str:
    return f"{status} {problem.phrase(status)}"


def _texts(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
