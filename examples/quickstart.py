"""One effect, however often the function is called."""

from pathlib import Path
from tempfile import TemporaryDirectory

from onceward import errors, open_ledger


def main(folder: Path) -> None:
    ledger = open_ledger(f"sqlite:///{folder / 'payments.db'}")
    charged = []

    @ledger.once(key="charge:{order_id}", effect="irreversible")
    def charge(order_id: str, amount: int) -> dict[str, object]:
        charged.append(order_id)  # call the payment provider here
        return {"order": order_id, "amount": amount, "receipt": len(charged)}

    print("first: ", charge("42", amount=10))
    print("again: ", charge("42", amount=10))
    print("the provider was called", len(charged), "time")

    try:
        charge("42", amount=99)
    except errors.KeyReused as error:
        print("refused:", error)
    ledger.close()


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        main(Path(folder))
