"""Clients that sign as users: they send and pull with and without the right to do so, while a Super user changes users
and rules.

Every request is reported to the run's check (`access_check`), which knows from the log which answers are right.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from jepsen_like.client_kit.fields import foreign_send
from jepsen_like.client_kit.frames import Answer
from jepsen_like.sim.callbacks import Report
from jepsen_like.sim.clients.client_machines import SEND_CODE, ClientHost, id_of
from jepsen_like.sim.clients.raw_client import RawConnection
from jepsen_like.sim.clients.single_request import Asker, dial
from jepsen_like.sim.options import ROOT
from jepsen_like.sim.users.access_check import ID_PREFIX, AccessCheck, Request
from jepsen_like.sim.users.access_model import Want, Who
from raftlog.types import NodeId
from raftmq_wire.codes import RequestCode, ResponseCode
from raftmq_wire.message_format import decode_messages
from raftmq_wire.signature import Credentials

TOPICS, QUEUES, GROUP = ("users-a", "users-b"), 2, "users"
CALM_TOPIC = "users-calm"
"""Topic to which no client sends, so that its pulls stay parked."""
NAMES = ("ann", "bob", "cy")
PULLS = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
SUSPEND_MS = (200, 1_000, 5_000)
RESOURCES = ("Topic:users-a", "Topic:users-b", "Topic:users-*", "Topic:users*", "Topic:*", "*")
ELSEWHERE, HERE = "10.9.0.0/16", "10.0.0.0/8"
OF_GROUP = (f"Group:{GROUP}", "Group:us*", "Group:*", "*")
UNREAD = "the signature of a request before it was wrong"
"""Remark with which a node refuses a request because an earlier one on the same connection had a wrong signature, after
many wrong ones of its user. Such a refusal says nothing about the rights of the request's own user.
"""
_PASSED = frozenset(
    (
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
        ResponseCode.QUERY_NOT_FOUND,
    )
)


class Signer(NamedTuple):
    """A user name and a secret, right or wrong, with which a request is signed."""

    access_key: str
    secret: str

    def signed(self, ext: dict[str, str], body: bytes) -> dict[str, str]:
        """Returns the request's fields with user name and signature added."""
        return Credentials(*self).signed(ext, body)


def first_secret(name: str) -> str:
    """Returns the secret with which a user is created before the load begins."""
    return f"{name}-secret-0"


def usual_rules() -> list[list[object]]:
    """Returns the rules under which a user may do everything that the clients of this module do."""
    return [[1, "Topic:users-*", ["Pub", "Sub"], [], True], [1, f"Group:{GROUP}", ["Sub"], [], True]]


