"""The process of the wrapped server, and the lines between it, the proxy and the client.

Threads read and write the pipes, because not every system can wait for a pipe in an event loop. A reader waits until its
line is handled, so a slow receiver slows the sender down, as without the proxy.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import shutil
import signal
import subprocess
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, cast

from onceward.integrations.mcp_wrap.config import WrapConfig, server_name
from onceward.integrations.mcp_wrap.proxy import Proxy
from onceward.ledger.ledger import Ledger

# How much is read from a pipe at once: the capacity of a pipe on Linux.
_READ_BYTES: Final = 64 * 1024
# The server gets this long to end after its input has ended, and again after it was asked to terminate.
_EXIT_SECONDS: Final = 5.0
# The exit code of a process that a signal ended is this plus the number of the signal.
_SIGNALLED: Final = 128


async def wrap(
    command: Sequence[str], config: WrapConfig, ledger: Ledger, client_input: int = 0, client_output: int = 1
) -> int:
    """Run a server on stdio, with its tools once-only, until the client disconnects or the server ends.

    Args:
        command: The program of the server, and its arguments.
        config: The settings.
        ledger: The ledger that records the calls.
        client_input: The file descriptor that the client writes to.
        client_output: The file descriptor that the client reads from.

    Returns:
        The exit code of the server; 128 and the number of the signal if a signal ended it.

    Raises:
        OSError: The server cannot be started.
    """
    program = shutil.which(command[0]) or command[0]
    process = subprocess.Popen([program, *command[1:]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)  # noqa: ASYNC220, S603  # it returns at once; the user's own command
    with process:
        return await _Session(process, config, ledger, command, client_input, client_output).run()


class _Session:
    """One run of the server, from its start to its end."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        config: WrapConfig,
        ledger: Ledger,
        command: Sequence[str],
        client_input: int,
        client_output: int,
    ) -> None:
        self._process = process
        self._config = config
        # Both are unbuffered pipes.
        self._server_input = _Writer(cast("io.FileIO", process.stdin))
        self._server_output = cast("io.FileIO", process.stdout)
        # Unbuffered: a thread that waits in a buffered read would hold a lock that Python needs when it ends.
        self._client_input = io.FileIO(client_input, "rb", closefd=False)
        self._client_output = _Writer(io.FileIO(client_output, "wb", closefd=False))
        name = config.name or server_name(command)
        self._proxy = Proxy(config, ledger, name, self._send_to_client, self._server_input.write)
        self._loop = asyncio.get_running_loop()

    async def run(self) -> int:
        with self._signals():
            client = self._read(self._client_input, self._proxy.from_client)
            server = self._read(self._server_output, self._proxy.from_server)
            await asyncio.wait([client, server], return_when=asyncio.FIRST_COMPLETED)
            if not server.done():
                # The client has gone. Record the outcome of its calls, then let the server end.
                finishing = asyncio.ensure_future(self._proxy.finish(self._config.finish_seconds))
                await asyncio.wait([finishing, server], return_when=asyncio.FIRST_COMPLETED)
                finishing.cancel()
                await self._server_input.close()
                await asyncio.wait([server], timeout=_EXIT_SECONDS)
            code = await self._exit_code()
            self._proxy.server_ended()
            await self._proxy.finish()
        return _SIGNALLED - code if code < 0 else code

    def _read(self, file: io.FileIO, handle: Callable[[bytes], Awaitable[None]]) -> asyncio.Future[None]:
        """Read lines on a thread until the file ends, and handle each on the event loop."""
        ended = self._loop.create_future()

        def end() -> None:
            if not ended.done():
                ended.set_result(None)

        async def handled(line: bytes) -> None:
            await handle(line)

        def read() -> None:
            try:
                for line in _lines(file):
                    asyncio.run_coroutine_threadsafe(handled(line), self._loop).result()
            except (OSError, ValueError, RuntimeError):
                pass  # the file or the loop was closed
            finally:
                with contextlib.suppress(RuntimeError):  # the loop was closed
                    self._loop.call_soon_threadsafe(end)

        threading.Thread(target=read, name="onceward-mcp-read", daemon=True).start()
        return ended

    async def _send_to_client(self, line: bytes) -> None:
        with contextlib.suppress(OSError):  # the client has gone; the end of its input says so, too
            await self._client_output.write(line)

    async def _exit_code(self) -> int:
        """Wait for the process. Terminate it if it does not end by itself."""
        for end in (self._process.terminate, self._process.kill):
            with contextlib.suppress(subprocess.TimeoutExpired):
                return await asyncio.to_thread(self._process.wait, _EXIT_SECONDS)
            end()
        return await asyncio.to_thread(self._process.wait)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Pass SIGTERM on to the server, whose end then ends the proxy. Its running calls are recorded first."""
        try:
            self._loop.add_signal_handler(signal.SIGTERM, self._process.terminate)
        except (RuntimeError, ValueError):  # on Windows, or not on the main thread
            yield
            return
        try:
            yield
        finally:
            self._loop.remove_signal_handler(signal.SIGTERM)


class _Writer:
    """Writes lines in order on a thread."""

    def __init__(self, file: io.FileIO) -> None:
        self._file = file
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="onceward-mcp-write")

    async def write(self, line: bytes) -> None:
        """Write a line. Raises `OSError` if it cannot be written completely."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._write, line)

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close)

    def _write(self, line: bytes) -> None:
        if self._file.closed:
            raise BrokenPipeError
        rest = memoryview(line if line.endswith(b"\n") else line + b"\n")
        while rest:
            rest = rest[self._file.write(rest) :]

    def _close(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()


def _lines(file: io.FileIO) -> Iterator[bytes]:
    """Yield the lines of a file, of any length."""
    parts: list[bytes] = []
    while data := file.read(_READ_BYTES):
        first, *others = data.split(b"\n")
        parts.append(first)
        for part in others:
            yield b"".join(parts) + b"\n"
            parts = [part]
    if any(parts):
        yield b"".join(parts)
