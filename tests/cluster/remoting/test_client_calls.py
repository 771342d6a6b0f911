"""Requests that a node sends to a client over a real connection: answered, refused by silence, ended by its end."""

from __future__ import annotations

import asyncio
import json

from cluster.broker.groups.group_members import Role
from cluster.broker.refusal import Reason, Refused
from cluster.broker.services import ClientAnswer, ClientRequest
from cluster.node.node import Node
from raftmq_wire.codec import FLAG_RESPONSE, decode_header, encode_frame
from tests.cluster.remoting.test_slow_clients import Client, Start, start  # noqa: F401 - a fixture
from tests.support.pace import at_most

WAIT_S = at_most(20)


async def frame(client: Client) -> tuple[int, int, bytes]:
    """Code, opaque and body of the next frame from the node."""
    async with asyncio.timeout(WAIT_S):
        size = int.from_bytes(await client.reader.readexactly(4), "big")
        data = await client.reader.readexactly(size)
    end = 4 + int.from_bytes(data[1:4], "big")
    header = decode_header(data[0], data[4:end])
    return header.code, header.opaque, data[end:]


async def producer(node: Node) -> Client:
    client = await Client.to(node)
    body = json.dumps({"clientID": "c", "producerDataSet": [{"groupName": "p"}]}).encode()
    client.writer.write(encode_frame(34, 1, 0, body=body))
    assert (await frame(client))[:2] == (0, 1)
    return client


def ask(node: Node) -> asyncio.Future[ClientAnswer | Refused]:
    outcome: asyncio.Future[ClientAnswer | Refused] = asyncio.get_running_loop().create_future()
    node.serving.broker.relay.ask_client(
        Role.PRODUCER, "p", None, ClientRequest(307, {"a": "b"}, b"ask"), outcome.set_result
    )
    return outcome


async def test_the_answer_with_its_number_counts(start: Start) -> None:  # noqa: F811
    node = await start()
    client = await producer(node)
    first, second = ask(node), ask(node)
    asked = [await frame(client) for _ in range(2)]
    assert [(code, body) for code, _, body in asked] == [(307, b"ask")] * 2
    (_, one, _), (_, two, _) = asked
    client.writer.write(encode_frame(0, max(one, two) + 1, FLAG_RESPONSE, body=b"to nobody"))
    client.writer.write(encode_frame(0, two, FLAG_RESPONSE, body=b"two"))
    client.writer.write(encode_frame(7, one, FLAG_RESPONSE, body=b"one", remark="why", ext={"k": "v"}))
    async with asyncio.timeout(WAIT_S):
        assert await first == ClientAnswer(7, "why", {"k": "v"}, b"one")
        answer = await second
    assert isinstance(answer, ClientAnswer)
    assert answer.body == b"two"


async def test_a_client_that_goes_answers_nothing(start: Start) -> None:  # noqa: F811
    node = await start()
    client = await producer(node)
    outcome = ask(node)
    await frame(client)
    client.writer.close()
    async with asyncio.timeout(WAIT_S):
        answer = await outcome
    assert isinstance(answer, Refused)
    assert answer.reason is Reason.ERROR
