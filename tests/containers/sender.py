"""Sends the messages NAME-0 to NAME-(COUNT-1), at most RATE a second, each until it is acknowledged.

Usage: python - SERVERS TOPIC NAME COUNT RATE, with the user in RAFTMQ_ACCESS_KEY and RAFTMQ_SECRET_KEY. Prints JSON
lines with the number of acknowledged messages, as the Go client does.
"""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from raftmq import RaftMQError, connect

AT_ONCE = 8


def main(servers: str, topic: str, name: str, count: int, rate: float) -> None:
    begun, acked, failed = time.monotonic(), 0, 0
    with connect(servers) as client, ThreadPoolExecutor(AT_ONCE) as pool:

        def send(number: int) -> int:
            time.sleep(max(0.0, begun + number / rate - time.monotonic()))
            failures = 0
            while True:
                try:
                    client.send(topic, f"{name}-{number}".encode())
                except RaftMQError as error:
                    failures += 1
                    sys.stderr.write(f"{name}-{number}: {error!r}\n")
                    time.sleep(0.1)
                else:
                    return failures

        for failures in pool.map(send, range(count)):
            acked += 1
            failed += failures
            if acked % 200 == 0 or acked == count:
                sys.stdout.write(json.dumps({"event": "acked", "count": acked, "failed": failed}) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), float(sys.argv[5]))
