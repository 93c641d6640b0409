"""Databases of Django that a test names by URL, beside those of its settings."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote, urlsplit

import tests.http.django_settings  # noqa: F401  # the settings of the process, once
from django.db import connections
from django.utils.connection import ConnectionProxy

_numbers = itertools.count(1)


@contextmanager
def django_database(url: str, **options: object) -> Iterator[Any]:
    """Give what `django.db.connection` is, for another database. Each thread closes its own connection."""
    alias = f"test_{next(_numbers)}"
    settings = {"default": _settings(url) | options}
    connections.settings[alias] = connections.configure_settings(settings)["default"]
    try:
        yield ConnectionProxy(connections, alias)
    finally:
        del connections.settings[alias]


@contextmanager
def default_database(url: str) -> Iterator[None]:
    """Make the database the one of `django.db.connection`. Other threads close their own connections."""
    before = connections.settings["default"]
    connections.settings |= connections.configure_settings({"default": _settings(url)})
    connections["default"] = connections.create_connection("default")
    try:
        yield
    finally:
        connections["default"].close()
        connections.settings["default"] = before
        del connections["default"]


def _settings(url: str) -> dict[str, Any]:
    if url.startswith("sqlite"):
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": url.removeprefix("sqlite:///")}
    parts = urlsplit(url)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path[1:],
        "HOST": parts.hostname or "",
        "PORT": parts.port or "",
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
    }
