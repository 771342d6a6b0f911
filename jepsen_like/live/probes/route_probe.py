"""Asks the processes of the registry for a route again and again, and checks each answer against what the groups of
brokers said of themselves at that time: no queue may be missing, and no leader may be named that was replaced long
ago."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jepsen_like.client_kit.wire import Wire
from raftmq_wire.codes import RequestCode, ResponseCode

EVERY_S = 0.2
LOOK_S = 0.1
SILENCE_S = 5.0
"""Seconds after which a request counts as not answered. The registry answers within 4.5 seconds."""
STALE_S = 5.0
"""Seconds for which an answer may still name the previous leader. A group tells others of its new leader within a
second.
"""

Leader = tuple[int, int]
"""(term, node)"""


class Route(NamedTuple):
    """An answer with a route."""

    process: int
    asked_s: float
    told_s: float
    queues: dict[str, tuple[int, int]]
    """Broker name -> queues to read, queues to write."""
    leaders: dict[str, str]
    """Broker name -> the address of its leader. Brokers without a leader are left out."""


def read_route(process: int, asked_s: float, told_s: float, body: bytes) -> Route:
    """Returns the route in the body of an answer. Raises ValueError, KeyError."""
    found: dict[str, Any] = json.loads(body)
    queues = {each["brokerName"]: (each["readQueueNums"], each["writeQueueNums"]) for each in found["queueDatas"]}
    leaders = {
        each["brokerName"]: each["brokerAddrs"]["0"] for each in found["brokerDatas"] if "0" in each["brokerAddrs"]
    }
    return Route(process, asked_s, told_s, queues, leaders)


def missing_queues(route: Route, whole: Mapping[str, tuple[int, int]]) -> list[str]:
    """Returns a line for each broker name, and for each broker's queues, that the route lacks compared with `whole`."""
    lacking = []
    for name, (readable, writable) in whole.items():
        has = route.queues.get(name, (0, 0))
        if has[0] < readable or has[1] < writable:
            lacking.append(f"{name} has {has[0]} queues to read and {has[1]} to write, not {readable} and {writable}")
    return lacking


def is_stale(history: list[tuple[float, Leader]], node: int, asked_s: float, told_s: float) -> bool:
    """Returns True if the node led the group at no time from STALE_S before the question until the answer. `history`:
    the moments at which another leader was seen, with its term; a leader of an older term that a node still names
    replaces nothing."""
    reigns: list[tuple[float, Leader]] = []
    for at_s, leader in history:
        if not reigns or leader[0] > reigns[-1][1][0]:
            reigns.append((at_s, leader))
    ends = [at_s for at_s, _ in reigns[1:]] + [float("inf")]
    return not any(
        led == node and begun_s - LOOK_S * 5 <= told_s and end_s >= asked_s - STALE_S
        for (begun_s, (_, led)), end_s in zip(reigns, ends, strict=True)
    )


class RouteProbe:
    """Two threads: one asks all processes, the other observes the groups' leaders. Its results may be read at any
    time."""

    def __init__(
        self,
        ports: Mapping[int, int],
        topic: str,
        leaders: Callable[[], dict[int, Leader]],
        at: Callable[[str], tuple[int, int] | None],
    ) -> None:
        """`ports`: process -> its port. `leaders` returns group -> (term, node), as the groups report it now. `at`
        returns the (group, node) of an address; None if it is no node's.
        """
        self._ports, self._topic, self._leaders, self._at = ports, topic, leaders, at
        self._ended = threading.Event()
        self._whole: dict[str, tuple[int, int]] = {}
        self.history: dict[int, list[tuple[float, Leader]]] = {}
        self.routes: list[Route] = []
        self.refusals: list[tuple[float, int, str]] = []
        """(moment, code, remark) of answers without a route."""
        self.last_s: dict[int, float] = {}
        """Process -> the moment of its last route."""
        self._threads = [
            threading.Thread(target=lambda: asyncio.run(self._ask()), name="route-probe"),
            threading.Thread(target=self._look, name="leader-probe"),
        ]

    def start(self, whole: Mapping[str, tuple[int, int]]) -> None:
        """Starts both threads. `whole`: broker name -> the (readable, writable) queues that each route must have."""
        self._whole = dict(whole)
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stops both threads."""
        self._ended.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()

    def first_route_after(self, moment_s: float) -> float | None:
        """Returns the moment of the first answer with a route, from any process, after `moment_s`; None if there is
        none.
        """
        return min((route.told_s for route in list(self.routes) if route.asked_s > moment_s), default=None)

    def wrong(self) -> list[str]:
        """Returns what is wrong with the answers so far."""
        wrong = [
            f"process {route.process} told a route without queues: {each}"
            for route in self.routes
            for each in missing_queues(route, self._whole)
        ]
        for route in self.routes:
            for name, address in route.leaders.items():
                place = self._at(address)
                if place is None:
                    wrong.append(f"process {route.process} names {address}, which is no node, as a leader of {name}")
                elif name in self._whole and is_stale(
                    self.history.get(place[0], []), place[1], route.asked_s, route.told_s
                ):
                    wrong.append(f"process {route.process} names {address} as the leader of {name}, long after another")
        allowed = (ResponseCode.SYSTEM_ERROR,)
        wrong += [f"a route was answered with {code}: {text}" for _, code, text in self.refusals if code not in allowed]
        return wrong

    def _look(self) -> None:
        while not self._ended.wait(LOOK_S):
            for group, leader in self._leaders().items():
                told = self.history.setdefault(group, [])
                if not told or told[-1][1] != leader:
                    told.append((time.monotonic(), leader))

    async def _ask(self) -> None:
        await asyncio.gather(*(self._ask_one(process, port) for process, port in self._ports.items()))

    async def _ask_one(self, process: int, port: int) -> None:
        fields = {"topic": self._topic, "acceptStandardJsonOnly": "true"}
        while not self._ended.is_set():
            try:
                async with await Wire.dial(port, SILENCE_S) as wire:
                    while not self._ended.is_set():
                        asked_s = time.monotonic()
                        answer = await wire.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)
                        if not answer.is_answer:
                            break
                        told_s = time.monotonic()
                        if answer.code == ResponseCode.SUCCESS:
                            self.routes.append(read_route(process, asked_s, told_s, answer.body))
                            self.last_s[process] = told_s
                        else:
                            self.refusals.append((told_s, answer.code, answer.remark))
                        await asyncio.sleep(EVERY_S)
            except OSError:
                pass
            await asyncio.sleep(EVERY_S)