class UserClients:
    """Sends requests of users on raw connections and tells the access check each request and its answer."""

    def __init__(self, host: ClientHost, check: AccessCheck) -> None:
        self.host, self._check = host, check
        self.secrets = {name: [first_secret(name)] for name in NAMES}
        """User name -> the secrets that the user had or was about to get, the newest last."""
        self._count = 0
        self._ends: dict[tuple[str, int], int] = {}

    def signer(self, name: str, *, old: bool = False) -> Signer:
        """Returns the user's name with its newest secret or, with `old`, with the secret before the newest if there is
        one.
        """
        known = self.secrets[name]
        return Signer(name, known[-2] if old and len(known) > 1 else known[-1])

    def new_secret(self, name: str) -> str:
        """Returns a secret that the user never had, and records it as the newest."""
        self.secrets[name].append(f"{name}-secret-{len(self.secrets[name])}")
        return self.secrets[name][-1]

    def send(self, connection: RawConnection, who: Signer | None, topic: str, queue: int) -> Request:
        """Sends a message to a queue; returns the request without waiting for the answer. `who` None: unsigned."""
        self._count += 1
        message_id = f"{ID_PREFIX}{self._count}"
        ext = foreign_send(topic, message_id, queue)
        request = self._request(f"the send {message_id} to {topic}", who, connection, [Want("Topic", topic, ("Pub",))])
        request.message_id = message_id
        self._ask(connection, request, who, SEND_CODE, ext, self.host.body(topic, message_id, 9))
        return request

    def pull(
        self, connection: RawConnection, who: Signer | None, topic: str, queue: int, code: int, suspend_ms: int
    ) -> Request:
        """Sends a pull from the last known end of the queue, parked for up to `suspend_ms`; returns the request without
        waiting."""
        ext = {
            "consumerGroup": GROUP, "topic": topic, "queueId": str(queue),
            "queueOffset": str(self._ends.get((topic, queue), 0)), "maxMsgNums": "8", "sysFlag": "6",
            "commitOffset": "0", "suspendTimeoutMillis": str(suspend_ms), "subscription": "*", "subVersion": "0",
            "expressionType": "TAG",
        }  # fmt: skip
        wants = [Want("Topic", topic, ("Sub",)), Want("Group", GROUP, ("Sub",))]
        request = self._request(f"a pull ({code}) of {topic} queue {queue}", who, connection, wants)

        def moved(answer: Answer) -> None:
            if answer.code in (ResponseCode.SUCCESS, ResponseCode.PULL_OFFSET_MOVED):
                self._ends[topic, queue] = int(answer.ext["nextBeginOffset"])

        self._ask(connection, request, who, code, ext, parked_s=suspend_ms / 1000, heard=moved)
        return request

    def query(self, connection: RawConnection, who: Signer | None, topic: str) -> Request:
        """Asks for the group's consumer offset of queue 0; returns the request without waiting for the answer."""
        wants = [Want("Topic", topic, ("Sub", "Get")), Want("Group", GROUP, ("Sub", "Get"))]
        request = self._request(f"a question for the offset of {topic}", who, connection, wants)
        ext = {"consumerGroup": GROUP, "topic": topic, "queueId": "0"}
        self._ask(connection, request, who, RequestCode.QUERY_CONSUMER_OFFSET, ext)
        return request

    def _request(self, what: str, who: Signer | None, connection: RawConnection, wants: list[Want]) -> Request:
        name, secret = ("", "") if who is None else (who.access_key, who.secret)
        node = NodeId(int(connection.transport.other[0].rpartition(".")[2]))
        signer = Who(name, secret, self.host.process.host)
        return Request(what, signer, tuple(wants), node, self.host.loop.now)

    def _ask(
        self,
        connection: RawConnection,
        request: Request,
        who: Signer | None,
        code: int,
        ext: dict[str, str],
        body: bytes = b"",
        *,
        parked_s: float = 0.0,
        heard: Callable[[Answer], None] | None = None,
    ) -> None:
        def answered(answer: Answer) -> None:
            given = [id_of(message.body) for message in decode_messages(answer.body)] if code in PULLS else []
            denied = answer.code == ResponseCode.NO_PERMISSION and answer.remark != UNREAD
            passed = answer.code in (_PASSED if code != SEND_CODE else (ResponseCode.SUCCESS,))
            self._check.answered(request, passed=passed, denied=denied, given=given)
            if heard is not None:
                heard(answer)

        self._check.asks(request)
        if who is not None:
            ext = who.signed(ext, body)
        frame = connection.frame(code, ext, body, parked_s=parked_s, heard=answered)
        connection.write(frame)


