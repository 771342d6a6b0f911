"""Suggests which node should serve a consumer's next pull, and reports how stale a follower's answer may be.

Every node serves pulls from its applied state. `suggestWhichBrokerId` in each reply names the node to ask next: "0",
the leader, unless `modes.slave_read_enable` is on and the consumer is further behind than
`access_message_in_memory_max_ratio` percent of the memory. Its messages then have to be read from disk, preferably a
follower's (RocketMQ: PullMessageProcessor, DefaultMessageStore.getMessage). A follower's reply also contains these ext
fields:

* `raftmqServedBy`: its node id.
* `raftmqAppliedIndex`: the index up to which it has applied the log.
* `raftmqStalenessMs`: the milliseconds since its applied state contained everything that it then knew as committed; -1
  if it never did.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from raftlog.types import NodeId, Role

if TYPE_CHECKING:
    from cluster.config.config import Config
    from cluster.config.service_sections import ModesSection
    from raftlog.core.raw_node import RawNode
    from statemachine.broker_state import BrokerState

LEADER = "0"
SAMPLES_MAX = 1200
"""The most samples that a follower remembers of commit indexes that it has not applied yet: enough for one minute."""
LAG_MAX = 1000
"""The most entries by which a follower may lag if the leader is to send consumers to it."""


class Staleness:
    """Measures the age of a follower's applied state with samples that a timer takes. The age is real time: it also
    grows while the node is stalled and takes no samples."""

    def __init__(self, raw: RawNode) -> None:
        self._raw = raw
        self._samples: deque[tuple[int, int]] = deque(maxlen=SAMPLES_MAX)
        """Samples: (time at which the leader was last heard, commit index known then); neither ever decreases."""
        self._fresh_ms = -1
        """The latest time for which everything that was then known as committed is applied; -1: unknown."""

    def tick(self, now_ms: int) -> None:
        """Takes a sample of the commit index, if this node is a follower that has heard its leader since the last
        sample. Called on a timer."""
        raw = self._raw
        if raw.role is not Role.FOLLOWER or not raw.leader_id or raw.raft.heard_ms is None:
            return
        heard_ms = min(now_ms, raw.raft.heard_ms)
        if not self._samples or self._samples[-1][0] < heard_ms:
            self._samples.append((heard_ms, raw.commit_index))

    def staleness_ms(self, now_ms: int, applied_index: int) -> int:
        """Returns the age of the applied state in milliseconds; -1 if this node has not caught up with any leader
        yet."""
        while self._samples and self._samples[0][1] <= applied_index:
            self._fresh_ms = self._samples.popleft()[0]
        return -1 if self._fresh_ms < 0 else max(0, now_ms - self._fresh_ms)


class FollowerReads:
    """Chooses the node that a consumer should ask next. The pull service asks once per reply."""

    def __init__(
        self,
        config: Config,
        raw: RawNode,
        state: BrokerState,
        now_ms: Callable[[], int],
        memory: Callable[[], int],
    ) -> None:
        """`memory`: returns the size of the machine's memory in bytes."""
        self._node_id = config.node_id
        self._raw = raw
        self._state = state
        self._now_ms = now_ms
        self._memory_bytes = memory()
        self.reload(config.modes)
        self.staleness = Staleness(raw)

    def reload(self, modes: ModesSection) -> None:
        """Applies a changed section `modes` of the configuration."""
        self._enabled = modes.slave_read_enable
        self._behind_bytes = self._memory_bytes * modes.access_message_in_memory_max_ratio // 100

    def suggest(self, group: str, queue_id: int, last_position: int) -> str:
        """Returns the broker id that the consumer should ask next. `last_position`: the position in the log of the last
        message in the reply; -1 if the reply has no messages."""
        if not self._enabled or last_position < 0:
            return LEADER
        if self._state.applied_mark.end_position - last_position <= self._behind_bytes:
            return LEADER
        if self._raw.role is not Role.LEADER:
            return str(self._node_id)
        followers = self._fit_followers()
        if not followers:
            return LEADER
        config = self._state.groups.get(group)
        wanted = NodeId(config.which_broker_when_consume_slowly) if config is not None else NodeId(0)
        return str(wanted if wanted in followers else followers[queue_id % len(followers)])

    def label(self, ext: dict[str, str]) -> None:
        """Adds a follower's fields (node id, applied index, staleness) to `ext`, the ext fields of the reply. Adds
        nothing on the leader."""
        if self._raw.role is Role.LEADER:
            return
        applied = self._state.applied.index
        ext["raftmqServedBy"] = str(self._node_id)
        ext["raftmqAppliedIndex"] = str(applied)
        ext["raftmqStalenessMs"] = str(self.staleness.staleness_ms(self._now_ms(), applied))

    def _fit_followers(self) -> list[NodeId]:
        status = self._raw.status()
        voters = set(status.voters)
        return sorted(
            peer.node_id
            for peer in status.peers
            if peer.node_id in voters and peer.recent_active and peer.lag <= LAG_MAX
        )
