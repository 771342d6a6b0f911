"""Sends of our own client, in the background, while foreign clients read."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager

import raftmq


@contextmanager
def sending(mq: raftmq.Client, topic: str, every_s: float = 0.005) -> Iterator[dict[str, Future[raftmq.SendResult]]]:
    """Our producer sends a message every so often until the block ends; all are settled then. Gives key -> send."""
    sent: dict[str, Future[raftmq.SendResult]] = {}
    stop = threading.Event()

    def run() -> None:
        with mq.producer() as producer:
            while not stop.wait(every_s):
                key = f"sent-{len(sent)}"
                sent[key] = producer.send_soon(topic, b"body", key=key, tag="t", properties={"shade": "s"})

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield sent
    finally:
        stop.set()
        thread.join()
