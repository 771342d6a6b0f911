"""Watches which node leads while a run goes on, and records every change in the history."""

from __future__ import annotations

import threading
from collections import Counter

from jepsen_like.history import HistoryWriter
from jepsen_like.live.subjects.subject import Subject

EVERY_S = 0.2
_SIGHTINGS = 2
PROCESS = 2_000_000
"""The process number of the monitor's notes in the history; faults and phases use the next ones."""


class LeaderMonitor:
    """A thread that asks every node for its role. A leader is counted once per term, whichever node reported it."""

    def __init__(self, subject: Subject, history: HistoryWriter) -> None:
        self._subject = subject
        self._history = history
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="raftmq-chaos-monitor", daemon=True)
        self.leaders: dict[int, int] = {}
        """Term -> the node that led it."""
        self._sightings: Counter[tuple[int, int]] = Counter()
        self._told: tuple[int, int] | None = None
        self.two_leaders: list[str] = []
        """Descriptions of terms in which two nodes claimed to lead, which Raft forbids."""

    @property
    def changes(self) -> int:
        """The number of terms with a leader, without the first."""
        return max(0, len(self.leaders) - 1)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stops the thread; may be called again."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(EVERY_S):
            for node, state in self._subject.states().items():
                if state is not None and state.leads:
                    self.seen(node, state.term)

    def seen(self, node: int, term: int) -> None:
        """Records that a node claims to lead a term. A second leader of a term counts when both were seen twice: a node
        that steps down may set its term first and its role a moment later, and be asked just in between."""
        self._sightings[term, node] += 1
        known = self.leaders.setdefault(term, node)
        if known != node:
            text = f"node {known} and node {node} both led term {term}"
            seen_twice = min(self._sightings[term, known], self._sightings[term, node]) >= _SIGHTINGS
            if seen_twice and text not in self.two_leaders:
                self.two_leaders.append(text)
        elif term == max(self.leaders) and self._told != (node, term):
            self._told = (node, term)
            note = self._history.invoke(PROCESS, "leader", {"node": node, "term": term})
            self._history.ok(note, note.value)
