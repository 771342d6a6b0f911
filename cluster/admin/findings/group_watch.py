"""Consumer groups that nobody consumes, and queues of a group that stand still: looked at in slices by the leader.

Consumers send heartbeats to every node, so the leader knows who is there. When a group last committed in a queue is not
in the log: it is what this node has seen since it began to watch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from cluster.admin.findings.finding import Condition
from cluster.broker.group_lag import QueueLag, queue_lags
from cluster.broker.names import DEAD_LETTER_PREFIX, RETRY_PREFIX

if TYPE_CHECKING:
    from cluster.admin.port import AdminPort
    from statemachine.groups import GroupConfig

QUEUES_PER_LOOK: Final = 500
"""Queues that one look goes through, some 5 ms of the event loop; the next look goes on with the groups behind them."""
GROUPS_TOLD_MAX: Final = 200
"""Groups about which there are findings at a time."""
NAMED_MAX: Final = 3
"""Queues of one group that get a finding each."""
_SYSTEM: Final = ("CID_RMQ_SYS_", "CID_ONSAPI_", "TOOLS_CONSUMER")


class Progress(NamedTuple):
    """What was seen of a group in one queue."""

    committed: int | None
    since_ms: int
    """Monotonic: since when it stands there."""
    moved: bool
    """It was seen to move there; else it stood there when it was first looked at."""


class GroupWatch:
    """Event loop only."""

    def __init__(self, port: AdminPort) -> None:
        self._port = port
        self._seen: dict[str, dict[tuple[str, int], Progress]] = {}
        self._conditions: dict[str, list[Condition]] = {}
        self._next = ""
        """The group with which the next look begins."""

    def look(self, monotonic_ms: int) -> Iterator[Condition]:
        """Goes through some groups, and says what is known of all. Nothing unless this node leads."""
        if not self._port.services.writes_open():
            self._seen.clear()
            self._conditions.clear()
            self._next = ""
            return
        groups = self._port.state.groups
        self._forget(groups)
        names = groups.keys_from(self._next or None, QUEUES_PER_LOOK)
        queues, self._next = 0, ""
        for name in names:
            if queues > QUEUES_PER_LOOK:
                break
            config = groups.get(name)
            if config is not None and not name.startswith(_SYSTEM):
                lags = queue_lags(self._port.state, config)
                queues += 1 + len(lags)
                if found := self._judge(name, lags, monotonic_ms):
                    self._conditions[name] = found
                else:
                    self._conditions.pop(name, None)
            self._next = name
        else:
            if len(names) < QUEUES_PER_LOOK:
                self._next = ""
        for told in itertools.islice(self._conditions.values(), GROUPS_TOLD_MAX):
            yield from told

    def _forget(self, groups: Mapping[str, GroupConfig]) -> None:
        """Groups that are gone: some are looked at, the others with the next looks."""
        for name in list(itertools.islice(self._seen, QUEUES_PER_LOOK)):
            seen = self._seen.pop(name)
            if name in groups:
                self._seen[name] = seen  # last now
            else:
                self._conditions.pop(name, None)

    def committed_age_ms(self, group: str, topic: str, queue_id: int, monotonic_ms: int) -> int | None:
        """Since the group's last commit in that queue; None if this node has seen none."""
        seen = self._seen.get(group, {}).get((topic, queue_id))
        return monotonic_ms - seen.since_ms if seen is not None and seen.moved else None

    def _judge(self, name: str, lags: list[QueueLag], now_ms: int) -> list[Condition]:
        before, health = self._seen.get(name, {}), self._port.config.health
        seen = self._seen[name] = {}
        for each in lags:
            key = each.topic, each.queue_id
            was = before.get(key)
            if was is None or was.committed != each.committed or not each.lag:
                moved = was is not None and (was.moved or was.committed != each.committed)
                was = Progress(each.committed, now_ms, moved)
            seen[key] = was
        behind = [each for each in lags if each.lag and not each.topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))]
        if not behind:
            return []
        lag = sum(each.lag for each in behind)
        if not self._port.member_count(name):
            says = f"group {name} has {lag} messages to consume, and no consumer is connected"
            do_now = f"raftmq group describe {name}"
            return [Condition("group_without_consumers", f"group {name}", says, do_now, hold_ms=health.group_idle_ms)]
        stuck = [each for each in behind if now_ms - seen[each.topic, each.queue_id].since_ms >= health.queue_stuck_ms]
        return [
            self._stuck(name, each, now_ms - seen[each.topic, each.queue_id].since_ms) for each in stuck[:NAMED_MAX]
        ]

    def _stuck(self, name: str, each: QueueLag, stands_ms: int) -> Condition:
        at = "no offset" if each.committed is None else f"offset {each.committed}"
        return Condition(
            "queue_stuck",
            f"queue {each.topic}/{each.queue_id} of {name}",
            f"group {name} has consumers and has committed nothing in queue {each.queue_id} of {each.topic} for "
            f"{stands_ms // 1000} s: it stands at {at}, {each.lag} messages are behind",
            f"raftmq group describe {name}",
            since_ms=self._port.wall_ms() - stands_ms,
        )
