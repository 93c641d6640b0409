"""A served hub: when it is ready, when it refuses to start, and how it stops."""

from __future__ import annotations

import re
import signal
import socket
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.hub.hub_process import RunningHub, running_hub, started_hub
from tests.hub.server.raw_http import UnfinishedResponse, app_command, folder_with_database, get
from tests.waiting import until

from onceward.errors import InvalidConfig, InvalidStoreUrl
from onceward.hub.config.config import Config, HubSettings
from onceward.hub.config.data_folder import opened
from onceward.hub.security.tokens import create, open_local, revoke
from onceward.hub.server import serve as serving
from onceward.hub.server.listener import bind_listener, is_loopback, listen, url_of


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def old_data(tmp_path: Path) -> Path:
    return folder_with_database(tmp_path / "old")


def test_it_responds_as_soon_as_it_prints_its_address(tmp_path: Path) -> None:
    """Its folder may have any name."""
    data_dir = tmp_path / "a b%20c?d#e ü" / "data"
    with running_hub(data_dir=data_dir, command=app_command("plain"), cwd=tmp_path) as hub:
        message = hub.log_lines()[-1]

        assert int(get(hub, "/pid")) == hub.process.pid
        frozen, threshold, switch_seconds = map(float, get(hub, "/frozen").split())
        assert frozen > 10_000, "the collector walks through what is there for good"
        assert threshold == 20_000
        assert switch_seconds == pytest.approx(0.0005)
    folder = re.escape(str(data_dir))
    assert re.fullmatch(rf"onceward: listening on http://127\.0\.0\.1:\d+ \(data in {folder}\)", message)
    assert (data_dir / "hub.db").is_file()
    assert stat.S_IMODE(data_dir.stat().st_mode) == 0o700, "it is its owner's alone"


