"""Every byte that real nodes send to a user, searched for the marks of messages that he may not read: fuzzed requests,
hostile clients, and requests that name those messages."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from jepsen_like.client_kit.fields import pull_fields, send_fields, topic_fields
from jepsen_like.client_kit.frames import Answer
from jepsen_like.client_kit.wire import Target, Wire, ask_http
from jepsen_like.fuzz.remoting import Requests
from jepsen_like.fuzz.shot_connections import RemotingLane, ShotDefect
from jepsen_like.hostile.attack import Arena, RoundReport
from jepsen_like.hostile.attacks import ATTACKS
from jepsen_like.marks import mark_of
from raftmq.local.cluster import LocalCluster
from raftmq_wire.codes import RequestCode as Code
from raftmq_wire.message_format import decode_message_id
from raftmq_wire.signature import Credentials
from tests.support.marked_proxy import MarkedProxy
from tests.support.pace import at_most
from tests.support.user_cluster import ROOT, as_user, cluster_with_users

pytestmark = [pytest.mark.live, pytest.mark.ci]
MAL = ("mal", "the-secret-of-mal")
SECRET = "secret-orders"
SHOTS, BATCHES = 20, 60
HOSTILE = ("drawn-filters", "drawn-lists", "names")


RULES = (
    ("*", ["All"], True),
    ("Topic:secret-*", ["All"], False),
    ("Group:secret-*", ["All"], False),
)
"""The user may do everything with everything that is not secret, so that nearly every request reaches its handler."""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    with cluster_with_users(tmp_path, monkeypatch) as made:
        with as_user(made, ROOT) as root:
            root.admin.create_user(*MAL)
            for resource, actions, allow in RULES:
                root.admin.set_rule("mal", resource, actions, allow=allow)
            root.admin.set_auth_mode("enforce")
        yield made


def is_open(topic: str) -> bool:
    return not topic.startswith("secret")


class Stored(NamedTuple):
    """The secret messages: their positions and ids."""

    positions: list[int]
    ids: list[str]
    handle: str


async def store(wire: Wire) -> Stored:
    """Stores secret messages of every kind as the Super."""
    await wire.ask(Code.UPDATE_AND_CREATE_TOPIC, topic_fields(SECRET))
    body = json.dumps({"groupName": "secret-group", "retryQueueNums": 1}).encode()
    assert (await wire.ask(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)).code == 0
    kinds = {
        "plain": "UNIQ_KEY\x01plain\x02KEYS\x01key\x02",
        "half": "UNIQ_KEY\x01half\x02TRAN_MSG\x01true\x02PGROUP\x01hostile\x02",
        "later": "UNIQ_KEY\x01later\x02TIMER_DELAY_MS\x01600000\x02",
        "asks": "UNIQ_KEY\x01asks\x02CORRELATION_ID\x011\x02REPLY_TO_CLIENT\x01hostile\x02TTL\x01600000\x02",
    }
    sent: list[Answer] = []
    for kind, properties in kinds.items():
        sent.append(await until_sent(wire, send_fields(SECRET, properties), kind.encode() + mark_of(SECRET)))
    ids = [answer.ext["msgId"] for answer in sent if len(answer.ext["msgId"]) == 32]
    positions = [decode_message_id(each)[1] for each in ids]
    back = {"group": "secret-group", "offset": str(positions[0]), "delayLevel": "-1", "originMsgId": "x"}
    assert (await wire.ask(Code.CONSUMER_SEND_MSG_BACK, back)).code == 0
    return Stored(positions, ids, sent[2].ext.get("recallHandle", ""))


async def until_sent(wire: Wire, fields: dict[str, str], body: bytes) -> Answer:
    """Sends until it is stored: a new topic takes a moment."""
    async with asyncio.timeout(at_most(30)):
        while (answer := await wire.ask(310, fields, body)).code != 0:
            await asyncio.sleep(0.1)
    return answer


async def names_them(wire: Wire, stored: Stored, group: str = "my-group") -> None:
    """Names the secret messages in every request that takes a position or an id, and reads what comes of it."""
    beat = {"clientID": "mine", "producerDataSet": [{"groupName": "hostile"}]}
    beat["consumerDataSet"] = [{"groupName": group, "subscriptionDataSet": []}]
    await wire.ask(Code.HEART_BEAT, {}, json.dumps(beat).encode())
    for position, message_id in zip(stored.positions, stored.ids, strict=True):
        await wire.ask(Code.VIEW_MESSAGE_BY_ID, {"offset": str(position)})
        back = {"group": group, "offset": str(position), "originMsgId": "x"}
        for more in ({}, {"originTopic": SECRET}, {"delayLevel": "-1"}):
            await wire.ask(Code.CONSUMER_SEND_MSG_BACK, back | more)
        wire.put(Code.CONSUME_MESSAGE_DIRECTLY, {"consumerGroup": group, "clientId": "mine", "msgId": message_id})
        times = {"beginTimestamp": "0", "endTimestamp": str(1 << 50), "maxNum": "8"}
        for topic, key in ((SECRET, "key"), ("my-topic", "key"), ("my-topic", message_id), ("my-topic", "plain")):
            await wire.ask(Code.QUERY_MESSAGE, times | {"topic": topic, "key": key})
    for topic in (f"%RETRY%{group}", f"%DLQ%{group}", "%DLQ%secret-group", SECRET):
        await wire.ask(Code.PULL_MESSAGE, pull_fields(group, topic))
    await asyncio.sleep(0.5)  # what is pushed comes by itself


async def fuzz(port: int, seed: int) -> int:
    """Fires drawn requests; returns how many were sent. Only what comes back counts here."""
    requests, lane, fired = Requests(random.Random(seed)), RemotingLane(port), 0
    for _ in range(BATCHES):
        shots = requests.batch(SHOTS)
        with suppress(ShotDefect, OSError, TimeoutError):
            async with asyncio.timeout(2):
                await lane.fire(shots)
        fired += len(shots)
    lane.close()
    return fired


async def attack(cluster: LocalCluster, leader: int, port: int, seed: int) -> None:
    """Plays a few hostile clients, small, against one port."""
    target = Target(leader, port, 0, 0)
    arena = Arena([target], leader, "", seed, 0.05)
    for name in HOSTILE:
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(at_most(20)):
                await ATTACKS[name].play(arena, target, RoundReport())


async def test_no_byte_of_a_secret_goes_to_a_user_without_a_right(cluster: LocalCluster) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201 - pytest shows it when the test fails
    leader = cluster.wait_leader()
    ports = {node.id: (node.broker_port, node.admin_port) for node in cluster.nodes}
    root, mal = Credentials(*ROOT), Credentials(*MAL)
    async with AsyncExitStack() as open_now:
        enter = open_now.enter_async_context
        as_root = await enter(MarkedProxy(ports[leader][0], lambda topic: True, root))
        proxies = {node: await enter(MarkedProxy(each[0], is_open, mal)) for node, each in ports.items()}
        strange = await enter(MarkedProxy(ports[leader][0], lambda topic: False))
        http = await enter(MarkedProxy(ports[leader][1], is_open))
        async with await Wire.dial(as_root.port) as wire:
            stored = await store(wire)
            await names_them(wire, stored, "secret-group")
        assert as_root.read[SECRET] > 3, "who may read them sees the marks"
        for proxy in (*proxies.values(), strange):
            async with await Wire.dial(proxy.port) as wire:
                await names_them(wire, stored)
        for position in stored.positions:
            await ask_http(http.port, "GET", f"/v1/messages/{position}")
        await asyncio.gather(*(fuzz(proxy.port, seed + node) for node, proxy in proxies.items()))
        await fuzz(strange.port, seed)
        await attack(cluster, leader, proxies[leader].port, seed)
        async with await Wire.dial(proxies[leader].port) as wire:
            await names_them(wire, stored)
    wrong = [what for proxy in (*proxies.values(), strange, http) for what in proxy.wrong]
    assert wrong == []
    assert min(proxy.signed for proxy in proxies.values()) > BATCHES, "requests were signed"