class UserStories(Asker):
    """Runs the load of users: tasks that change users, send and pull. Setting `stopped` ends them after their present
    requests."""

    def __init__(self, host: ClientHost, report: Report, check: AccessCheck) -> None:
        super().__init__(host, report)
        self.check = check
        self.users = UserClients(host, check)

    def start(self) -> None:
        """Starts the tasks that change users, send, pull and pretend to be others."""
        works = (
            ((0.05, 0.6), 0.2, self._change),
            *[((0.005, 0.08), 0.05, self._send_some)] * 2,
            *[((0.02, 0.2), 0.1, self._pull_some)] * 2,
            ((0.05, 0.3), 0.1, self._pretend),
        )
        for pause_s, redials, act in works:
            rng = random.Random(self.rng.random())
            self._spawn(partial(self._in_turns, rng, pause_s, redials, "users", partial(act, rng)))

    # --- requests ----------------------------------------------------------------------------------------------------

    async def _send_some(self, rng: random.Random, connection: RawConnection) -> None:
        name = rng.choice(NAMES)
        who = self.users.signer(name, old=rng.random() < 0.05)
        for _ in range(rng.randint(1, 3)):
            self.users.send(connection, who, rng.choice(TOPICS), rng.randrange(QUEUES))

    async def _pull_some(self, rng: random.Random, connection: RawConnection) -> None:
        who = self.users.signer(rng.choice(NAMES), old=rng.random() < 0.05)
        if rng.random() < 0.2:
            self.users.query(connection, who, rng.choice(TOPICS))
            return
        code, suspend_ms = rng.choice(PULLS), rng.choice(SUSPEND_MS)
        for _ in range(rng.randint(1, 2)):
            self.users.pull(connection, who, rng.choice(TOPICS), rng.randrange(QUEUES), code, suspend_ms)

    async def _pretend(self, rng: random.Random, connection: RawConnection) -> None:
        """Sends a request unsigned, as an unknown user, or under a user's name with a wrong secret."""
        who = rng.choice(
            (
                None,
                Signer("nobody", "nobody-secret"),
                Signer(ROOT[0], self.users.signer(NAMES[0]).secret),
                Signer(rng.choice(NAMES), "guessed-secret"),
            )
        )
        if rng.random() < 0.5:
            self.users.send(connection, who, rng.choice(TOPICS), rng.randrange(QUEUES))
        else:
            self.users.pull(connection, who, rng.choice(TOPICS), 0, rng.choice(PULLS), 200)

    # --- changes -----------------------------------------------------------------------------------------------------

    async def _change(self, rng: random.Random, connection: RawConnection) -> None:
        name = rng.choice(NAMES)
        acts = (self.give, self.give, self.rule, self.rule, self.rule, self.take, self.take, self.switch, self.switch)
        act = rng.choice((*acts, self.other_secret, self.again, self.again))
        await act(rng, connection, name)

    async def give(self, rng: random.Random, connection: RawConnection, name: str) -> None:
        """Gives the user all its usual rights back."""
        await self.set_rules(connection, name, usual_rules())

    async def rule(self, rng: random.Random, connection: RawConnection, name: str) -> None:
        """Adds one random rule to the user; it may deny."""
        is_topic = rng.random() < 0.7
        resource = rng.choice(RESOURCES if is_topic else OF_GROUP)
        actions = rng.choice((["Pub"], ["Sub"], ["All"], ["Pub", "Sub"])) if is_topic else ["Sub"]
        sources: list[str] = rng.choice(([], [], [HERE], [ELSEWHERE]))
        policy = rng.choice((1, 1, 1, 2))
        await self.set_rules(connection, name, [[policy, resource, actions, sources, rng.random() < 0.6]])

    async def take(self, rng: random.Random, connection: RawConnection, name: str) -> None:
        """Deletes one rule of the user, or all."""
        ext = {"subject": f"User:{name}"}
        if rng.random() < 0.6:
            ext |= {"resource": rng.choice((*RESOURCES, *OF_GROUP)), "policyType": rng.choice(("Custom", "Default"))}
        await self.admin(connection, RequestCode.AUTH_DELETE_ACL, ext)

    async def switch(self, rng: random.Random, connection: RawConnection, name: str) -> None:
        """Disables the user and, in 7 of 10 cases, enables it again up to 0.3 s later."""
        await self.set_status(connection, name, enabled=False)
        if rng.random() < 0.7:
            await asyncio.sleep(rng.uniform(0.0, 0.3))
            await self.set_status(connection, name, enabled=True)

    async def other_secret(self, rng: random.Random, connection: RawConnection, name: str) -> None:
        """Gives the user a new secret."""
        await self.set_secret(connection, name)

    async def again(self, rng: random.Random, connection: RawConnection, name: str) -> None:
        """Deletes the user and creates one with the same name, usually with its usual rules."""
        await self.remove(connection, name)
        if rng.random() < 0.5:
            await asyncio.sleep(rng.uniform(0.0, 0.2))
        await self.create(connection, name)
        if rng.random() < 0.8:
            await self.set_rules(connection, name, usual_rules())

    async def set_rules(self, connection: RawConnection, name: str, rules: list[list[object]]) -> None:
        """Sets the user's rules with the request that mqadmin sends."""
        policies = [
            {
                "policyType": "Custom" if policy == 1 else "Default",
                "entries": [
                    {
                        "resource": resource,
                        "actions": actions,
                        "sourceIps": sources,
                        "decision": "Allow" if allow else "Deny",
                    }
                ],
            }
            for policy, resource, actions, sources, allow in rules
        ]
        body = {"subject": f"User:{name}", "policies": policies}
        await self.admin(connection, RequestCode.AUTH_UPDATE_ACL, {"subject": f"User:{name}"}, body)

    async def set_status(self, connection: RawConnection, name: str, *, enabled: bool) -> None:
        """Disables or enables a user."""
        body = {"username": name, "userStatus": "enable" if enabled else "disable"}
        await self.admin(connection, RequestCode.AUTH_UPDATE_USER, {"username": name}, body)

    async def set_secret(self, connection: RawConnection, name: str) -> None:
        """Gives the user a new secret."""
        body = {"username": name, "password": self.users.new_secret(name)}
        await self.admin(connection, RequestCode.AUTH_UPDATE_USER, {"username": name}, body)

    async def remove(self, connection: RawConnection, name: str) -> None:
        """Deletes the user."""
        await self.admin(connection, RequestCode.AUTH_DELETE_USER, {"username": name})

    async def create(self, connection: RawConnection, name: str) -> None:
        """Creates the user with a new secret and no rules."""
        body = {"username": name, "password": self.users.new_secret(name), "userType": "Normal"}
        await self.admin(connection, RequestCode.AUTH_CREATE_USER, {"username": name}, body)

    async def _dial(self, rng: random.Random, name: str) -> RawConnection | None:
        """Opens a connection that signs no request by itself: only requests that carry their own signature are
        signed."""
        return await dial(self.host, rng.choice(self.host.nodes), name, self._report, signs=False)

    async def admin(
        self, connection: RawConnection, code: int, ext: dict[str, str], body: Mapping[str, object] | None = None
    ) -> Answer | None:
        """Sends a request signed by the Super user, as which all other clients of the run sign too. Returns the answer,
        None if none came."""
        text = b"" if body is None else json.dumps(body).encode()
        return await self._ask(connection, code, Signer(*ROOT).signed(ext, text), text)
