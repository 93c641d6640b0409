"""A process of its own that keeps blobs, to be raced and killed. It says a line when it is ready and waits for one.

put URL FOLDER SIZE BLOB_ID     put SIZE known bytes, and say their key
hold URL                        hold the lock until it is killed
die FOLDER SIZE                 put into FOLDER/1, FOLDER/2, …, each in a fork that is killed after one step more
die-owning FOLDER MARK          the same with one who asks for the owner, as MARK
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from onceward.hub.blobs import BlobStore
from onceward.hub.blobs.folder import FolderBlobs
from onceward.hub.blobs.open import open_blobs

# Every system call with which a put changes the disk.
STEPS = ("write", "fchmod", "fsync", "mkdir", "link", "rename", "unlink")


def content(size: int) -> bytes:
    return bytes(number * 7 % 251 for number in range(1024)) * (size // 1024 + 1)


def put(blobs: BlobStore, size: int, blob_id: str) -> str:
    with blobs.temp_file() as temp_file:
        temp_file.write(content(size)[:size])
        temp_file.finish()
        return blobs.put(temp_file, blob_id)


def print_line(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def race(url: str, temp_folder: str, size: str, count: str) -> None:
    waiting, go = os.pipe()
    children = []
    for number in range(int(count)):
        if (child := os.fork()) == 0:
            os.close(go)
            blobs = open_blobs(url, temp_folder=Path(temp_folder))
            # Ends for all of them at once, when the last holder of the other end closes it.
            os.read(waiting, 1)
            print_line(put(blobs, int(size), f"bl-{number:08}"))
            os._exit(0)
        children.append(child)
    os.close(go)
    if any(os.waitpid(child, 0)[1] for child in children):
        sys.exit("a put failed")


def hold(url: str) -> None:
    with open_blobs(url).lock():
        print_line("held")
        sys.stdin.readline()


def die(folder: str, size: str) -> None:
    _die_in(folder, lambda blobs: put(blobs, int(size), "bl-00000001"))


def die_owning(folder: str, mark: str) -> None:
    _die_in(folder, lambda blobs: blobs.owner(mark))


def _die_in(folder: str, act: Callable[[BlobStore], object]) -> None:
    status, number = -1, 0
    while status != 0:
        number += 1
        # The pipe survives the death of its writer.
        reading, writing = os.pipe()
        blobs = FolderBlobs(Path(folder) / str(number))
        if (child := os.fork()) == 0:
            _die_after(number, writing)
            act(blobs)
            os._exit(0)
        os.close(writing)
        status = os.waitpid(child, 0)[1]
        print_line(os.read(reading, 100).decode() or "done")
        os.close(reading)


def _die_after(steps: int, writing: int) -> None:
    left = steps
    write = os.write

    def dying(name: str, step: Callable[..., object]) -> Callable[..., object]:
        def stepped(*arguments: object, **named: object) -> object:
            nonlocal left
            answer = step(*arguments, **named)
            left -= 1
            if not left:
                write(writing, name.encode())
                os.kill(os.getpid(), signal.SIGKILL)
            return answer

        return stepped

    for name in STEPS:
        setattr(os, name, dying(name, getattr(os, name)))


if __name__ == "__main__":
    orders: dict[str, Callable[..., None]] = {"race": race, "hold": hold, "die": die, "die-owning": die_owning}
    orders[sys.argv[1]](*sys.argv[2:])
