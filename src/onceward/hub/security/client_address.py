"""The address of the client behind proxies, whether the client is on this machine, and the scheme of the connection.

Anybody can send `X-Forwarded-For`, so it counts only if the peer of the connection is in `hub.trusted_proxies`. Each
proxy appends the address that it was called from. The client is therefore the right-most address that is not a trusted
proxy; everything to the left of it may be invented.

    peer of the connection    client                        may be `local`
    not a trusted proxy       the peer                      if it is a loopback address, and no header says that the
                                                            request was forwarded
    a trusted proxy           as above, or else the peer    never, also if the proxy is on this machine

`Forwarded` (RFC 7239) is not read: a proxy that sets one of the two headers passes on the other as the client sent it.

The scheme follows the same rule: `X-Forwarded-Proto` of a trusted proxy replaces the scheme of the connection, and that
of others is ignored. Behind a proxy with TLS the browser's scheme is https: cookies must be `Secure`, and the origin of
our own pages begins with `https://`. Proxies replace this header or append to it, so its last value is from the nearest
one. Anything but one of the two schemes is ignored.
"""

from __future__ import annotations

import functools
import ipaddress
from collections.abc import Iterable, Sequence
from typing import Any

from onceward.http.asgi_types import App, Receive, Send
from onceward.hub.security.hosts import address_of, is_loopback

_FORWARDED_FOR, _FORWARDED_PROTO = b"x-forwarded-for", b"x-forwarded-proto"
# The scheme of a WebSocket, by the scheme that a proxy reports.
_SCHEMES = {"http": {"http": "http", "websocket": "ws"}, "https": {"http": "https", "websocket": "wss"}}
# Headers of proxies. No client on this machine sends them, so they are evidence of a proxy that is not configured.
_FORWARDING = frozenset({
    _FORWARDED_FOR, b"forwarded", b"x-real-ip", b"x-forwarded-host", _FORWARDED_PROTO, b"via",
})  # fmt: skip


class TrustedProxies:
    """Addresses and networks of proxies that report their clients truthfully."""

    def __init__(self, networks: Iterable[str]) -> None:
        self._networks = tuple(ipaddress.ip_network(text) for text in networks)
        self.contains = functools.lru_cache(maxsize=1024)(self._contains)

    def _contains(self, text: str) -> bool:
        address = address_of(text)
        return address is not None and any(address in network for network in self._networks)

    def client_of(self, peer: str, forwarded_for: Sequence[str]) -> str:
        """Return the address of the client.

        Args:
            peer: The peer of the connection, a trusted proxy.
            forwarded_for: The values of all `X-Forwarded-For` headers, in order.

        Returns:
            The right-most address that is not a trusted proxy. If a proxy reports something else than an address, the
            address of that proxy.
        """
        client = peer
        for hop in reversed(",".join(forwarded_for).split(",")):
            address = _hop_address(hop.strip())
            if address is None:
                return client
            client = address
            if not self.contains(client):
                return client
        return client


def _hop_address(text: str) -> str | None:
    """Parse an address, with or without a port: `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]:80`."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    address = address_of(text)
    return None if address is None else str(address)


class ClientAddressMiddleware:
    """ASGI middleware for the client's address and the browser's scheme; it also notes whether a proxy forwarded it."""

    def __init__(self, app: App, trusted_proxies: Iterable[str] = ()) -> None:
        self.app = app
        self._proxies = TrustedProxies(trusted_proxies)

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] in {"http", "websocket"}:
            self._set_client(scope)
        await self.app(scope, receive, send)

    def _set_client(self, scope: Any) -> None:
        peer = scope.get("client")
        if peer is not None and self._proxies.contains(peer[0]):
            values = [value.decode("latin-1") for name, value in scope["headers"] if name == _FORWARDED_FOR]
            # The client's port is unknown.
            scope["client"] = (self._proxies.client_of(peer[0], values), 0)
            schemes = [value for name, value in scope["headers"] if name == _FORWARDED_PROTO]
            reported = b",".join(schemes).decode("latin-1").rpartition(",")[2].strip().lower()
            if reported in _SCHEMES:
                scope["scheme"] = _SCHEMES[reported][scope["type"]]
            is_forwarded = True
        else:
            is_forwarded = any(name in _FORWARDING for name, _ in scope["headers"])
        scope.setdefault("state", {})["is_forwarded"] = is_forwarded


def is_local_client(scope: Any) -> bool:
    """Return whether the client is on this machine and has connected directly."""
    client = scope.get("client")
    return client is not None and not scope.get("state", {}).get("is_forwarded") and _is_loopback_address(client[0])


@functools.lru_cache(maxsize=1024)
def _is_loopback_address(text: str) -> bool:
    return text != "localhost" and is_loopback(text)
