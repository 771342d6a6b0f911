"""Requesters that wait for replies (RocketMQ's request and reply) and sign as a separate user, and a service that
replies.

A request is a message that names its requester's client id; the service sends the reply to any node, and the node with
the requester's connection pushes it there. A requester checks that a reply is the service's answer to its own request.
The mark in each reply shows whether somebody else gets it (`jepsen_like.sim.users.mark_check`).
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from functools import partial

from jepsen_like.client_kit.fields import send_fields
from jepsen_like.marks import mark_of
from jepsen_like.sim.callbacks import Report
from jepsen_like.sim.clients.client_machines import SEND_CODE, ClientHost, id_of
from jepsen_like.sim.clients.raw_client import RawConnection
from jepsen_like.sim.clients.single_request import Asker, connects
from jepsen_like.sim.users.mark_check import REPLY_TO
from jepsen_like.sim.users.user_clients import Signer, first_secret
from raftmq_wire.codec import FLAG_RESPONSE, Header, encode_frame, ext_of
from raftmq_wire.codes import RequestCode, ResponseCode
from raftmq_wire.properties import parse_properties

NAME = "eve"
"""The user as which the requesters sign."""
TOPIC, GROUP = "questions", "questions"
REQUESTERS = 2
TTL_MS = 5_000
CHECKER = "replies"
NOT_THERE = "not found"
"""Text with which a node says that a client is connected nowhere."""


def rules() -> list[list[object]]:
    """Returns the rules of the user, who may send requests and nothing else."""
    return [[1, f"Topic:{TOPIC}", ["Pub"], [], True]]


class RequesterConnection(RawConnection):
    """A connection over which nodes push replies (request code 326)."""

    def __init__(self, name: str, requesters: Requesters) -> None:
        super().__init__(name, requesters.host.loop, requesters.report)
        self._all = requesters

    def on_frame(self, header: Header, body: bytes) -> None:
        """Handles a frame from the node: a pushed reply is recorded and confirmed."""
        if header.flag & FLAG_RESPONSE or header.code != RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT:
            super().on_frame(header, body)
            return
        self._all.replied(self.name, ext_of(header), body)
        self.write(encode_frame(ResponseCode.SUCCESS, header.opaque, FLAG_RESPONSE))


class Requesters(Asker):
    """Runs REQUESTERS requesters, and the service that replies to them. The service signs as the Super user."""

    def __init__(
        self, host: ClientHost, report: Report, linked: Callable[[], bool], shared: Callable[[str], bool]
    ) -> None:
        """`linked`: returns True if every connection between nodes works. `shared`: returns True if clients of several
        users have this client id."""
        super().__init__(host, report)
        self.report, self._linked, self._is_shared = report, linked, shared
        self.got = 0
        """Number of replies that came."""
        self._signer = Signer(NAME, first_secret(NAME))
        self._count = 0
        self.calm = False
        """True once all faults are healed: from then on every reply must reach its requester."""
        self.asked: dict[str, str] = {}
        """Correlation id -> client id of the requester."""

    def client_ids(self) -> list[str]:
        """Returns the client ids of the requesters that have asked something."""
        return sorted(set(self.asked.values()))

    def start(self) -> None:
        """Starts the requesters as tasks."""
        for number in range(REQUESTERS):
            self._spawn(partial(self._request, f"requester-{number}", random.Random(self.rng.random())))

    async def _request(self, client_id: str, rng: random.Random) -> None:
        connection: RawConnection | None = None
        while not self.stopped:
            await asyncio.sleep(rng.uniform(0.05, 0.4))
            if connection is None or connection.closed or rng.random() < 0.1:
                connection = await self._connect(client_id, rng)
            if connection is not None:
                await self._ask_once(client_id, connection, rng)

    async def _connect(self, client_id: str, rng: random.Random) -> RawConnection | None:
        made = RequesterConnection(client_id, self)
        if not await connects(made, rng.choice(self.host.nodes)):
            return None
        body = json.dumps({"clientID": client_id, "producerDataSet": [{"groupName": GROUP}]}).encode()
        answer = await self._ask(made, RequestCode.HEART_BEAT, self._signer.signed({}, body), body)
        return made if answer is not None and answer.code == ResponseCode.SUCCESS else None

    async def _ask_once(self, client_id: str, connection: RawConnection, rng: random.Random) -> None:
        self._count += 1
        correlation = f"question-{self._count}"
        self.asked[correlation], calm = client_id, self.calm and self._linked()
        properties = {"CORRELATION_ID": correlation, "REPLY_TO_CLIENT": client_id, "TTL": str(TTL_MS)}
        fields = send_fields(TOPIC, "".join(f"{name}\x01{value}\x02" for name, value in properties.items()))
        body = self.host.body(TOPIC, correlation)
        answer = await self._ask(connection, SEND_CODE, self._signer.signed(fields, body), body)
        if answer is not None and answer.code == ResponseCode.SUCCESS:
            lost = await self._reply(correlation, client_id, rng)
            if (
                lost
                and calm
                and self._linked()
                and not self._is_shared(client_id)
                and not (connection.closed or connection.transport.leads_nowhere or self.stopped)
            ):
                self.report(CHECKER, f"the reply to {correlation} does not reach {client_id}, who waits for it: {lost}")

    async def _reply(self, correlation: str, client_id: str, rng: random.Random) -> str:
        """Replies once or twice, as the service does: through any node. Returns the node's reason if the node answers
        that there is no such requester, "" otherwise.
        """
        properties = {"CORRELATION_ID": correlation, "REPLY_TO_CLIENT": client_id, "MSG_TYPE": "reply"}
        fields = send_fields("replies", "".join(f"{name}\x01{value}\x02" for name, value in properties.items()))
        service, lost = await self._dial(rng, "a service"), ""
        for _ in range(rng.choice((1, 1, 2))):
            if service is not None:
                body = b"%b %b" % (correlation.encode(), mark_of(REPLY_TO + NAME))
                answer = await self._ask(service, RequestCode.SEND_REPLY_MESSAGE_V2, fields, body)
                if answer is not None and NOT_THERE in answer.remark:
                    lost = answer.remark
        if service is not None:
            service.transport.close()
        return lost

    def replied(self, client_id: str, ext: dict[str, str], body: bytes) -> None:
        """Checks a reply that came to a requester."""
        self.got += 1
        correlation = parse_properties(ext.get("properties", "")).get("CORRELATION_ID", "")
        # After a node has lost its notes of who waits, a reply goes to the one client with that id. Clients discard
        # replies to requests that they did not send.
        if self.asked.get(correlation) == client_id and id_of(body) != correlation:
            self.report(CHECKER, f"{client_id} gets {body[:40]!r} as the reply to {correlation}")