def test_its_address_is_printed_in_one_write_that_no_log_line_can_split(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data_dir.mkdir()
    written: list[str] = []
    config = Config(hub=HubSettings(port=0, data_dir=str(data_dir)))
    with bind_listener(config) as listener, monkeypatch.context() as patched:
        patched.setattr("sys.stdout.write", written.append)
        serving._announce(config, listener)

    (message,) = [text for text in written if text]
    assert message.startswith("onceward: listening on http://127.0.0.1:")
    assert message.endswith(f"(data in {data_dir})\n")


def test_it_listens_on_ipv6_too() -> None:
    config = Config(hub=HubSettings(host="::1", port=0))
    with bind_listener(config) as listener:
        listen(config, listener)
        port = listener.getsockname()[1]
        socket.create_connection(("::1", port), timeout=5).close()

        assert url_of(listener, "::1") == f"http://[::1]:{port}"
        assert is_loopback(listener)


def test_a_client_whose_machine_is_gone_is_noticed_within_minutes() -> None:
    config = Config(hub=HubSettings(port=0))
    with bind_listener(config) as listener:
        listen(config, listener)
        with socket.create_connection(listener.getsockname(), timeout=5), listener.accept()[0] as accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 120_000


# Refusals at the start.


def unexpected_start(config: Config) -> object:
    raise AssertionError(f"it was not refused: {config}")


def refusal(kind: type[Exception], data_dir: Path, **hub: str | int) -> str:
    settings = HubSettings(**{"data_dir": str(data_dir), "port": 0, **hub})  # type: ignore[arg-type]
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(kind) as caught:
        serving.serve(Config(hub=settings), unexpected_start)
    assert signal.getsignal(signal.SIGTERM) is before
    return str(caught.value)


def test_a_port_in_use_is_refused_before_anything_is_created(data_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        message = refusal(InvalidConfig, data_dir, port=port)

    assert message == (
        f"port {port} on 127.0.0.1 is in use by another program; stop it, or choose another port with --port"
    )
    assert not data_dir.exists()


def test_of_two_concurrent_starts_on_one_port_the_later_is_refused(data_dir: Path) -> None:
    """Both may bind the port while neither listens."""
    with bind_listener(Config(hub=HubSettings(port=0))) as first:
        config = Config(hub=HubSettings(port=first.getsockname()[1], data_dir=str(data_dir)))
        with bind_listener(config) as second:
            listen(config, first)
            with pytest.raises(InvalidConfig, match="is in use by another program"):
                listen(config, second)


@pytest.mark.parametrize(
    ("name", "why"), [("file/data", "Not a directory"), ("file", "a file has this name")], ids=["within", "at"]
)
def test_a_data_folder_that_cannot_be_created_is_refused(tmp_path: Path, name: str, why: str) -> None:
    (tmp_path / "file").touch()

    message = refusal(InvalidConfig, tmp_path / name)

    assert message.startswith("hub.data_dir: cannot create the folder")
    assert message.endswith(f": {why}; choose another with --data-dir")


def test_a_public_address_needs_a_hub_that_requires_a_token(data_dir: Path) -> None:
    """The address is bound but does not listen, so nothing can connect."""
    message = refusal(InvalidConfig, data_dir, host="0.0.0.0")  # noqa: S104

    config = Config(hub=HubSettings(data_dir=str(data_dir), host="0.0.0.0", port=0))  # noqa: S104
    with opened(config) as database, bind_listener(config) as listener:
        with database.write() as tx:
            create(tx, "ada", ["read"])
        serving._check_tokens(config, listener, database)
        with database.write() as tx:
            revoke(tx, "ada")
        # No request is accepted without a token, and the next token can be created while it runs.
        serving._check_tokens(config, listener, database)
        with database.write() as tx:
            open_local(tx)
        with pytest.raises(InvalidConfig):
            serving._check_tokens(config, listener, database)

    assert message.startswith("0.0.0.0 can be reached from other machines, but no token exists yet; first run")
    assert "`onceward token create NAME --scope read --scope write`" in message


def test_an_address_of_another_machine_is_refused(data_dir: Path) -> None:
    message = refusal(InvalidConfig, data_dir, host="192.0.2.1")

    assert message == "192.0.2.1 is not an address of this machine; choose another with --host"


def test_stores_that_cannot_be_opened_are_refused(data_dir: Path) -> None:
    assert "colour" in refusal(InvalidStoreUrl, data_dir, ledger="redis://h/0?colour=red")
    assert "the folder of '/nowhere/at/all.db' does not exist" in refusal(
        InvalidStoreUrl, data_dir, database="sqlite:////nowhere/at/all.db"
    )


def test_an_application_that_does_not_start_ends_it_with_the_reason(old_data: Path) -> None:
    with started_hub(data_dir=old_data, command=app_command("fails-to-start")) as hub:
        assert hub.wait() == 1

    assert any("the roof is gone" in line for line in hub.log_lines())
    assert not any("listening" in line for line in hub.log_lines())


# How it stops.


def test_a_signal_while_it_starts_ends_it_quietly(old_data: Path) -> None:
    with started_hub(data_dir=old_data, command=app_command("slow-start")) as hub:
        hub.wait_for_line("app: starting")
        assert hub.stop() == 0

    assert hub.log_lines()[0] == "app: starting", "it says that it listens only when it does"
    assert "Traceback" not in "\n".join(hub.log_lines())


@pytest.mark.parametrize("app", ["signalled-before-start", "signalled-in-a-callback"])
def test_a_signal_swallowed_during_the_start_still_ends_it(old_data: Path, app: str) -> None:
    """The signal is lost in an `except:` of a module during its import, or in a callback of the import itself."""
    with started_hub(data_dir=old_data, command=app_command(app)) as hub:
        assert hub.wait() == 0

    assert hub.log_lines() == []


class RaisesAtItsEnd:
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __del__(self) -> None:
        raise self.error


def test_only_the_exit_of_a_signal_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[BaseException | None] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: shown.append(unraisable.exc_value))
    before = sys.unraisablehook
    error, early, late = ValueError("a bug"), SystemExit(1), SystemExit(0)

    with serving._ended_by_signals():
        RaisesAtItsEnd(early)
        with pytest.raises(SystemExit):
            signal.raise_signal(signal.SIGTERM)
        RaisesAtItsEnd(late)
        RaisesAtItsEnd(error)

    assert shown == [early, error]
    assert sys.unraisablehook is before


@pytest.fixture
def plain(old_data: Path) -> Iterator[RunningHub]:
    with running_hub(data_dir=old_data, command=app_command("plain")) as hub:
        yield hub


def test_it_stops_cleanly(plain: RunningHub) -> None:
    """No new connections; streams end with their resume id; running requests are finished; then the server closes."""
    with closing(UnfinishedResponse(plain, "/stream")) as stream, closing(UnfinishedResponse(plain, "/slow")) as slow:
        plain.process.terminate()
        plain.wait_for_line("streams are stopped")

        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", plain.port), timeout=5).close()
        assert stream.response.read() == b"resume from 7\n"
        slow.finish()
        assert slow.response.read() == b"done\n"

    assert plain.wait() == 0
    assert plain.log_lines()[1:] == ["app: streams are stopped", "app: the slow request is done", "app: closed"]


def test_stopping_by_ctrl_c_takes_no_longer_than_the_grace_period(old_data: Path) -> None:
    """Streams and requests that never end share one grace period."""
    grace = {"ONCEWARD_HUB__GRACE_SECONDS": "4"}
    with (
        running_hub(data_dir=old_data, env=grace, command=app_command("endless-streams")) as hub,
        closing(UnfinishedResponse(hub, "/slow")),
    ):
        began = time.monotonic()
        hub.process.send_signal(signal.SIGINT)
        code = hub.wait()
        took = time.monotonic() - began

    assert code == 0
    assert 4 <= took < 8, "less than two grace periods"
    assert hub.log_lines()[-1] == "app: closed"


@pytest.mark.parametrize("waits_for", ["streams", "requests"])
def test_a_second_ctrl_c_ends_the_grace_period_and_closes_cleanly(old_data: Path, waits_for: str) -> None:
    env = {"ONCEWARD_HUB__GRACE_SECONDS": "60"}
    name = "endless-streams" if waits_for == "streams" else "plain"
    with (
        running_hub(data_dir=old_data, env=env, command=app_command(name)) as hub,
        closing(UnfinishedResponse(hub, "/slow")),
    ):
        hub.process.send_signal(signal.SIGINT)
        until(lambda: "app: streams are stopped" in hub.log_lines(), "it began to stop")
        began = time.monotonic()
        hub.process.send_signal(signal.SIGINT)
        code = hub.wait()
        took = time.monotonic() - began

    assert code == 0
    assert took < 10
    assert hub.log_lines()[-1] == "app: closed"


def test_tasks_that_cannot_be_stopped_do_not_keep_the_process(old_data: Path) -> None:
    env = {"ONCEWARD_HUB__GRACE_SECONDS": "0", "CLOSE_SECONDS": "0.5"}
    with running_hub(data_dir=old_data, env=env, command=app_command("plain")) as hub:
        UnfinishedResponse(hub, "/thread").close()
        assert hub.stop() == 1

    assert hub.log_lines()[-1] == "onceward: work is still running after the grace period; exiting now"
