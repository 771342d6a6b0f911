"""Moves money in a database, and announces each transfer by a message that is visible if and only if the transfer was
made."""

import sqlite3

import raftmq

bank = sqlite3.connect("bank.db", check_same_thread=False)
bank.executescript(
    """
    CREATE TABLE IF NOT EXISTS accounts (name TEXT PRIMARY KEY, cents INTEGER CHECK (cents >= 0));
    CREATE TABLE IF NOT EXISTS transfers (id TEXT PRIMARY KEY);
    INSERT OR IGNORE INTO accounts VALUES ('ann', 1000), ('bob', 0);
    """
)


def check(message: raftmq.Message) -> raftmq.Resolution:
    """Answers the cluster, after a program has died in the middle, by looking up if the transfer was made."""
    found = bank.execute("SELECT 1 FROM transfers WHERE id = ?", (message.key,)).fetchone()
    return raftmq.Resolution.COMMIT if found else raftmq.Resolution.ROLLBACK


def transfer(producer: raftmq.TransactionProducer, number: str, cents: int) -> None:
    with producer.transaction("transfers", b"%d" % cents, key=number), bank:
        bank.execute("INSERT INTO transfers VALUES (?)", (number,))
        bank.execute("UPDATE accounts SET cents = cents + ? WHERE name = 'bob'", (cents,))
        bank.execute("UPDATE accounts SET cents = cents - ? WHERE name = 'ann'", (cents,))


with raftmq.connect() as mq:
    mq.admin.create_topic("transfers", queues=1)
    with mq.transaction_producer("bank", check=check) as producer:
        transfer(producer, "t1", 300)
        try:
            transfer(producer, "t2", 5000)  # more than Ann has
        except sqlite3.IntegrityError as error:
            print("t2 was not made:", error)
    for message in mq.consumer("auditors", "transfers", follow=False):
        print(message.key, message.body.decode(), "cents")
