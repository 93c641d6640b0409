"""In doubt is an outcome: an irreversible effect that broke off is not repeated; a hook with evidence resolves it."""

from onceward import errors, open_ledger, verdict
from onceward.core.claim import Entry

sent: dict[str, str] = {}  # what the mail provider knows


def send(address: str) -> str:
    sent[address] = "message-1"
    raise TimeoutError("the provider's answer never came")


def ask_provider(entry: Entry) -> verdict.Verdict:
    address = entry.key.removeprefix("welcome:")
    return verdict.committed(sent[address]) if address in sent else verdict.unknown


def main() -> None:
    ledger = open_ledger("memory:")
    key = "welcome:ada@example.com"

    try:
        ledger.blocking.run(key, lambda: send("ada@example.com"), effect="irreversible")
    except TimeoutError as error:
        print("first: ", error)
    try:
        ledger.blocking.run(key, lambda: send("ada@example.com"), effect="irreversible")
    except errors.InDoubt as error:
        print("again: ", error)

    found = ledger.blocking.run(key, lambda: send("ada@example.com"), effect="irreversible", reconcile=ask_provider)
    print("asked: ", found)
    ledger.close()


if __name__ == "__main__":
    main()
