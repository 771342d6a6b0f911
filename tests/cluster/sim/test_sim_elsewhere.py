"""A topic that has queues in another group of brokers alone: here it exists, and every queue is a missing one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cluster.replication.outcome import Outcome
from raftmq_wire.codec import encode_frame
from raftmq_wire.request_codes import RequestCode
from statemachine.cluster_wide.cluster_level import Finalize
from statemachine.levels import GROUPS_LEVEL
from statemachine.topics.topics import CreateTopic
from tests.support.sim_cluster import SimCluster
from tests.support.sim_users import pull
from tests.support.truth_kit import SECOND

TOPIC = "elsewhere"
SEND = dict(zip("abcdefghijm", ("g", TOPIC, "TBW102", "4", "0", "0", "1", "0", "", "0", "false"), strict=True))


@pytest.fixture
def sim() -> Iterator[SimCluster]:
    with SimCluster(9) as made:
        place = CreateTopic({"name": TOPIC, "perm": 6, "place": [[2, 4, 4]]}, False)
        results = made.propose(made.leader(), Finalize(GROUPS_LEVEL), SECOND, place)
        made.loop.run_until(lambda: results, 10, "the topic is there")
        assert results[0].outcome is Outcome.OK
        assert [each.ok for each in results[0].results] == [True] * 3
        yield made


@pytest.mark.parametrize("queue", ["0", "3", "-1"])
def test_a_send_is_refused(sim: SimCluster, queue: str) -> None:
    leader = sim.leader()
    before, path = leader.raw.last_index, leader.connect()
    path.ask(encode_frame(310, 5, 0, ext={**SEND, "e": queue}, body=b"x"))
    sim.loop.run_until(lambda: 5 in path.replies, 1.0, "an answer")
    code, remark = path.replies[5][0][:2]
    assert (code, f"queueId[{queue}] is illegal, topic {TOPIC} has no queues in this group of brokers" in remark) == (
        29,
        True,
    )
    assert leader.raw.last_index == before


def test_a_pull_is_refused(sim: SimCluster) -> None:
    path = sim.leader().connect()
    path.ask(pull(None, 6, 0, TOPIC))
    path.ask(encode_frame(RequestCode.GET_ROUTEINFO_BY_TOPIC, 7, 0, ext={"topic": TOPIC}))
    sim.loop.run_until(lambda: {6, 7} <= path.replies.keys(), 5.0, "answers")
    assert path.replies[6][0][0] == 29, "as for a queue that is not there"
    code, remark = path.replies[7][0][:2]
    assert (code, "where all queues of topic elsewhere are" in remark) == (14, True), "nobody has told of group 2"
