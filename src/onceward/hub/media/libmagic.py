"""libmagic, if installed: detects hundreds of rare binary types that the built-in table does not have.

Importing its wheel changes the process: it prepends itself to `LD_LIBRARY_PATH` and `MAGIC`, which every child process
would inherit (with an empty entry, which means "the current folder"), and it patches `ctypes`. All of this is undone
once the library is loaded. libmagic then gets the path of its table as an argument.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import threading
from pathlib import Path
from typing import Any

from onceward.hub.media.hierarchy import UNKNOWN, canonical, normal

# libmagic's time grows with the square of the number of blanks: 64 KiB of blanks take half a second. So it gets only
# the bytes that identify binary formats, and no data with many blanks, which no binary format has.
_SNIFFED_BYTES = 2 * 1024
_BLANKS_MAX = 256
# Types that it reports because of only one or two bytes, or for unknown data. They are treated as "unknown".
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
    """Return the module and the path of its table; the module is None if it or its library is not installed."""
    environment = dict(os.environ)
    start_of_library = ctypes.CDLL.__init__
    try:
        # Import the wheel first, so that `magic` loads the wheel's library instead of the system's.
        wheel = importlib.import_module("pylibmagic") if importlib.util.find_spec("pylibmagic") else None
        magic = importlib.import_module("magic")
    except (ImportError, OSError):
        return None, None
    finally:
        ctypes.CDLL.__init__ = start_of_library  # type: ignore[method-assign]
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        os.environ.update(environment)
    # `magic` may have been imported earlier with the system's library, which cannot read the wheel's table.
    folder = None if wheel is None else Path(str(wheel.data))
    is_ours = folder is not None and Path(magic.libmagic._name).parent == folder  # noqa: SLF001 - no public attribute has it
    return magic, str(folder / "magic.mgc") if folder is not None and is_ours else None


_MAGIC, _TABLE = _load()
_of_thread = threading.local()


def is_there() -> bool:
    return _MAGIC is not None


def raw_type(head: bytes) -> str:
    """Return libmagic's media type for these bytes; empty if it is not installed or fails.

    Threads must not share a libmagic object, so each thread has its own. A new object for each call would map the
    table again, page by page, which takes twice as long as the detection itself.
    """
    if _MAGIC is None:
        return ""
    try:
        if not hasattr(_of_thread, "magic"):
            _of_thread.magic = _MAGIC.Magic(mime=True, magic_file=_TABLE)
        return str(_of_thread.magic.from_buffer(head))
    except _MAGIC.MagicException:
        # Also if libmagic cannot read its table. Detection then relies on the built-in table, which is checked first.
        return ""


def detect(head: bytes) -> str | None:
    """Detect the type of binary data with libmagic; None if it is not installed, does not know, or only guesses."""
    head = head[:_SNIFFED_BYTES]
    if sum(head.count(blank) for blank in b" \t\r\n") > _BLANKS_MAX:
        return None
    media_type = normal(raw_type(head))
    if (
        media_type is None
        or media_type in _DISTRUSTED
        or media_type.startswith(("text/", "inode/"))
        or media_type == UNKNOWN
    ):
        return None
    return canonical(media_type)
