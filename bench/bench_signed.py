"""`python bench/bench_signed.py`: measures what it costs a node to verify and to judge a signed send of 1 KiB.

Two simulated nodes without sockets and disk: one with `auth.mode` off whose sends are not signed, one that enforces
and whose sends a user without further rights has signed. Both take equal sends in alternating ROUNDS (15). Figures are
the process's CPU per message, with what the simulated client takes for the answers; `more` is the median of the
differences within each round. With JSON=1 in the environment {"rows": [...]} alone.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

from hot_path import BODY_BYTES, Driver, long_messages, quiet_options
from tables import show

from jepsen_like.sim.machines.lone_node import LoneNode
from jepsen_like.sim.users.first_users import create_all
from jepsen_like.sim.users.user_clients import NAMES, first_secret
from raftmq.commands.bench_load import PREFIX, request_frame
from raftmq_wire.codec import HEADER_AT
from raftmq_wire.signature import Credentials

ROUNDS = int(os.environ.get("ROUNDS") or "15")
TOPIC = "users-bench"
"""A topic to which the simulator's users may send."""
LOADS = {1: 300, 64: 40, 512: 8}
"""Requests in flight -> times that so many are sent in a round."""


class Side(NamedTuple):
    """A node with its client, and the requests of each load."""

    node: LoneNode
    driver: Driver
    requests: dict[int, bytes]


def signed(frame: bytes, who: Credentials) -> bytes:
    """Returns the request as the Java client signs it."""
    end = HEADER_AT + int.from_bytes(frame[4:HEADER_AT], "big")
    header, body = json.loads(frame[HEADER_AT:end]), frame[end:]
    header["extFields"] = who.signed(header["extFields"], body)
    text = json.dumps(header, separators=(",", ":")).encode()
    return PREFIX.pack(4 + len(text) + len(body), len(text)) + text + body


def side(who: Credentials | None) -> Side:
    """Starts a node and makes its requests: signed if `who` is given, on a node that enforces rights then."""
    node = LoneNode(quiet_options()._replace(users=0 if who is None else 1), long_messages)
    if who is not None:
        create_all(node.machine, node.pass_time)
    body, requests = bytes(BODY_BYTES), {}
    for in_flight in LOADS:
        frames = [request_frame(TOPIC, opaque, opaque % 4, 1, body) for opaque in range(in_flight)]
        requests[in_flight] = b"".join(frames if who is None else [signed(frame, who) for frame in frames])
    return Side(node, Driver(node), requests)


def cpu_us(side: Side, in_flight: int) -> float:
    """Sends a round of a load; returns the CPU time per message, in µs. Raises SystemExit if a send is refused."""
    asyncio.set_event_loop(side.node.loop)
    times, requests = LOADS[in_flight], side.requests[in_flight]
    gc.collect()
    began = time.process_time_ns()
    answers = [side.driver.ask(requests, in_flight) for _ in range(times)]
    took = time.process_time_ns() - began
    stored = sum(answer.count(b'{"code":0,') for answer in answers)
    if stored != times * in_flight:
        raise SystemExit(f"{times * in_flight - stored} sends were refused: {answers[0][:300]!r}")
    return took / 1_000 / (times * in_flight)


def main() -> None:
    """Measures all loads in each round, the sides in turns."""
    plain, proven = side(None), side(Credentials(NAMES[0], first_secret(NAMES[0])))
    for each in (plain, proven):
        each.driver.ask(each.requests[1], 1)  # makes the topic
        for in_flight in LOADS:
            cpu_us(each, in_flight)
    found: dict[int, list[tuple[float, float]]] = {in_flight: [] for in_flight in LOADS}
    for number in range(ROUNDS):
        for in_flight, pairs in found.items():
            order = (plain, proven) if number % 2 == 0 else (proven, plain)
            took = {id(each): cpu_us(each, in_flight) for each in order}
            pairs.append((took[id(plain)], took[id(proven)]))
    rows: list[dict[str, Any]] = [
        {
            "in flight": in_flight,
            "unsigned, off: µs": round(statistics.median([before for before, _ in pairs]), 1),
            "signed, enforced: µs": round(statistics.median([after for _, after in pairs]), 1),
            "more: µs": round(statistics.median([after - before for before, after in pairs]), 1),
        }
        for in_flight, pairs in found.items()
    ]
    show(rows, f"CPU per send of 1 KiB, medians of {ROUNDS} rounds in turns")


if __name__ == "__main__":
    main()
