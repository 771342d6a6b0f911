"""Divides the rate of a quota among the nodes that judge by it.

Each node says once a second what its owners ask for under each limit, as a part of the rate: their *demand*, 1.0 for
all of it. A leader adds up what its followers say, the leader of the first group what the leaders of the other groups
say, and everybody is told what is asked for elsewhere. The share of a node is the part of the whole demand that it has,
or what others leave if that is more. So the shares of those who are over the quota add up to one, whoever adds them up,
and nobody has to give anything back: a node that is gone asks for nothing.

What waits counts as demand, and a node where anything waits asks for a quarter of the rate more. Otherwise a node with
a small share, at which little is sent because of that, would keep it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from cluster.flow.quota_buckets import DEMAND_MIN
from raftlog.work import METER, charge

if TYPE_CHECKING:
    from cluster.flow.quota_buckets import Bucket, QuotaBuckets
    from cluster.runtime.turns.work import WorkSteps

QuotaKey = tuple[str, str, str]
"""(subject of the quota, owner, limit)."""
Demands = Mapping[QuotaKey, float]
QuotaChild = tuple[str, int]
""""node" or "group", and its number."""

LOOK_MS: Final = 1_000
"""Milliseconds between two looks."""
KEEP_MS: Final = 3_500
"""A child that says nothing for so long asks for nothing."""
KEYS_MAX: Final = 1_000
"""The most keys that are told: those of which most is asked for."""
DEMAND_MAX: Final = 1e6
KEYS_PER_UNIT: Final = 4
"""Keys that are added up in a microsecond (a unit of `raftlog.work`)."""
STEP_UNITS: Final = 250


class _Heard(NamedTuple):
    demands: Demands
    at_ms: int


class QuotaShares:
    """The demands under each quota, here and elsewhere. Event loop only."""

    def __init__(self, pools: Iterable[QuotaBuckets]) -> None:
        self._pools = tuple(pools)
        self._waiting: list[Callable[[], Iterable[tuple[Bucket, int]]]] = []
        self._own: Demands = {}
        self._total: Demands | None = None
        """All demands, here and elsewhere; None if they must be added up anew."""
        self._children: dict[QuotaChild, _Heard] = {}
        self._elsewhere: Demands = {}
        """The demands that the one above this node has told."""
        self._looked_ms = 0

    @property
    def active(self) -> bool:
        """True if there is any quota that is divided."""
        return any(pool.active for pool in self._pools)

    def count_waiting(self, waiting: Callable[[], Iterable[tuple[Bucket, int]]]) -> None:
        """`waiting` returns buckets with the number of requests that wait for each; a bucket may come several times."""
        self._waiting.append(waiting)

    # --- what others say ---------------------------------------------------------------------------------------------

    def heard(self, child: QuotaChild, demands: Demands, now_ms: int) -> None:
        """Records the demand of a node below this one, in place of its former demand."""
        self._children[child] = _Heard(demands, now_ms)
        self._total = None

    def told(self, demands: Demands) -> None:
        """Takes over the demand of all others, as the node above this one has added it up. It counts until that node
        sends another one, so without a leader no node's share rises."""
        self._elsewhere = demands
        self._total = None

    def leads_all(self) -> None:
        """Forgets the demands that the node above this one has sent: this node is the top, and there is none above
        it."""
        self.told({})

    def forget(self) -> None:
        """Forgets all demands, because there is no quota."""
        self._children.clear()
        self._elsewhere = self._own = {}
        self._total = None

    # --- once a second -----------------------------------------------------------------------------------------------

    def look(self, now_ms: int) -> WorkSteps:
        """Measures the demand here since the last call, and updates the shares: in steps, because many owners may have
        a bucket each."""
        elapsed_ms = now_ms - self._looked_ms
        if not 0 < elapsed_ms <= KEEP_MS:  # the first look, or the first one after a pause
            elapsed_ms = LOOK_MS
        self._looked_ms = now_ms
        self._children = {child: heard for child, heard in self._children.items() if heard.at_ms > now_ms - KEEP_MS}
        waiting: dict[QuotaKey, int] = {}
        for count in self._waiting:
            for bucket, number in count():
                waiting[bucket.key] = waiting.get(bucket.key, 0) + number
        elsewhere = _sum([*(heard.demands for heard in self._children.values()), self._elsewhere])
        charge(1 + (len(elsewhere) + len(waiting)) // KEYS_PER_UNIT)
        own: dict[QuotaKey, float] = {}
        began = METER.units
        for pool in self._pools:
            pool.hear(elsewhere)
            for bucket in pool.rules.in_force(list(pool.all())):
                METER.units += 1
                if METER.units - began >= STEP_UNITS:
                    yield
                    began = METER.units
                demand = bucket.measure(elapsed_ms, waiting.get(bucket.key, 0))
                bucket.divide(elsewhere.get(bucket.key, 0.0))
                if demand:
                    own[bucket.key] = demand
                    if len(own) > 2 * KEYS_MAX:
                        own = _most(own)
        self._own = _most(own)
        self._total = None

    def below(self) -> Demands:
        """Returns what is asked for here and below this node, for the one above it."""
        return _most(_sum([self._own, *(heard.demands for heard in self._children.values())]))

    def beside(self, child: QuotaChild, limits: Iterable[str]) -> Demands:
        """Returns what all others except for a child ask for under these limits; only the largest demands, as many as a
        frame may have."""
        if self._total is None:
            heard = [each.demands for each in self._children.values()]
            self._total = _most(_sum([self._own, self._elsewhere, *heard]))
        its = self._children[child].demands if child in self._children else {}
        beside = {key: demand - its.get(key, 0.0) for key, demand in self._total.items() if key[2] in limits}
        return {key: demand for key, demand in beside.items() if demand > DEMAND_MIN / 2}  # less is a rounding error


def _sum(parts: Iterable[Demands]) -> dict[QuotaKey, float]:
    total: dict[QuotaKey, float] = {}
    for part in parts:
        for key, demand in part.items():
            total[key] = min(total.get(key, 0.0) + demand, DEMAND_MAX)
    return total


def _most(demands: dict[QuotaKey, float]) -> dict[QuotaKey, float]:
    if len(demands) <= KEYS_MAX:
        return demands
    return dict(sorted(demands.items(), key=lambda each: -each[1])[:KEYS_MAX])
