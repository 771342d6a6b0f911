"""What the views of one client know together of the groups of brokers."""

from __future__ import annotations

import asyncio

import pytest

from raftmq.client.cluster_view import ClusterView
from raftmq.client.consuming.group_member import MemberList, together
from raftmq.client.environment import REAL
from raftmq.client.errors import Refused, Unreachable
from raftmq.client.group_views import GroupViews, of_each


@pytest.fixture
async def groups() -> GroupViews[ClusterView]:
    return ClusterView(REAL, ["127.0.0.1:1"]).groups


async def test_names_and_aliases_lead_to_a_group(groups: GroupViews[ClusterView]) -> None:
    assert (groups.heard, groups.several, groups.group_of_name("whatever-1")) == (False, False, 1)
    groups.take("")
    assert (groups.heard, groups.several, groups.numbers()) == (True, False, [1])
    assert (groups.heard_within(60), groups.heard_within(-1)) == (True, False), "a group may have joined since"
    groups.take("1/raftmq 2/raftmq-g02 65/beyond 0/no x/y 3")
    assert (groups.several, groups.numbers()) == (True, [1, 2])
    names = ("raftmq", "raftmq-1", "raftmq-12", "raftmq-g02", "raftmq-g02-3", "raftmq-x", "beyond")
    assert [groups.group_of_name(name) for name in names] == [1, 1, 1, 2, 2, 0, 0]


async def test_a_view_of_a_group_shares_what_the_first_one_has(groups: GroupViews[ClusterView]) -> None:
    first = groups.first
    assert groups.known(2) is None, "a group that nobody has told of"
    groups.take("1/a 2/b")
    second = groups.of(2)
    assert (second.group, groups.of(2)) == (2, second)
    assert (second.links, second.missing, second.retries) == (first.links, first.missing, first.retries)
    assert len({first.new_session(), second.new_session(), first.new_session()}) == 3
    first.leader = second.leader = "127.0.0.1:5"
    groups.lost("127.0.0.1:5")
    assert (first.leader, second.leader) == (None, None)
    assert await groups.at(65536 + 7) is second
    assert await groups.at(7) is first
    second.leader = "127.0.0.1:6"
    assert await groups.any_leader() == "127.0.0.1:6"
    first.close()


async def test_a_group_without_an_answer_keeps_nobody_waiting() -> None:
    ended: list[str] = []

    async def hangs() -> int:
        try:
            return await asyncio.get_running_loop().create_future()
        finally:
            ended.append("hangs")

    async def fails() -> int:
        raise Unreachable("no leader")

    async def answers() -> int:
        await asyncio.sleep(0.01)
        return 7

    found = await of_each({1: hangs(), 2: fails(), 3: answers()}, grace_s=0.01)
    assert (found[3], ended) == (7, ["hangs"])
    assert [str(found[group])[:9] for group in (1, 2)] == ["the group", "no leader"]
    found = await of_each({1: fails(), 2: fails()})
    assert all(isinstance(each, Unreachable) for each in found.values())


def test_members_that_any_group_lists() -> None:
    first, second = MemberList(["a", "b"], [["t"], ["u"]], [0, 1]), MemberList(["b", "c"], [["u", "t"]], [0, 0])
    both = together([first, second])
    assert both.consumerIdList == ["a", "b", "c"]
    assert (both.sharers("t"), both.sharers("u")) == (["a", "b", "c"], ["b", "c"])
    nobody_said = together([first, MemberList(["d"])])
    assert nobody_said.sharers("t") == ["a", "b", "d"], "a list without wishes: all topics are shared by all"


async def test_a_group_is_forgotten_only_once_it_has_retired(groups: GroupViews[ClusterView]) -> None:
    made = groups
    made.take("1/raftmq 2/raftmq-g02 3/c")
    second = made.of(2)
    made.take("1/raftmq")
    assert made.numbers() == [1, 2, 3], "a node that has not heard of it says nothing"
    made.take("1/raftmq 3/c", "2 x 77 1")
    assert (made.numbers(), made.group_of_name("raftmq-g02-1")) == ([1, 3], 0)
    assert made.known(2) is None is not second
    with pytest.raises(Refused, match=r"^the cluster has no group 2 of brokers \(any more\)"):
        await made.when_heard(2)
    with pytest.raises(Refused, match="there is no queue 2/7: the cluster has no group 2 of brokers"):
        await made.at(65536 + 7)
    made.take("", "2 3")
    assert (made.numbers(), made.several) == ([1], True), "sends stay sorted"


async def test_what_is_meant_for_a_group_that_nobody_tells_of_goes_to_no_other(groups: GroupViews[ClusterView]) -> None:
    groups = GroupViews(groups.first, heard_s=0.01)
    with pytest.raises(Unreachable, match="no server has told") as caught:
        await groups.at(65536)
    assert caught.value.retryable
    groups.first.close()
