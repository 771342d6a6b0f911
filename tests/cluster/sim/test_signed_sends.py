"""Signed sends of one connection stay in the kernel's short way, and rules count there from the moment they change."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from cluster.remoting.handlers.send import SendHandler
from jepsen_like.sim.machines.lone_node import LoneNode, lone_options
from jepsen_like.sim.users.first_users import OPERATOR, attempt, create_all
from jepsen_like.sim.users.user_clients import NAMES, first_secret
from raftmq.commands.bench_load import request_frame
from raftmq_wire import kernel
from raftmq_wire.codec import HEADER_AT, decode_header
from raftmq_wire.signature import Credentials
from tests.support.intake_kit import frame
from tests.support.kernels import native_kernel

ANN = Credentials(NAMES[0], first_secret(NAMES[0]))
WRONG = Credentials(NAMES[0], "guessed")


class Client(asyncio.Protocol):
    """Keeps the codes of all answers."""

    def __init__(self) -> None:
        self.codes: list[int] = []
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self._rest += data
        while len(self._rest) >= 4 and len(self._rest) >= (end := 4 + int.from_bytes(self._rest[:4], "big")):
            header = HEADER_AT + int.from_bytes(self._rest[5:HEADER_AT], "big")
            self.codes.append(decode_header(0, self._rest[HEADER_AT:header]).code)
            self._rest = self._rest[end:]


def signed(opaque: int, who: Credentials) -> bytes:
    whole = request_frame("users-a", opaque, 0, 1, b"body")
    end = HEADER_AT + int.from_bytes(whole[4:HEADER_AT], "big")
    header, body = json.loads(whole[HEADER_AT:end]), whole[end:]
    header["extFields"] = who.signed(header["extFields"], body)
    return frame(json.dumps(header).encode(), body)


@pytest.fixture
def node() -> Iterator[LoneNode]:
    native_kernel()
    if kernel.NAME != "native":
        pytest.skip(kernel.WHY)
    made = LoneNode(lone_options(segment_size=4 << 20, users=1))
    create_all(made.machine, made.pass_time)
    yield made
    made.close()


def test_signed_sends_stay_in_the_kernel(node: LoneNode, monkeypatch: pytest.MonkeyPatch) -> None:
    long_way: list[int] = []
    on_send = SendHandler.on_send
    monkeypatch.setattr(
        SendHandler,
        "on_send",
        lambda handler, one, **named: (long_way.append(one.header.opaque), on_send(handler, one, **named))[1],
    )
    _, client = node.connect(Client, 0.1)

    def ask(*requests: bytes) -> list[int]:
        client.codes.clear()
        node.client.run(client.transport.write, b"".join(requests))
        node.pass_time(1.0)
        return client.codes

    assert ask(signed(1, ANN)) == [0], "it makes the topic, and the connection's session"
    long_way.clear()
    assert ask(*[signed(opaque, ANN) for opaque in range(2, 30)]) == [0] * 28
    assert sorted(ask(signed(30, ANN), signed(31, WRONG), signed(32, ANN))) == [0, 0, 16]
    done: list[bool] = []
    clear = partial(lambda users, told: users.remove_rules(OPERATOR, NAMES[0], None, None, told))
    attempt(node.machine, clear, done)
    node.pass_time(1.0)
    assert done
    assert ask(signed(40, ANN), signed(41, ANN)) == [16, 16]
    assert not long_way
