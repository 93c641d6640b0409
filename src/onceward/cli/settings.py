"""Flags that override settings: a command declares the flags that it takes, and gets the whole configuration."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from onceward.hub.config.config import Config, load

_F = TypeVar("_F", bound=Callable[..., Any])

# Plain strings here: the configuration parses the values and reports errors in them.
_FLAGS = {
    "host": ("ADDRESS", "Address to listen on. Any address other than loopback requires a token. [default: 127.0.0.1]"),
    "port": ("PORT", "Port to listen on; 0 lets the system choose one. [default: 8787]"),
    "data_dir": ("FOLDER", "Data folder. Commands that add data create it. [default: ./onceward-data]"),
    "database": ("URL", "Database for rows and events: sqlite:///path or postgresql://… [default: hub.db in the data folder]"),
    "ledger": ("URL", "Ledger for claims: sqlite:///path, postgresql://…, redis://… or memory: [default: ledger.db in the data folder, or the PostgreSQL of --database]"),
    "blobs": ("URL", "Storage for file contents: file:///path or s3://bucket/prefix [default: blobs in the data folder]"),
    "workers": ("N", "Number of server processes. [default: 1]"),
    "tls_cert": ("FILE", "Certificate in PEM format, with its chain: serve https. [default: none; serve http]"),
    "tls_key": ("FILE", "Private key of the certificate, in PEM format."),
    "namespace": ("NAME", "Namespace of the claims. [default: idempotency.key_prefix]"),
    "brain": ("MODULE:NAME", "Brain that answers /chat. Its module is imported from the Python path, or else from the current folder. [default: a demo refund desk]"),
}  # fmt: skip
# All other flags set the key of the same name in the table `hub`.
_SETTINGS = {"brain": ("turns", "brain"), "namespace": ("idempotency", "key_prefix")}
ALL = tuple(flag for flag in _FLAGS if flag != "namespace")
DATA = ("data_dir", "database")
WITH_BYTES = (*DATA, "blobs")


def settings(*flags: str) -> Callable[[_F], Callable[..., Any]]:
    """Add these flags and `--config` to a command, which gets a `config` instead of them."""

    def decorate(command: _F) -> Callable[..., Any]:
        @functools.wraps(command)
        def with_config(config_file: Path | None, **given: Any) -> Any:
            return command(loaded(config_file, {flag: given.pop(flag) for flag in flags}), **given)

        return with_flags(with_config, *flags)

    return decorate


def with_flags(command: Callable[..., Any], *flags: str) -> Callable[..., Any]:
    """Add these flags and `--config` to a command, which gets the latter as `config_file`."""
    for flag in reversed(flags):
        metavar, about = _FLAGS[flag]
        command = click.option(f"--{flag.replace('_', '-')}", flag, metavar=metavar, help=about)(command)
    return click.option(
        "--config",
        "config_file",
        metavar="FILE",
        type=click.Path(path_type=Path),
        help="TOML file with settings. [default: onceward.toml, if it exists]",
    )(command)


def loaded(config_file: Path | None, flags: Mapping[str, str | None]) -> Config:
    return load(config_file, os.environ, {_SETTINGS.get(flag, ("hub", flag)): value for flag, value in flags.items()})
