"""In doubt: an irreversible effect that was interrupted is not repeated. A reconcile hook finds out what happened."""

from onceward import errors, open_ledger, verdict
from onceward.core.claim import Entry

sent: dict[str, str] = {}  # the mail provider's records


def send(address: str) -> str:
    sent[address] = "message-1"
    raise TimeoutError("the provider did not respond")


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
