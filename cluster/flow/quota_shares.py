"""Divides the rate of a quota among the nodes that enforce it.

Once a second, each node reports how much the owners ask for at this node under each limit, as a part of the rate: their
*demand*, 1.0 for all of the rate. A leader adds up the demands of its followers. The leader of the first group adds up
those of the other groups' leaders. Each node is then told the demand on all other nodes. The share of a node is its
part of the whole demand, or what the other nodes leave of the rate if that is more. So the shares add up to one if more
than the rate is asked for. A node that is gone needs to give nothing back: its demand is 0.

Requests that wait count as demand, and a node where any request waits adds a quarter of the rate. Otherwise a node with
a small share would keep it, because little can be sent through it.
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
""""node" or "group", and its number: a follower, or the leader of another group, that reports to this node."""

LOOK_MS: Final = 1_000
"""Milliseconds between two measurements."""
KEEP_MS: Final = 3_500
"""Milliseconds after the last report of a child from which on its demand counts as 0."""
KEYS_MAX: Final = 1_000
"""The most keys in one report; those with the largest demands are kept."""
DEMAND_MAX: Final = 1e6
KEYS_PER_UNIT: Final = 4
"""The number of keys that are added up for one unit of `raftlog.work` (a microsecond)."""
STEP_UNITS: Final = 250


class _Heard(NamedTuple):
    demands: Demands
    at_ms: int


class QuotaShares:
    """The demands for each quota, on this node and elsewhere. Event loop only.

    The nodes form a tree: the leader of the first group is the top, the leaders of the other groups report to it, and
    followers report to the leader of their group."""

    def __init__(self, pools: Iterable[QuotaBuckets]) -> None:
        self._pools = tuple(pools)
        self._waiting: list[Callable[[], Iterable[tuple[Bucket, int]]]] = []
        self._own: Demands = {}
        self._total: Demands | None = None
        """The sum of all demands, here and elsewhere; None if it must be computed again."""
        self._children: dict[QuotaChild, _Heard] = {}
        self._elsewhere: Demands = {}
        """The demands of all other nodes, as the node above this one has reported them."""
        self._looked_ms = 0

    @property
    def active(self) -> bool:
        """True if any quota has a limit whose rate is divided."""
        return any(pool.active for pool in self._pools)

    def count_waiting(self, waiting: Callable[[], Iterable[tuple[Bucket, int]]]) -> None:
        """Adds a source of waiting requests. `waiting` returns pairs of a bucket and the number of requests that wait
        for it; a bucket may come several times."""
        self._waiting.append(waiting)

    # --- what others say ---------------------------------------------------------------------------------------------

    def heard(self, child: QuotaChild, demands: Demands, now_ms: int) -> None:
        """Records the demands that a node below this one has reported. They replace those of its last report."""
        self._children[child] = _Heard(demands, now_ms)
        self._total = None

    def told(self, demands: Demands) -> None:
        """Records the demands of all other nodes, as the node above this one has added them up. They count until that
        node sends new ones. So a node that loses its leader does not take the shares of the other nodes."""
        self._elsewhere = demands
        self._total = None

    def leads_all(self) -> None:
        """Forgets the demands that the node above this one has sent, because this node is now the top of the tree."""
        self.told({})

    def forget(self) -> None:
        """Forgets all demands, because no quota is left."""
        self._children.clear()
        self._elsewhere = self._own = {}
        self._total = None

    # --- once a second -----------------------------------------------------------------------------------------------

    def look(self, now_ms: int) -> WorkSteps:
        """Measures the demands on this node since the last call, and updates the shares of all buckets. It works in
        steps, because there may be a bucket for each of many owners."""
        elapsed_ms = now_ms - self._looked_ms
        if not 0 < elapsed_ms <= KEEP_MS:  # this is the first measurement, or the first one after a pause
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
        """Returns the demands on this node and on the nodes below it, which this node reports to the node above."""
        return _most(_sum([self._own, *(heard.demands for heard in self._children.values())]))

    def beside(self, child: QuotaChild, limits: Iterable[str]) -> Demands:
        """Returns the demands of all nodes except for a child and the nodes below it, under these limits. Only the
        KEYS_MAX largest sums of demands are considered, because a frame has room for no more."""
        if self._total is None:
            heard = [each.demands for each in self._children.values()]
            self._total = _most(_sum([self._own, self._elsewhere, *heard]))
        its = self._children[child].demands if child in self._children else {}
        beside = {key: demand - its.get(key, 0.0) for key, demand in self._total.items() if key[2] in limits}
        # A smaller difference is a rounding error.
        return {key: demand for key, demand in beside.items() if demand > DEMAND_MIN / 2}


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
