"""The flags that are settings: each command takes those that concern it, and gets the whole configuration."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from onceward.hub.config import Config, load

_F = TypeVar("_F", bound=Callable[..., Any])

# Values are read by the configuration, which also knows what is wrong with them.
_FLAGS = {
    "host": ("ADDRESS", "Where to listen; other than loopback only with tokens. [default: 127.0.0.1]"),
    "port": ("PORT", "The port; 0 lets the system choose one. [default: 8787]"),
    "data_dir": ("FOLDER", "Where everything is kept; made if missing. [default: ./onceward-data]"),
    "database": ("URL", "Rows and events: sqlite:///path or postgresql://… [default: hub.db in the data folder]"),
    "ledger": ("URL", "Claims: sqlite:///path, postgresql://…, redis://… or memory: [default: ledger.db in the data folder, or the PostgreSQL of --database]"),
    "blobs": ("URL", "Bytes: file:///path or s3://bucket/prefix [default: blobs in the data folder]"),
    "workers": ("N", "How many processes answer. [default: 1]"),
    "namespace": ("NAME", "The namespace of the claims. [default: idempotency.key_prefix]"),
    "brain": ("MODULE:NAME", "Who answers /chat; a module of the current folder is found last. [default: a refund desk to try]"),
}  # fmt: skip
# All others are the key of the same name of the table `hub`.
_SETTINGS = {"brain": ("turns", "brain"), "namespace": ("idempotency", "key_prefix")}
ALL = tuple(flag for flag in _FLAGS if flag != "namespace")
DATA = ("data_dir", "database")
WITH_BYTES = (*DATA, "blobs")


def settings(*flags: str) -> Callable[[_F], Callable[..., Any]]:
    """Adds these flags and `--config`; the command gets a `config` instead of them."""

    def decorate(command: _F) -> Callable[..., Any]:
        @functools.wraps(command)
        def with_config(config_file: Path | None, **given: Any) -> Any:
            return command(loaded(config_file, {flag: given.pop(flag) for flag in flags}), **given)

        return with_flags(with_config, *flags)

    return decorate


def with_flags(command: Callable[..., Any], *flags: str) -> Callable[..., Any]:
    """Adds these flags and `--config`, which the command gets as `config_file`."""
    for flag in reversed(flags):
        metavar, about = _FLAGS[flag]
        command = click.option(f"--{flag.replace('_', '-')}", flag, metavar=metavar, help=about)(command)
    return click.option(
        "--config",
        "config_file",
        metavar="FILE",
        type=click.Path(path_type=Path),
        help="Settings as TOML. [default: onceward.toml, if it is there]",
    )(command)


def loaded(config_file: Path | None, flags: Mapping[str, str | None]) -> Config:
    return load(config_file, os.environ, {_SETTINGS.get(flag, ("hub", flag)): value for flag, value in flags.items()})
