"""The address that a hub listens on: bound early, so that a taken port is known before anything is made, and opened late."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
import sys
from collections.abc import Iterator

from onceward.errors import InvalidConfig
from onceward.hub.config import Config

BACKLOG = 2048
# How long bytes may go unanswered by a client's machine. Never less than a client may stand still.
GONE_SECONDS = 120


@contextlib.contextmanager
def bound(config: Config) -> Iterator[socket.socket]:
    """A socket at the address, which nobody can connect to yet."""
    host, port = config.hub.host, config.hub.port
    try:
        # Names stand for several addresses; IPv4 is what clients try when a name is all they have.
        found = sorted(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    except (OSError, UnicodeError) as error:
        raise InvalidConfig(f"hub.host: {host!r} is no address of this machine ({error})") from None
    family, kind, protocol, _, address = found[0]
    with socket.socket(family, kind, protocol) as listener:
        # An address that was just in use may be taken again at once.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _forget_the_gone(config, listener)
        with _explained(config):
            listener.bind(address)
        yield listener


def _forget_the_gone(config: Config, listener: socket.socket) -> None:
    """A client whose machine is gone is noticed in minutes, not in a quarter of an hour. Connections inherit this."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        seconds = int(max(GONE_SECONDS, 2 * config.events.stall_seconds))
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, GONE_SECONDS // 2)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, seconds * 1000)


def listen(config: Config, listener: socket.socket) -> None:
    with _explained(config):
        listener.listen(BACKLOG)


@contextlib.contextmanager
def _explained(config: Config) -> Iterator[None]:
    host, port = config.hub.host, config.hub.port
    try:
        yield
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            reason = f"port {port} of {host} is taken by another program; stop that one, or choose another with --port"
        elif error.errno == errno.EACCES:
            reason = f"port {port} needs more rights than this user has; choose one from 1024 with --port"
        elif error.errno == errno.EADDRNOTAVAIL:
            reason = f"{host} is no address of this machine; choose another with --host"
        else:
            reason = f"cannot listen on port {port} of {host}: {error.strerror}"
        raise InvalidConfig(reason) from None


def is_loopback(listener: socket.socket) -> bool:
    """Whether only this machine can reach it."""
    return ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


def url_of(listener: socket.socket, host: str) -> str:
    """How the hub is called. The port is the real one, also when the system was asked to choose."""
    return f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
