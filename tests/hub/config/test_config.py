"""Settings: their sources, which source wins, and how an invalid setting is refused."""

from __future__ import annotations

import base64
import os
import pickle
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

from onceward.errors import InvalidConfig
from onceward.hub.config.config import (
    DEFAULT_FILE,
    TABLES,
    Config,
    EventsSettings,
    HubSettings,
    effective,
    load,
    setting_types,
    variable,
)


@pytest.fixture(autouse=True)
def in_new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in a new folder, which has an `onceward.toml` only if the test writes one."""
    monkeypatch.chdir(tmp_path)


def from_text(text: str) -> Config:
    DEFAULT_FILE.write_text(text, "utf-8")
    return load(None, {}, {})


def refusal(text: str = "", environ: Mapping[str, str] | None = None, hub: Mapping[str, str] | None = None) -> str:
    DEFAULT_FILE.write_text(text, "utf-8")
    with pytest.raises(InvalidConfig) as caught:
        load(None, environ or {}, {("hub", key): value for key, value in (hub or {}).items()})
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_without_settings_the_defaults_apply() -> None:
    config = load(None, {}, {})

    assert config == Config()
    assert config.sources == {}
    assert (config.hub.host, config.hub.port, config.hub.data_dir) == ("127.0.0.1", 8787, "./onceward-data")


def test_the_environment_wins_over_the_file_and_a_flag_over_both() -> None:
    DEFAULT_FILE.write_text("[hub]\nport = 1\nworkers = 2\ngrace_seconds = 3\n", "utf-8")

    config = load(None, {"ONCEWARD_HUB__PORT": "4", "ONCEWARD_HUB__WORKERS": "5"}, {("hub", "port"): "6"})

    assert (config.hub.port, config.hub.workers, config.hub.grace_seconds) == (6, 5, 3)
    assert config.sources == {
        ("hub", "port"): "flag --port",
        ("hub", "workers"): "environment ONCEWARD_HUB__WORKERS",
        ("hub", "grace_seconds"): "file onceward.toml",
    }


def test_a_flag_that_was_not_given_changes_nothing() -> None:
    assert load(None, {}, {("hub", "port"): None}) == Config()


def test_a_named_file_is_read_instead_of_the_default_one(tmp_path: Path) -> None:
    DEFAULT_FILE.write_text("[hub]\nport = 1\n", "utf-8")
    other = tmp_path / "other.toml"
    other.write_text("[hub]\nworkers = 2\n", "utf-8")

    config = load(other, {}, {})

    assert (config.hub.port, config.hub.workers) == (8787, 2)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30", 30), ("30s", 30), ("5m", 300), ("1h", 3600), (" .5h ", 1800), ("0", 0)],
    ids=lambda value: str(value).strip(),
)
def test_a_duration_is_a_number_or_a_number_with_its_unit(text: str, seconds: float) -> None:
    by_environment = load(None, {"ONCEWARD_HUB__GRACE_SECONDS": text}, {})
    by_file = from_text(f'[hub]\ngrace_seconds = "{text}"\n')

    assert by_environment.hub.grace_seconds == by_file.hub.grace_seconds == seconds


def test_a_bare_number_has_the_unit_in_the_name_of_its_setting() -> None:
    config = from_text('[idempotency]\ndefault_ttl_hours = 2\n[events]\nkeep_days = "12h"\nretention_interval = 90\n')

    assert config.idempotency.default_ttl_hours == 2
    assert config.events.keep_days == 0.5
    assert config.events.retention_interval == 90


def test_a_list_in_the_environment_has_commas() -> None:
    config = load(None, {"ONCEWARD_AUTH__ALLOWED_HOSTS": "a.example, b.example:99,"}, {})

    assert config.auth.allowed_hosts == ("a.example", "b.example:99")
    assert from_text('[auth]\nallowed_hosts = ["a.example", "b.example:99"]\n') == config


@pytest.mark.parametrize(("text", "value"), [("true", True), ("0", False), ("Off", False), ("YES", True)])
def test_yes_and_no_are_understood_in_the_environment(text: str, value: bool) -> None:
    assert load(None, {"ONCEWARD_IDEMPOTENCY__ENABLED": text}, {}).idempotency.enabled is value


# Refused settings and their messages.


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[hub]\nprot = 1", "hub.prot (file onceward.toml): unknown setting; did you mean port?"),
        ("[hubb]\nport = 1", "[hubb] (file onceward.toml): unknown table; did you mean hub?"),
        ("[hub]\nkeep_days = 1", "hub.keep_days (file onceward.toml): unknown setting; did you mean keep_days in [events]?"),
        ("port = 1", "port (file onceward.toml): a setting must be in a table: [hub], [idempotency], [events], [attachments], [attachments.archive], [ingest], [turns] or [auth]; did you mean port in [hub]?"),
        ("[hub]\nport = '1'", "hub.port (file onceward.toml): expected a whole number from 0 to 65535, not '1'"),
        ("[hub]\nport = true", "hub.port (file onceward.toml): expected a whole number from 0 to 65535, not True"),
        ("[hub]\nport = 65536", "hub.port (file onceward.toml): expected a whole number from 0 to 65535, not 65536"),
        ("[idempotency]\nenabled = 1", "idempotency.enabled (file onceward.toml): expected true or false, not 1"),
        ("[hub]\nlog_level = 'loud'", "hub.log_level (file onceward.toml): expected one of \"debug\", \"info\", \"warning\", \"error\", \"critical\", not 'loud'"),
        ("[auth]\nallowed_hosts = 'a'", "auth.allowed_hosts (file onceward.toml): expected a list in which each item is a host name, with or without a port, not 'a'"),
    ],
    ids=["key", "table", "other-table", "no-table", "text", "bool", "range", "flag", "choice", "list"],
)  # fmt: skip
def test_a_wrong_line_in_the_file_is_named_with_what_is_expected(text: str, message: str) -> None:
    assert refusal(text) == message


def test_a_file_that_is_not_toml_is_refused_with_its_line() -> None:
    assert "'onceward.toml' is not valid TOML" in refusal("[hub]\nport 1\n")
    assert "line 2" in refusal("[hub]\nport 1\n")


def test_a_missing_file_or_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"the configuration file '.*missing\.toml' does not exist"):
        load(tmp_path / "missing.toml", {}, {})
    with pytest.raises(InvalidConfig, match=r"cannot be read: Is a directory"):
        load(tmp_path, {}, {})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("ONCEWARD_HUB__PROT", "1", "environment ONCEWARD_HUB__PROT: unknown setting; did you mean ONCEWARD_HUB__PORT?"),
        ("ONCEWARD_HUB_PORT", "1", "environment ONCEWARD_HUB_PORT: unknown setting; did you mean ONCEWARD_HUB__PORT?"),
        ("ONCEWARD_hub__port", "1", "environment ONCEWARD_hub__port: unknown setting; did you mean ONCEWARD_HUB__PORT?"),
        ("ONCEWARD_HUB__PORT", "", "hub.port (environment ONCEWARD_HUB__PORT): expected a whole number from 0 to 65535, not ''"),
        ("ONCEWARD_HUB__PORT", "٣", "hub.port (environment ONCEWARD_HUB__PORT): expected a whole number from 0 to 65535, not '٣'"),
    ],
    ids=["unknown", "one-underscore", "lower-case", "empty", "other-digits"],
)  # fmt: skip
def test_a_wrong_variable_is_named_with_what_is_expected(name: str, value: str, message: str) -> None:
    assert refusal(environ={name: value}) == message


def test_other_variables_are_ignored() -> None:
    assert load(None, {"ONCEWARD_FAULT": "x", "HUB__PORT": "1", "PATH": "/"}, {}) == Config()


def test_a_wrong_flag_is_named_as_it_was_written() -> None:
    assert refusal(hub={"data_dir": " "}) == "hub.data_dir (flag --data-dir): expected the path of a folder, not ' '"


@pytest.mark.parametrize("span", ["-1s", "1w", "1h30m", "nan", "inf", "1e3", "", "2h"])
def test_an_invalid_or_out_of_range_duration_is_refused(span: str) -> None:
    assert "a number of seconds from 0 to 3600, or a duration like" in refusal(
        environ={"ONCEWARD_HUB__GRACE_SECONDS": span}
    )


@pytest.mark.parametrize(
    ("key", "url"),
    [
        ("database", "mysql://u:hush@h/d"),
        ("database", "sqlite://relative.db"),
        ("database", "sqlite:///:memory:"),
        ("database", "sqlite:///"),
        ("database", "memory:"),
        ("database", "redis://:hush@h"),
        ("database", "u:hush@h"),
        ("ledger", "hub.db"),
        ("ledger", "http://u:hush@h"),
        ("ledger", "postgresql://"),
        ("blobs", "/folder"),
        ("blobs", "file:///"),
        ("host", "127.0.0.1:80"),
        ("host", "[::1]"),
        ("host", "http://localhost"),
    ],
)
def test_a_url_with_another_scheme_is_refused_without_its_password(key: str, url: str) -> None:
    message = refusal(hub={key: url})

    assert message.startswith(f"hub.{key} (flag --{key}): expected ")
    assert "hush" not in message


@pytest.mark.parametrize(
    "origin", ["app.example", "https://app.example/", "https://a b", "ftp://a", "*", "https://u@h"]
)
def test_an_invalid_origin_is_refused(origin: str) -> None:
    assert "allowed_origins" in refusal(environ={"ONCEWARD_AUTH__ALLOWED_ORIGINS": origin})


@pytest.mark.parametrize("text", ["proxy.example.com", "10.0.0.1/8", "0.0.0.0/0", "::/0", "10.0.0.0/33", ""])
def test_a_trusted_proxy_is_an_address_or_a_network(text: str) -> None:
    message = refusal(f"[hub]\ntrusted_proxies = ['{text}']\n")

    assert message.startswith(
        "hub.trusted_proxies (file onceward.toml): expected a list in which each item is an address"
    )
    found = from_text("[hub]\ntrusted_proxies = ['127.0.0.1', '10.0.0.0/8', '::1']\n").hub.trusted_proxies
    assert found == ("127.0.0.1", "10.0.0.0/8", "::1")


def test_the_audit_log_is_kept_for_thirty_days_or_longer() -> None:
    message = refusal("[hub]\naudit_keep_days = '7d'\n")

    assert message == "hub.audit_keep_days (file onceward.toml): expected 0 (keep forever) or at least 30, not 7"
    for days in (0, 30):
        assert from_text(f"[hub]\naudit_keep_days = {days}\n").hub.audit_keep_days == days


def test_a_memory_ledger_is_refused_for_several_workers() -> None:
    message = refusal("[hub]\nworkers = 2\nledger = 'memory:'\n")

    assert message.startswith(
        "hub.ledger (file onceward.toml): a memory: ledger cannot be shared by several processes; with hub.workers = 2"
    )
    assert from_text("[hub]\nworkers = 1\nledger = 'memory:'\n").ledger_url == "memory:"


# Derived settings.


def test_the_ledger_is_a_file_of_its_own_or_beside_the_rows_on_postgresql() -> None:
    plain = Config(hub=HubSettings(data_dir="/var/a b"))
    server = Config(hub=HubSettings(database="postgresql://h/d"))
    file = Config(hub=HubSettings(database="sqlite:///x.db"))

    assert (plain.database_url, plain.ledger_url) == ("sqlite:////var/a%20b/hub.db", "sqlite:////var/a%20b/ledger.db")
    assert plain.blobs_url == "file:///var/a%20b/blobs"
    assert server.ledger_url == "postgresql://h/d"
    assert file.ledger_url == "sqlite:///onceward-data/ledger.db"


def test_the_effective_settings_are_toml_that_loads_as_the_same_settings() -> None:
    environ = {
        "ONCEWARD_EVENTS__KEEP_DAYS": "36h",
        "ONCEWARD_AUTH__ALLOWED_ORIGINS": "https://a.example,http://[::1]:99",
        "ONCEWARD_HUB__DATA_DIR": 'a "b" \\ c # d',
        "ONCEWARD_EVENTS__RETENTION_INTERVAL": "90",
    }
    config = load(None, environ, {("hub", "port"): 0})

    text = effective(config)

    assert from_text(text) == config
    lines = text.splitlines()
    assert "port = 0  # flag --port" in lines
    assert "keep_days = 1.5  # environment ONCEWARD_EVENTS__KEEP_DAYS" in lines
    assert 'retention_interval = "90s"  # environment ONCEWARD_EVENTS__RETENTION_INTERVAL' in lines
    assert 'host = "127.0.0.1"  # default' in lines
    assert 'retention_interval = "1h"  # default' in effective(Config(events=EventsSettings()))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:hush@h/d", "postgresql://u:***@h/d"),
        ("postgresql://u:hu@sh/hush@h/d", "postgresql://u:***@h/d"),
        ("postgresql://h/d?password=hush&sslmode=require", "postgresql://h/d?password=***&sslmode=require"),
        ("postgresql://h/d?sslPassword=hush", "postgresql://h/d?sslPassword=***"),
        ("redis://:hush@h", "redis://:***@h"),
        ("valkeys+cluster://:hush@h", "valkeys+cluster://:***@h"),
        ("postgresql://u@h/d", "postgresql://u@h/d"),
    ],
)
def test_a_password_is_never_shown(url: str, shown: str) -> None:
    text = effective(load(None, {"ONCEWARD_HUB__LEDGER": url}, {}))

    assert tomllib.loads(text)["hub"]["ledger"] == shown
    assert "hush" not in text


def test_keys_are_read_from_base64_and_never_shown() -> None:
    one, other = os.urandom(32), os.urandom(16)
    text = f"{base64.b64encode(one).decode()},{base64.b64encode(other).decode()}"
    config = load(None, {"ONCEWARD_IDEMPOTENCY__ENCRYPTION_KEYS": text}, {})

    assert config.idempotency.encryption_keys == (one, other)
    assert 'encryption_keys = ["***", "***"]  # environment' in effective(config)
    assert repr(one) not in repr(config)
    for wrong in ("c2hvcnQ=", "%", "x"):
        with pytest.raises(
            InvalidConfig, match=r"expected a list of keys in base64, each with a length of 16, 24, 32 bytes$"
        ):
            load(None, {"ONCEWARD_IDEMPOTENCY__ENCRYPTION_KEYS": wrong}, {})


def test_settings_travel_to_worker_processes() -> None:
    config = load(None, {"ONCEWARD_HUB__PORT": "1"}, {})

    assert pickle.loads(pickle.dumps(config)) == config  # noqa: S301  # our own bytes


@pytest.mark.parametrize("table", TABLES)
def test_every_default_is_valid_for_its_own_setting(table: str) -> None:
    for key, kind in setting_types(table).items():
        default = getattr(TABLES[table](), key)

        assert kind.read(default, as_text=False) == default
        assert variable(table, key) == f"ONCEWARD_{table.upper().replace('.', '__')}__{key.upper()}"


def test_a_table_within_a_table_is_read_from_the_file_and_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text("[attachments]\ngc_grace = '2h'\n[attachments.archive]\nmax_entries = 7\n", "utf-8")

    config = load(file, {"ONCEWARD_ATTACHMENTS__ARCHIVE__MAX_PATH_LENGTH": "9"}, {})

    assert (config.attachments.gc_grace, config.attachments_archive.max_entries) == (7200, 7)
    assert config.attachments_archive.max_path_length == 9
    assert "[attachments.archive]\nmax_entries = 7  # file" in effective(config)
    file.write_text("[attachments.archive]\nmax_entry = 7\n", "utf-8")
    with pytest.raises(InvalidConfig, match=r"attachments\.archive\.max_entry"):
        load(file, {}, {})
