"""Listening socket of the hub: bound first, to report a port in use early, and opened when the hub is ready."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
import sys
from collections.abc import Iterator

from onceward.errors import InvalidConfig
from onceward.hub.config.config import Config

BACKLOG = 2048
# Time for which a client's machine may leave sent bytes unacknowledged. At least the time for which a client may stall.
DEAD_PEER_SECONDS = 120


@contextlib.contextmanager
def bind_listener(config: Config) -> Iterator[socket.socket]:
    """Bind a socket to the address. Clients cannot connect until `listen` is called."""
    host, port = config.hub.host, config.hub.port
    try:
        # A name may have several addresses. Sorting prefers IPv4, which clients try for a bare name.
        found = sorted(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    except (OSError, UnicodeError) as error:
        raise InvalidConfig(f"hub.host: {host!r} is not an address of this machine ({error})") from None
    family, kind, protocol, _, address = found[0]
    with socket.socket(family, kind, protocol) as listener:
        # Allow an address to be reused immediately after a restart.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _detect_dead_peers(config, listener)
        with _explain_errors(config):
            listener.bind(address)
        yield listener


def _detect_dead_peers(config: Config, listener: socket.socket) -> None:
    """Detect within minutes that a client's machine is unreachable; the default is about a quarter of an hour.

    Accepted connections inherit these options.
    """
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        seconds = int(max(DEAD_PEER_SECONDS, 2 * config.events.stall_seconds))
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, DEAD_PEER_SECONDS // 2)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, seconds * 1000)


def listen(config: Config, listener: socket.socket) -> None:
    with _explain_errors(config):
        listener.listen(BACKLOG)


@contextlib.contextmanager
def _explain_errors(config: Config) -> Iterator[None]:
    host, port = config.hub.host, config.hub.port
    try:
        yield
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            reason = f"port {port} on {host} is in use by another program; stop it, or choose another port with --port"
        elif error.errno == errno.EACCES:
            reason = f"this user may not listen on port {port}; choose port 1024 or higher with --port"
        elif error.errno == errno.EADDRNOTAVAIL:
            reason = f"{host} is not an address of this machine; choose another with --host"
        else:
            reason = f"cannot listen on port {port} on {host}: {error.strerror}"
        raise InvalidConfig(reason) from None


def is_loopback(listener: socket.socket) -> bool:
    """Return whether only this machine can reach the listener."""
    return ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


def url_of(listener: socket.socket, host: str, scheme: str = "http") -> str:
    """Return the URL of the hub, with the actual port even if the system chose it."""
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
