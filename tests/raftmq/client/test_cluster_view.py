"""The leader, and the time for which it is believed; routes in either form."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from raftmq.client import Refused, Unreachable, aconnect
from raftmq.client.admin import AsyncAdmin
from raftmq.client.cluster_view import ClusterView
from raftmq.client.environment import REAL
from raftmq.client.group_views import GroupViews
from raftmq.client.route import QueueData, read_route
from raftmq_wire.codes import RequestCode
from tests.support.patience import with_times
from tests.support.rows import each_row

pytestmark = pytest.mark.timeout(20)


async def test_a_leader_that_comes_back_as_a_follower_is_not_taken_for_the_leader(fake: Any, wait_until: Any) -> None:
    """It may lag: a pull from it would come back short."""
    fake.create("T", 1)
    fake.fill("T", 0, [b"a", b"b"])
    old, new = fake.nodes[0], fake.nodes[1]
    async with aconnect(fake.servers) as mq:
        await mq.pull("T", 0, 0)
        assert old.calls.count(RequestCode.PULL_MESSAGE) == 1
        old.kill()
        fake.leader = new.number
        await old.start()
        await wait_until(lambda: not old.connections)
        result = await mq.pull("T", 0, 0)
        assert [m.body for m in result.messages] == [b"a", b"b"]
        assert old.calls.count(RequestCode.PULL_MESSAGE) == 1
        assert new.calls.count(RequestCode.PULL_MESSAGE) == 1


async def test_the_end_of_another_nodes_connection_changes_nothing(fake: Any, wait_until: Any) -> None:
    view = ClusterView(REAL, fake.servers.split(";"))
    leader = await view.find_leader()
    assert leader == fake.nodes[0].address
    other = await view.links.get(fake.nodes[2].address)
    fake.nodes[2].kill()
    await wait_until(lambda: other.closed)
    assert view.leader == leader
    view.close()


async def test_servers_that_all_refuse_are_told_early(fake: Any) -> None:
    fake.stop()
    view = ClusterView(REAL, fake.servers.split(";"))
    admin = AsyncAdmin(view, timeout_s=3600, refused_s=0.3)
    for call in (admin.topics, admin.members, lambda: admin.create_topic("T"), lambda: admin.delete_topic("T")):
        with pytest.raises(Unreachable, match=r"every server has refused connections for 0\.3 s") as caught:
            await call()
        assert caught.value.retryable
        assert fake.nodes[1].address in str(caught.value)
    view.close()


async def test_a_name_that_is_not_known_is_not_called_refused(fake: Any) -> None:
    fake.stop()
    view = ClusterView(REAL, ["raftmq.invalid:9876", fake.nodes[0].address])
    with pytest.raises(Unreachable) as caught:
        await AsyncAdmin(view, timeout_s=3600, refused_s=0.3).topics()
    assert "raftmq.invalid:9876 is a name that is not known" in str(caught.value)
    assert f"{fake.nodes[0].address} refuses connections" in str(caught.value)
    view.close()


async def test_a_server_that_is_silent_may_come_back(fake: Any, wait_until: Any) -> None:
    fake.nodes[0].kill()
    fake.nodes[1].kill()
    silent = fake.nodes[2]
    silent.mute, fake.leader = True, 2
    view = ClusterView(REAL, fake.servers.split(";"))
    admin = AsyncAdmin(view, timeout_s=3600, refused_s=0.0)
    asking = asyncio.create_task(admin.topics())
    await wait_until(lambda: len(silent.calls) >= 3)
    assert not asking.done()
    silent.mute = False
    assert await asking == []
    view.close()


@pytest.mark.parametrize(("silent_s", "kept"), [(3600.0, True), (0.0, False)])
async def test_a_server_is_asked_again_on_the_same_connection_until_it_was_silent_for_long(
    fake: Any, wait_until: Any, silent_s: float, kept: bool
) -> None:
    """A handshake for every question is what keeps an overloaded server overloaded."""
    silent = fake.nodes[0]
    silent.mute = True
    view = ClusterView(with_times(silent_s=silent_s), [silent.address])
    finding = asyncio.create_task(view.find_leader())
    await wait_until(lambda: silent.connections)
    first = next(iter(silent.connections))
    asked = len(silent.calls)
    await wait_until(lambda: len(silent.calls) >= asked + 2)
    assert (first in silent.connections) == kept
    finding.cancel()
    view.close()


async def test_who_asks_as_the_last_one_gives_up_searches_anew(fake: Any) -> None:
    """The search that nobody waited for is being cancelled, and not to be joined."""
    fake.leader = None
    view = ClusterView(REAL, fake.servers.split(";"))
    first = asyncio.create_task(view.find_leader())
    await asyncio.sleep(0)
    first.cancel()
    second = asyncio.create_task(view.find_leader())
    await asyncio.sleep(0)
    fake.leader = 1
    assert await second == fake.nodes[1].address
    assert first.cancelled()
    view.close()


async def test_servers_that_refuse_for_a_moment_are_waited_for(fake: Any) -> None:
    fake.stop()
    view = ClusterView(REAL, fake.servers.split(";"))
    asking = asyncio.create_task(AsyncAdmin(view, timeout_s=3600, refused_s=3600).topics())
    await asyncio.sleep(0.3)  # a few rounds of refusals; however many, the answer is the same
    for node in fake.nodes:
        await node.start()
    assert await asking == []
    view.close()


async def test_nodes_that_came_while_the_leader_stayed_are_known(fake: Any, wait_until: Any) -> None:
    """None of the nodes that the client was given is left in the end."""
    first, *rest = fake.nodes
    fake.named = [first]
    view = ClusterView(REAL._replace(members_every_s=0.01), [first.address])
    assert await view.find_leader() == first.address
    fake.named = list(fake.nodes)
    await wait_until(lambda: set(view.brokers) == {node.address for node in fake.nodes})
    fake.leader, fake.named = 1, rest
    first.kill()
    await wait_until(lambda: view.leader is None)
    assert await view.find_leader() == fake.nodes[1].address
    await wait_until(lambda: first.address not in view.brokers)
    view.close()


async def test_a_server_of_another_cluster_is_not_used(fake: Any, wait_until: Any) -> None:
    """The address of a node that left belongs to another cluster by now."""
    ours, other = fake.nodes[0], fake.nodes[1]
    ours.clusters, other.clusters = "b a", "x"
    view = ClusterView(REAL, [ours.address])
    assert await view.find_leader() == ours.address
    ours.kill()
    fake.leader = 1
    await wait_until(lambda: view.leader is None)
    finding = asyncio.create_task(view.find_leader())
    await wait_until(lambda: other.calls.count(RequestCode.GET_BROKER_CLUSTER_INFO) >= 3)
    assert not finding.done()
    assert f"{other.address} belongs to another cluster" in view.why_no_leader()
    other.clusters = "c b a"
    assert await finding == other.address, "it goes on from the cluster that the client knows"
    assert view.groups.clusters == ("c", "b", "a")
    view.close()


async def test_a_first_search_waits_for_servers_that_cannot_be_asked_yet(fake: Any, wait_until: Any) -> None:
    fake.stop()
    view = ClusterView(REAL, fake.servers.split(";"))
    searching = asyncio.create_task(view.contact(3600))
    await wait_until(lambda: view.why_no_leader().count("refuses connections") == len(fake.nodes))
    await asyncio.sleep(0.3)  # as above: the answer does not depend on how many rounds of refusals there are
    for node in fake.nodes:
        await node.start()
    assert (await searching)[:2] == (fake.nodes[0].address, False)
    fake.stop()
    await wait_until(lambda: view.leader is None)
    contact = await view.contact(0.3)
    assert (contact.leader, contact.hopeless, contact.why.count("refuses connections")) == (None, True, len(fake.nodes))
    view.close()


async def test_a_server_that_does_not_say_who_leads_is_told_with_its_reason(fake: Any) -> None:
    for node in fake.nodes:
        node.tells_nothing = "it has heard no leader for 20 s"
    view = ClusterView(REAL, fake.servers.split(";"))
    contact = await view.contact(0.3)
    told = f"{fake.nodes[0].address} does not say who leads (it has heard no leader for 20 s)"
    assert (contact.leader, told in contact.why) == (None, True), contact.why
    view.close()


GROUP = QueueData("raft", 8, 8, 4)
ALIASES = [QueueData("raft-1", 0, 8, 2), QueueData("raft-2", 0, 8, 2)]


@each_row(
    ("queues", "expected"),
    [
        ([QueueData("raft", 8, 6, 6)], ("raft", 8, 6)),
        ([GROUP, *ALIASES], ("raft", 8, 8)),
        ([*ALIASES, GROUP], ("raft", 8, 8)),
        ([QueueData("raft", 8, 8, 5), QueueData("raft-1", 8, 8, 3)], ("raft", 8, 8)),
        ([QueueData("raft", 8, 8, 4)], ("raft", 8, 0)),
        ([QueueData("raft", 8, 8, 0), *ALIASES], ("raft", 0, 8)),
    ],
)
def test_queues_of_a_route(queues: list[QueueData], expected: tuple[str, int, int]) -> None:
    route = read_route("T", queues, 1.0, True)
    assert route is not None
    assert [each[1:] for each in route.groups] == [expected]
    assert (list(route.readable), list(route.writable)) == ([*range(expected[1])], [*range(expected[2])])


def test_queues_of_several_groups_are_in_the_order_of_the_names() -> None:
    names = {"raft": 1, "raft-g02": 2, "a": 3}
    second = QueueData("raft-g02", 2, 1, 4), QueueData("raft-g02-1", 0, 1, 2)
    rows = [GROUP, *ALIASES, *second, QueueData("a", 1, 1, 6), QueueData("gone", 9, 9, 6)]
    groups = GroupViews(ClusterView(REAL, ["127.0.0.1:1"]))
    groups.names = names
    route = read_route("T", rows, 1.0, True, groups.group_of_name)
    assert route is not None
    assert [each.group for each in route.groups] == [3, 1, 2]
    assert route.readable == [2 << 16, *range(8), 1 << 16, (1 << 16) + 1]
    assert route.writable == [2 << 16, *range(8), 1 << 16]


def test_a_route_without_queues_is_none() -> None:
    assert read_route("T", [], 1.0, True) is None


async def test_a_pull_that_nobody_answers_says_so(fake: Any) -> None:
    fake.create("T", 1)
    async with aconnect(fake.servers) as mq:
        await mq.pull("T", 0, 0)
        for node in fake.nodes:
            node.mute = True
        with pytest.raises(Unreachable, match="from the leader: no answer"):
            await mq.pull("T", 0, 0, timeout_s=0.1)


async def test_a_pull_that_runs_out_of_time_says_what_was_answered_before(fake: Any) -> None:
    fake.create("T", 1)
    answers = iter(["the tier does not give T queue 0 offsets 0 to 9: there is no x.seg"])

    def pulled(link: Any, opaque: int, *_: object) -> None:
        for remark in answers:
            link.reply(opaque, 2, remark=remark)

    fake.handlers[RequestCode.PULL_MESSAGE] = pulled
    async with aconnect(fake.servers) as mq:
        with pytest.raises(Refused, match="there is no x"):
            await mq.pull("T", 0, 0, timeout_s=1.0)
    assert next(answers, None) is None


@pytest.mark.parametrize("name", ["a-group", "z-group"])
async def test_the_leader_of_another_group_is_not_taken_for_the_leader(fake: Any, name: str) -> None:
    """It has other queues under the same numbers, and offsets that are not those that were committed: seed 980000012,
    where the own group had no leader for a while."""
    other, own = fake.nodes[2], fake.nodes[:2]
    fake.named = own
    fake.other_groups = [(name, {"0": other.address})]
    fake.leader = None
    view = ClusterView(REAL, [node.address for node in own])
    search = asyncio.create_task(view.find_leader())
    await asyncio.sleep(0.3)
    fake.leader = 1
    assert await search == own[1].address
    assert other.address not in view.brokers
    assert view.by_id["0"] == own[1].address
    view.close()
