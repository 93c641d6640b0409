"""Exactly once: the row and the outcome commit in one transaction of your own database."""

import sqlite3
from pathlib import Path
from tempfile import TemporaryDirectory

from onceward import current_claim, open_ledger


def main(folder: Path) -> None:
    file = folder / "shop.db"
    ledger = open_ledger(f"sqlite:///{file}")
    shop = sqlite3.connect(file, timeout=10)
    shop.execute("CREATE TABLE payments (order_id TEXT, amount INTEGER)")
    shop.commit()

    def pay() -> None:
        with shop:  # commits at the end, or rolls back
            bound = current_claim().bind(shop)
            shop.execute("INSERT INTO payments VALUES ('42', 10)")
            bound.settle({"paid": "42"})

    # If the transaction did not commit, nothing happened. So an effect that is completely bound may be repeated.
    print("first:", ledger.blocking.run("pay:42", pay, effect="idempotent"))
    print("again:", ledger.blocking.run("pay:42", pay, effect="idempotent"))
    print("rows: ", shop.execute("SELECT count(*) FROM payments").fetchone()[0])
    shop.close()
    ledger.close()


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        main(Path(folder))
