"""`python bench/bench_pulls.py`: measures the rate at which consumers pull from a node, and the node's CPU per message.

It runs three local nodes, of which the leader serves the pulls. In "hot" rows the log is in the page cache. In "cold"
rows its pages are dropped first (posix_fadvise DONTNEED; they are synced), and each message is pulled once. Messages
have 1 KiB and are stored by single sends: all in one queue, or in four queues in turns. CPU is user and system time of
the leader. The order of the rows is reversed in every other round. Prints the medians of ROUNDS (3) rounds with
MESSAGES (65536) messages; with JSON=1 in the environment {"rows": [...]} alone.
"""

from __future__ import annotations

import os
import statistics
import sys
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

from bench_cluster import cpu_seconds
from pull_load import Pulled, pull, pull_frame
from tables import show
from three_nodes import load, three_nodes

ROUNDS = int(os.environ.get("ROUNDS", "3"))
MESSAGES = int(os.environ.get("MESSAGES", "65536"))
"""The number of messages pulled from each topic."""
SECONDS = 2.0
"""Duration of a hot row, in seconds."""
IN_FLIGHT = 8
PULL_BYTES = 4 << 20


class Row(NamedTuple):
    """The parameters of one line of the report."""

    kind: str
    """The state of the page cache: hot or cold."""
    per_pull: int
    queues: int
    connections: int


ROWS = [
    Row(kind, per_pull, queues, connections)
    for kind in ("hot", "cold")
    for per_pull in (32, 256)
    for queues in (1, 4)
    for connections in (1, 4)
    if queues == 1 or connections == 1
]


def topic_of(queues: int) -> str:
    """Returns the name of the topic whose messages are spread over `queues` queues in turns."""
    return f"pulled{queues}"


def fill(port: int, queues: int) -> None:
    """Stores a tenth more than MESSAGES, so that each queue has at least as many as are pulled from it."""
    stored = 0
    while stored < MESSAGES * 1.1:
        stored += load(port, 256, 1.0, topic=topic_of(queues), queues=queues).messages


def shares(row: Row) -> list[list[bytes]]:
    """Returns the pulls of each connection; together they ask for MESSAGES messages, each of them once."""
    topic = topic_of(row.queues)
    steps = [
        (queue, offset)
        for offset in range(0, MESSAGES // row.queues // row.per_pull * row.per_pull, row.per_pull)
        for queue in range(row.queues)
    ]
    return [
        [
            pull_frame(topic, opaque, queue, offset, row.per_pull, PULL_BYTES)
            for opaque, (queue, offset) in enumerate(steps[place :: row.connections])
        ]
        for place in range(row.connections)
    ]


def drop_pages(home: Path) -> None:
    """Drops the files of a node's log from the page cache, except for pages that are not synced yet."""
    for path in home.rglob("*"):
        if path.is_file() and path.stat().st_size >= 1 << 20:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def measure(row: Row, port: int, pid: int, home: Path) -> dict[str, float]:
    """Measures one row once, and returns its figures. For a hot row, all messages are pulled once before."""
    frames = shares(row)
    if row.kind == "cold":
        drop_pages(home)
    else:
        pull("127.0.0.1", port, topic_of(row.queues), frames, IN_FLIGHT, 0)
    before = cpu_seconds([pid])
    pulled = pull("127.0.0.1", port, topic_of(row.queues), frames, IN_FLIGHT, SECONDS if row.kind == "hot" else 0)
    return figures(row, pulled, cpu_seconds([pid]) - before)


def figures(row: Row, pulled: Pulled, cpu: float) -> dict[str, float]:
    """Returns the figures that are printed for a row."""
    messages = pulled.pulls * row.per_pull
    return {
        "messages_per_second": messages / pulled.seconds,
        "mb_per_second": pulled.size_bytes / pulled.seconds / 1e6,
        "cpu_us_per_message": cpu / messages * 1e6,
    }


def rounds(port: int, pid: int, home: Path) -> list[dict[str, object]]:
    """Measures all rows in all rounds; returns the medians."""
    for queues in sorted({row.queues for row in ROWS}):
        fill(port, queues)
    told: dict[Row, list[dict[str, float]]] = {row: [] for row in ROWS}
    for number in range(ROUNDS):
        for row in ROWS if number % 2 == 0 else reversed(ROWS):
            told[row].append(measure(row, port, pid, home))
    return [
        row._asdict() | {name: round(statistics.median([one[name] for one in all_of]), 2) for name in all_of[0]}
        for row, all_of in told.items()
    ]


def main() -> None:
    """Starts a cluster in a temporary directory, measures it, and ends it."""
    with three_nodes() as (_, leader):
        rows = rounds(leader.broker_port, leader.pid, leader.home)
    show(rows, "pulls of 1 KiB messages; CPU of the node that serves")


if __name__ == "__main__":
    main()
