"""A producer in a process of its own: the process that measures may be busy. `python steady_load.py SERVERS TOPIC FILE`

One message of 1 KiB each millisecond until the standard input is closed; then FILE holds a JSON list of [when it was
sent (time.monotonic), how long its answer took], seconds, of each acknowledged message.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from concurrent.futures import Future
from functools import partial
from pathlib import Path

from raftmq.client import SendResult, connect
from tests.support.pace import at_most

PATIENCE_S = at_most(90)
QUEUES = 4


def main(servers: str, topic: str, target: str) -> None:
    took: list[tuple[float, float]] = []
    ended = threading.Event()

    def answered(begun: float, future: Future[SendResult]) -> None:
        if future.exception() is None:
            took.append((begun, time.monotonic() - begun))

    def wait() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait).start()
    with connect(servers) as mq, mq.producer(timeout_s=PATIENCE_S, max_messages=64) as producer:
        number = 0
        while not ended.is_set():
            future = producer.send_soon(topic, bytes(1024), queue_id=number % QUEUES)
            future.add_done_callback(partial(answered, time.monotonic()))
            number += 1
            time.sleep(0.001)
    Path(target).write_text(json.dumps(took), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
