"""Import a mail archive into a hub: a mail that is in two archives is stored once, and a second run changes nothing.

python examples/mail_backfill    write two archives, import them twice, and print the counts

The same command works on your own archives: `onceward ingest backfill mail.mbox Maildir/`.
"""

from __future__ import annotations

import json
import mailbox
from contextlib import redirect_stdout
from email.message import EmailMessage
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

from onceward.cli import main as onceward


def mail(number: int, subject: str) -> EmailMessage:
    message = EmailMessage()
    message["Message-ID"] = f"<{number}@example.com>"
    message["From"] = "Ada <ada@example.com>"
    message["To"] = "bob@example.com"
    message["Date"] = f"Thu, 01 Jan 2026 12:00:{number:02} +0000"
    message["Subject"] = subject
    message.set_content(f"This is mail {number}.")
    return message


def archive(path: Path, *numbers: int) -> Path:
    box = mailbox.mbox(path)
    for number in numbers:
        box.add(mail(number, f"Report {number}"))
    box.close()
    return path


def backfill(data: Path, *archives: Path) -> str:
    """Run `onceward ingest backfill inbox.mbox old.mbox --restart --json`: read everything, without the checkpoint."""
    command = ["ingest", "backfill", *map(str, archives), "--data-dir", str(data), "--restart", "--json"]
    with redirect_stdout(StringIO()) as printed:
        onceward(command)
    report = json.loads(printed.getvalue())
    return ", ".join(f"{name} {report[name]}" for name in ("inserted", "updated", "skipped", "failed") if report[name])


def main() -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        inbox, old = archive(folder / "inbox.mbox", 1, 2, 3), archive(folder / "old.mbox", 3, 4)
        print("first run: ", backfill(folder / "data", inbox, old))
        print("second run:", backfill(folder / "data", inbox, old))


if __name__ == "__main__":
    main()
