"""The tools of the stories about quotas: noisy clients, changes of quotas, and the judgement by what is stored."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from jepsen_like.live.nemeses import nemesis_network, nemesis_process
from jepsen_like.live.probes.leader_monitor import PROCESS
from jepsen_like.live.probes.noise import NoiseOrders, NoiseSends, codes_of
from jepsen_like.live.probes.noise_check import (
    StoredMessage,
    Window,
    acked_s,
    out_of_order,
    too_much,
    wrong_messages,
)
from jepsen_like.live.probes.quota_changes import body_of
from jepsen_like.live.stories.story import WELL_S, Scene, StoryEnds
from raftmq.client import connect
from raftmq.client.errors import RaftMQError
from raftmq.local.waiting import until

if TYPE_CHECKING:
    from jepsen_like.live.nemeses.nemesis_interface import Nemesis
    from raftmq.client import Client

TOLERANCE: Final = 0.05
"""Share by which a rate may be exceeded before it counts as broken."""
QUEUES: Final = 4
SHOWN: Final = 5
PULL_MESSAGES: Final = 1024
ROWS_AT_ONCE: Final = 400
"""The most subjects whose quotas one request sets."""
HOLD_S: Final = (0.3, 2.5)
FAULTS: Final[tuple[Nemesis, ...]] = tuple(
    each
    for each in (*nemesis_process.NEMESES, *nemesis_network.NEMESES)
    if each.name
    in ("kill-leader", "pause-leader", "isolate-leader", "partition-halves", "partition-one-way", "kill-one")
)


class QuotaScene:
    """A topic with noisy clients, and the quotas of the cluster."""

    def __init__(self, scene: Scene, topic: str) -> None:
        self.scene, self.topic = scene, topic
        self.mq: Client = connect(scene.subject.servers, timeout_s=WELL_S, **scene.subject.client_options)
        self.mq.admin.create_topic(topic, queues=QUEUES)

    def orders(self, **fields: Any) -> NoiseOrders:
        """Returns orders for noisy clients, with these fields in place of the usual ones."""
        subject = self.scene.subject
        nodes = tuple(f"127.0.0.1:{node.broker_port}" for node in subject.nodes)
        return NoiseOrders(subject.servers, nodes, subject.client_options, self.topic, QUEUES)._replace(**fields)

    # --- quotas ------------------------------------------------------------------------------------------------------

    def put(self, rows: dict[str, dict[str, Any] | None], node: int | None = None) -> None:
        """Sets quotas in one request to `node`; if that is None, to the leader. `rows`: subject -> limits, None to
        remove the subject's quota. Raises OSError.
        """
        asked = self.scene.stage.leader() if node is None else node
        self.scene.subject.request(asked, "PUT", "/v1/quotas", body_of(rows))

    def insist(self, rows: dict[str, dict[str, Any] | None]) -> None:
        """Sets quotas as `put` does, and repeats the request until it succeeds. Raises StoryEnds."""
        last = ""

        def done() -> bool:
            nonlocal last
            try:
                self.put(rows)
            except OSError as error:
                last = str(error)
                return False
            return True

        if not until(done, WELL_S, 0.2):
            raise StoryEnds(f"quotas could not be set within {WELL_S:.0f} s: {last}")

    def quotas(self, node: int) -> dict[str, dict[str, int]]:
        """Returns the quotas that a node knows: subject -> limits. Raises OSError."""
        rows = self.scene.subject.whole(node, "/v1/quotas", "quotas")["quotas"]
        return {
            row["subject"]: {name: value for name, value in row["limits"].items() if value is not None} for row in rows
        }

    def take_all_away(self) -> None:
        """Removes all quotas, and demands that no node has any."""
        left = sorted(self.quotas(self.scene.stage.leader()))
        for first in range(0, len(left), ROWS_AT_ONCE):
            self.insist(dict.fromkeys(left[first : first + ROWS_AT_ONCE]))
        self.scene.wait_caught_up()
        for node in self.scene.subject.node_ids:
            known = self.quotas(node)
            self.scene.demand(not known, f"node {node} has {len(known)} quotas after all were taken away")

    def finding(self) -> str:
        """Returns the text of the leader's finding that a quota refuses requests; "" if it has no such finding. Raises
        OSError.
        """
        found = self.scene.subject.request(self.scene.stage.leader(), "GET", "/v1/findings")["findings"]
        return next((str(each) for each in found if each["code"] == "quota_refuses"), "")

    # --- time and leaders --------------------------------------------------------------------------------------------

    def mark(self, name: str) -> int:
        """Records in the history that the phase `name` begins; returns the time on the history's clock."""
        note = self.scene.history.invoke(PROCESS + 2, "phase", {"name": name})
        self.scene.history.ok(note, note.value)
        return note.time_ns

    def term(self) -> int:
        """Returns the highest term that any node reports."""
        return max((state.term for state in self.scene.subject.states().values() if state is not None), default=0)

    def inflict(self) -> str:
        """Applies a randomly drawn fault, and waits until the cluster is healthy after it; returns its description.
        Raises StoryEnds.
        """
        rng = self.scene.rng
        nemesis = rng.choice(FAULTS)
        effect = nemesis.apply(self.scene.stage, rng.uniform(*HOLD_S))
        self.scene.subject.fabric.heal()
        self.scene.wait_well()
        return f"{nemesis.name}: {effect.told}"

    # --- the judgement -----------------------------------------------------------------------------------------------

    def stored(self) -> list[StoredMessage]:
        """Returns all messages of the topic, read from the beginning of each queue. Raises RaftMQError."""
        rows: list[StoredMessage] = []
        for queue in range(QUEUES):
            offset = 0
            while pulled := self.mq.pull(self.topic, queue, offset, PULL_MESSAGES, timeout_s=WELL_S).messages:
                rows += [StoredMessage(queue, each.queue_offset, each.body, each.store_ms) for each in pulled]
                offset = pulled[-1].queue_offset + 1
        return rows

    def judge(
        self, sent: list[NoiseSends], windows: Iterable[Window], calm: tuple[float, float], others: bytes = b"-"
    ) -> list[float]:
        """Checks that all sends have the outcome that their clients got, that in no window more passed than the quota
        allows, and that plain connections were served in order during `calm`; returns the moments (monotonic) at which
        messages were stored. `others`: the beginnings of the bodies that other clients sent.
        """
        scene, rows = self.scene, [row for row in self.stored() if not row.body.startswith(others)]
        wrong = wrong_messages(sent, rows) + out_of_order(sent, *calm)
        # The log time of messages comes from the wall clock of this machine.
        ahead_s = time.time() - time.monotonic()
        acks, stores = acked_s(sent), [row.store_ms / 1000 - ahead_s for row in rows]
        for window in windows:
            for what, times in (("acknowledged", acks), ("stored", stores)):
                wrong += filter(None, [too_much(what, window, times, TOLERANCE)])
        for each in wrong[:SHOWN]:
            scene.demand(False, each)
        scene.demand(len(wrong) <= SHOWN, f"{len(wrong) - SHOWN} more of this kind")
        codes = codes_of(sent)
        scene.measured |= {
            "noisy sends": sum(each.sent for each in sent),
            "noisy acknowledged": len(acks),
            "noisy stored": len(rows),
            "answers to noisy clients": codes,
        }
        return stores

    def told(self) -> str:
        """Returns a line that sums up the last judgement."""
        measured = self.scene.measured
        sent, acked, stored = (measured[f"noisy {each}"] for each in ("sends", "acknowledged", "stored"))
        return f"{sent:,} noisy sends, {acked:,} acknowledged, {stored:,} stored"

    def flows(self, count: int) -> float:
        """Sends `count` messages at once; returns the seconds until all were acknowledged. Raises StoryEnds if a send
        fails.
        """
        begun = time.monotonic()
        with self.mq.producer() as producer:
            sends = [producer.send_soon(self.topic, b"after/%d" % number) for number in range(count)]
            for send in sends:
                try:
                    send.result()
                except RaftMQError as error:
                    raise StoryEnds(f"a send failed after all quotas were taken away: {error}") from None
        return time.monotonic() - begun

    def close(self) -> None:
        """Closes the connections."""
        self.mq.close()


@contextlib.contextmanager
def quota_scene(scene: Scene, topic: str) -> Iterator[QuotaScene]:
    """A context that yields the tools for this topic, and closes them at its end."""
    made = QuotaScene(scene, topic)
    try:
        yield made
    finally:
        made.close()


def refused_by_quota(scene: Scene, topic: str) -> list[str]:
    """Returns the errors of the load's sends to this topic that a quota refused."""
    return [
        str(op.value.get("error", ""))
        for op in scene.history.ops
        if op.f == "send" and op.type == "fail" and op.value.get("topic") == topic and "quota" in str(op.value)
    ]
