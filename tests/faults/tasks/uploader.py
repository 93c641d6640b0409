"""An uploader of the same few contents: `python -m tests.faults.tasks.uploader DATABASE BLOBS SPOOLS SEED`.

It prints a line when it is ready, waits for one, works until its input ends, and prints what it did.
"""

from __future__ import annotations

import json
import random
import select
import sys

from tests.faults.tasks.attachment_process import opened

from onceward.hub.blobs import BlobMissing

# Few, so that the uploaders collide; some are larger than one piece.
CONTENTS = [bytes([number]) * size for number, size in enumerate((0, 1, 100, 10_000, 300_000), start=65)]


def main(database_url: str, blobs_url: str, temp_folder: str, seed: str) -> None:
    chance = random.Random(int(seed))
    done: dict[str, int] = {"uploads": 0, "deletions": 0, "broken": 0}
    held: list[str] = []
    with opened(database_url, blobs_url, temp_folder) as attachment_store:
        _say("ready")
        sys.stdin.readline()
        while not select.select([sys.stdin], [], [], 0)[0]:
            content = chance.choice(CONTENTS)
            made = attachment_store.attach(content)
            done["uploads"] += 1
            try:
                is_whole = attachment_store.content(made.id) == content
            except BlobMissing:
                is_whole = False
            done["broken"] += not is_whole
            held.append(made.id)
            # Delete most attachments at once, so that gc always finds garbage, and uploads restore it.
            while len(held) > chance.choice((0, 0, 0, 1)):
                attachment_store.delete(held.pop(0))
                done["deletions"] += 1
    _say(json.dumps(done))


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
