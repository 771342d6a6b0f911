"""Watches the nodes from outside while they are attacked: memory, processes, leader and term."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self

import psutil

if TYPE_CHECKING:
    from jepsen_like.live.subjects.raftmq_subject import RaftMQSubject

EVERY_S = 0.1
LATE_S = 0.05
"""Seconds by which the thread must wake up late to be noted; shorter delays happen on any machine."""


class NodeChange(NamedTuple):
    """A change that was seen: a node ended, or another leader or term."""

    at_s: float
    what: str

    @property
    def is_reign(self) -> bool:
        """True for a new leader or term; False for the end of a process."""
        return " leads term " in self.what


class Watch:
    """A context in which a thread watches the nodes."""

    def __init__(self, subject: RaftMQSubject, clock: Callable[[], float] = time.monotonic) -> None:
        self._subject = subject
        self._clock = clock
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look_on, name="raftmq-chaos-watch", daemon=True)
        self.peak: dict[int, int] = {}
        """Node -> its highest resident memory, in bytes."""
        self.latest: dict[int, int] = {}
        self.changes: list[NodeChange] = []
        self.late: list[tuple[float, float]] = []
        """(when, seconds) for each time that this thread itself woke too late: then the machine stood still, not a
        node."""
        self._processes: dict[int, psutil.Process] = {}
        self._led: tuple[int, int] | None = None
        self._ended: set[int] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def forget_peak(self) -> None:
        """Starts a new measurement of the highest memory."""
        self.peak = {}

    def late_near(self, at_s: float, within_s: float = 2.0) -> float:
        """Returns the longest delay of this thread's wake-ups, in seconds, within `within_s` before `at_s`."""
        return max((late for when, late in self.late if at_s - within_s <= when <= at_s), default=0.0)

    def _look_on(self) -> None:
        due = time.monotonic() + EVERY_S
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            if (late := time.monotonic() - due) > LATE_S:
                self.late.append((self._clock(), late))
            self.look()
            due = time.monotonic() + EVERY_S

    def look(self) -> None:
        for node in self._subject.node_ids:
            if not self._subject.is_running(node):
                if node not in self._ended:
                    self._ended.add(node)
                    self.changes.append(NodeChange(self._clock(), f"node {node} ended by itself"))
                continue
            with contextlib.suppress(psutil.Error, KeyError):
                self._note(node, self._process(node).memory_info().rss)
        for node, state in self._subject.states().items():
            if state is not None and state.leads:
                self._lead(node, state.term)

    def _process(self, node: int) -> psutil.Process:
        pid = self._subject.processes.pid(node)
        known = self._processes.get(node)
        if known is None or known.pid != pid:
            known = self._processes[node] = psutil.Process(pid)
        return known

    def _note(self, node: int, rss: int) -> None:
        self.latest[node] = rss
        self.peak[node] = max(self.peak.get(node, 0), rss)

    def _lead(self, node: int, term: int) -> None:
        if self._led is not None and self._led != (node, term) and term >= self._led[1]:
            before = f"node {self._led[0]} in term {self._led[1]}"
            self.changes.append(NodeChange(self._clock(), f"node {node} leads term {term}, after {before}"))
        if self._led is None or term >= self._led[1]:
            self._led = (node, term)
