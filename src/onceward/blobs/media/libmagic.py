"""libmagic, where it is installed: it knows hundreds of rare binary types that the built-in table does not.

Its wheel changes the process on import: it puts itself in front of `LD_LIBRARY_PATH` and `MAGIC`, which every child
process would inherit (with an empty entry, which means "the current folder"), and it patches `ctypes`. All of that is
put back once the library is loaded; what it needs, its table, is given to it by name.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import threading
from pathlib import Path
from typing import Any

from onceward.blobs.media.lattice import UNKNOWN, canonical, normal

# Blanks cost it time that grows with the square of their number: 64 KiB of them take it half a second. So it sees the
# part that binary files are known by, and nothing that is largely blank, which no binary format is.
_LOOKED_AT_BYTES = 2 * 1024
_BLANKS_MAX = 256
# What it says of binary data on a byte or two, or of what it does not know; none of it is worth more than "unknown".
_DISTRUSTED = frozenset({
    "application/x-wine-extension-ini", "application/x-dbf", "image/x-tga", "audio/x-mod", "application/x-object",
    "application/x-gdbm", "application/x-epoc-app", "text/x-msdos-batch", "application/x-tgif", "application/x-ole",
    "application/x-font-gf", "application/x-font-pfm", "application/x-font-sfn", "image/x-epoc-mbm", "audio/x-adpcm",
    "application/x-dosexec", "application/x-bytecode.python", "application/x-setupscript", "application/x-terminfo",
    "application/x-terminfo2", "audio/x-mp4a-latm", "audio/mpeg", "video/mpeg", "image/x-award-bioslogo", "image/jpeg",
    "audio/x-hx-aac-adts", "video/x-mng", "image/wmf", "application/x-lzma", "video/mpeg4-generic", "video/h264",
    "video/mp4v-es", "video/mpv", "audio/mp4", "application/x-freemind", "chemical/x-pdb", "application/x-pnf",
    "application/x-java-applet", "application/x-compress", "application/zlib", "application/pgp-keys",
    "application/x-gnupg-keyring", "application/pgp", "image/x-unknown", "audio/x-unknown",
})  # fmt: skip


def _load() -> tuple[Any, str | None]:
    """The module and the table for it; the module is None where it, or its library, is not there."""
    environment = dict(os.environ)
    start_of_library = ctypes.CDLL.__init__
    try:
        # The wheel first: it makes the other find its library rather than one of the system.
        wheel = importlib.import_module("pylibmagic") if importlib.util.find_spec("pylibmagic") else None
        magic = importlib.import_module("magic")
    except (ImportError, OSError):
        return None, None
    finally:
        ctypes.CDLL.__init__ = start_of_library  # type: ignore[method-assign]
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        os.environ.update(environment)
    # Somebody may have imported it earlier, with the library of the system, which cannot read the wheel's table.
    folder = None if wheel is None else Path(str(wheel.data))
    is_ours = folder is not None and Path(magic.libmagic._name).parent == folder  # noqa: SLF001 - nothing else tells
    return magic, str(folder / "magic.mgc") if folder is not None and is_ours else None


_MAGIC, _TABLE = _load()
_of_thread = threading.local()


def is_there() -> bool:
    return _MAGIC is not None


def said_of(head: bytes) -> str:
    """What libmagic says of these bytes; empty where it is not installed or fails.

    Two threads must not use one libmagic object at once, so each thread has its own. One for each call would map the
    table anew, page by page, which takes twice as long as the look itself.
    """
    if _MAGIC is None:
        return ""
    try:
        if not hasattr(_of_thread, "magic"):
            _of_thread.magic = _MAGIC.Magic(mime=True, magic_file=_TABLE)
        return str(_of_thread.magic.from_buffer(head))
    except _MAGIC.MagicException:
        # Also where its table cannot be read: the built-in one has been asked already.
        return ""


def look(head: bytes) -> str | None:
    """What libmagic takes binary data for; None where it is not installed, does not know, or guesses."""
    head = head[:_LOOKED_AT_BYTES]
    if sum(head.count(blank) for blank in b" \t\r\n") > _BLANKS_MAX:
        return None
    said = normal(said_of(head))
    if said is None or said in _DISTRUSTED or said.startswith(("text/", "inode/")) or said == UNKNOWN:
        return None
    return canonical(said)
