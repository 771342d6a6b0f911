"""Writes an order and the message about it in one transaction of a database; a relay sends the waiting messages.

A relay that dies after a send and before its note sends that message again. So the consumer keeps the keys that it has
handled, in the transaction in which it handles them.
"""

import sqlite3

import raftmq

shop = sqlite3.connect("shop.db")
shop.executescript(
    """
    CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, item TEXT);
    CREATE TABLE IF NOT EXISTS outbox (id INTEGER PRIMARY KEY, topic TEXT, key TEXT, body BLOB);
    CREATE TABLE IF NOT EXISTS handled (key TEXT PRIMARY KEY);
    """
)


def order(number: str, item: str) -> None:
    with shop:  # both rows or none
        shop.execute("INSERT INTO orders VALUES (?, ?)", (number, item))
        shop.execute("INSERT INTO outbox (topic, key, body) VALUES ('orders', ?, ?)", (number, item.encode()))


def relay(producer: raftmq.Producer) -> int:
    """Sends what waits, in its order; returns the number of messages. Raises raftmq.RaftMQError; what was not sent
    stays."""
    waiting = shop.execute("SELECT id, topic, key, body FROM outbox ORDER BY id").fetchall()
    for row, topic, key, body in waiting:
        producer.send(topic, body, key=key)
        with shop:
            shop.execute("DELETE FROM outbox WHERE id = ?", (row,))
    return len(waiting)


def handle(message: raftmq.Message) -> bool:
    """Returns False if this message was handled before."""
    with shop:
        new = shop.execute("INSERT OR IGNORE INTO handled VALUES (?)", (message.key,)).rowcount == 1
        if new:
            print(f"ship {message.body.decode()} for {message.key}")
    return new


with raftmq.connect() as mq:
    with mq.producer() as producer:
        order("o1", "tea")
        order("o2", "a cup")
        print("relayed:", relay(producer))
        producer.send("orders", b"tea", key="o1")  # as a relay does that died before its note
    for message in mq.consumer("shipping", "orders", follow=False):
        if not handle(message):
            print(f"{message.key} was handled before")
