"""Workloads as checkers see them: the promises by which a history is judged, declared once and never edited per run."""

from __future__ import annotations

import difflib
from typing import NamedTuple

ALL_CHECKERS = ("log", "polls", "offsets", "linearizable", "availability", "digests")


class Workload(NamedTuple):
    """The promises that a kind of run is judged by. Its name is in the head line of its histories as
    `meta["workload"]`."""

    name: str
    checkers: tuple[str, ...] = ALL_CHECKERS
    """Names from ALL_CHECKERS. A checker that finds none of its operations says valid, with zero counts."""
    allowed: frozenset[str] = frozenset()
    """Kinds of anomaly that are not promised here, e.g. `duplicate` for clients without identities."""
    ordered: bool = False
    """True if pipelined sends of one `producer` to one queue must be in the order of their invocations."""
    must_drain: bool = False
    """True if every consumer group must have polled every acknowledged message of its topics by the end."""
    replicas: int = 0
    """The number of replicas that must have been read back (and sent digests); 0: as many as the history shows."""
    min_acked: int = 1
    """The number of acknowledged operations below which a history proves nothing, so that its verdict is unknown."""
    must_recover: bool = True
    """True if operations must succeed again after the last fault was lifted."""
    max_steps: int = 2_000_000
    """The most steps of the linearizability search per key. A search that needs more gives up: its result is unknown.
    """
    unavailable_after_ns: int = 500_000_000
    """The pause between two successes, in nanoseconds, above which it counts as an outage."""


def _named(*workloads: Workload) -> dict[str, Workload]:
    return {workload.name: workload for workload in workloads}


WORKLOADS = _named(
    Workload("log"),
    Workload("log-at-least-once", allowed=frozenset({"duplicate"})),
    Workload("ordered", ordered=True),
    Workload("groups", must_drain=True),
    Workload("offsets", ("offsets", "linearizable", "availability", "digests")),
    Workload("metadata", ("linearizable", "availability", "digests")),
)
"""The workloads that a history may name. `log` also judges polls, offsets and registers if the history has any."""


def workload_named(name: str) -> Workload:
    """Returns the workload of that name. Raises ValueError if there is none, with the nearest names or, if none is
    near, all."""
    try:
        return WORKLOADS[name]
    except KeyError:
        near = difflib.get_close_matches(name, WORKLOADS) or sorted(WORKLOADS)
        raise ValueError(f"no workload is called {name!r}; did you mean {' or '.join(near)}?") from None
