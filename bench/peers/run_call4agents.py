"""call4agents: an effect with an explicit key in a shared run, called from threads."""

from __future__ import annotations

import call4agents

from bench.load import Effects, with_threads
from bench.peers.speak import Peer, serve


def make(url: str) -> Peer:
    call4agents.init(url.removeprefix("sqlite:///"), secret=b"a secret for the bench only")
    effects = Effects()

    @call4agents.effect(name="pay")
    def pay(amount: int, currency: str) -> dict[str, object]:  # noqa: ARG001  # as every real effect has
        return effects()

    def call(key: str) -> object:
        with call4agents.run("bench"):
            return pay(10, "EUR", c4a_key=key)

    return Peer(
        "call4agents",
        call,
        lambda callers, seconds, name: with_threads(call, callers, seconds, name),
        effects,
        lambda: None,
    )


if __name__ == "__main__":
    serve(make)
