"""Attackers: users who have rights to their own topic and group only, and try to read and change other users' data.

They know all names of other users' objects (`leaks`), and use these names in every request that takes a position, id,
handle, attempt, session, client id or group. The check of marks shows whether they can read something; the checks of
acknowledged messages, transactions, staged writes, locks and replies show whether they can destroy or change something.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from jepsen_like.client_kit.fields import beat_body, foreign_send, pull_fields, send_fields
from jepsen_like.client_kit.frames import Answer
from jepsen_like.sim.callbacks import Report
from jepsen_like.sim.clients.client_machines import ORDERED_GROUP, SEND_CODE, ClientHost
from jepsen_like.sim.clients.client_machines import TOPIC as ORDERED
from jepsen_like.sim.clients.raw_client import RawConnection
from jepsen_like.sim.clients.single_request import Asker, connects
from jepsen_like.sim.users import greedy_attacks
from jepsen_like.sim.users.leaks import Leaks, unique_key_of
from jepsen_like.sim.users.user_clients import Signer, first_secret
from raftmq_wire.codec import FLAG_RESPONSE, Header, ext_of
from raftmq_wire.codes import RequestCode, ResponseCode
from raftmq_wire.message_format import BatchItem, build_batch, decode_messages, encode_message_id
from raftmq_wire.properties import parse_properties

OWN: Final = "mal"
"""The attacker's name, and the prefix of the names of his topic, group and clients."""
TOPIC, GROUP, CLIENT = f"{OWN}-topic", f"{OWN}-group", f"{OWN}-client"
RETRY, DEAD = f"%RETRY%{GROUP}", f"%DLQ%{GROUP}"
NEIGHBOUR: Final = "nat"
"""A user who may read in the group that locks queues, and pretends to be another consumer of it."""
COMMIT, ROLLBACK = "8", "12"
HUGE, HUGE_SHARE = 1 << 40, 0.1
"""HUGE: a sequence number that no client reaches. HUGE_SHARE: the share (0 to 1) of the commits that use it."""
LOOKS, LOOK_S = 40, 0.005
"""LOOKS: number of times that an attack looks for a new attempt at a staged write. LOOK_S: seconds between two looks.
"""
PAUSE_S = (0.05, 0.25)
"""Shortest and longest time in seconds between two attacks."""


def rules_of(name: str) -> list[list[object]]:
    """Returns the rules of one of the attackers."""
    if name == NEIGHBOUR:
        return [
            [1, f"Topic:{ORDERED}", ["Sub"], [], True],
            [1, f"Group:{ORDERED_GROUP}", ["Sub"], [], True],
        ]
    return [
        [1, f"Topic:{OWN}-*", ["All"], [], True],
        [1, f"Group:{OWN}-*", ["All"], [], True],
        [1, "Cluster:DefaultCluster", ["Get"], [], True],
        [1, "Topic:DefaultCluster_REPLY_TOPIC", ["Pub"], [], True],
    ]


class AttackerConnection(RawConnection):
    """A connection over which nodes may ask the attacker about transactions (request code 39)."""

    on_check: Callable[[dict[str, str]], None] | None = None

    def on_frame(self, header: Header, body: bytes) -> None:
        """Handles a frame from the node: checks of transactions go to `on_check`."""
        if not header.flag & FLAG_RESPONSE and header.code == RequestCode.CHECK_TRANSACTION_STATE and self.on_check:
            self.on_check(ext_of(header))
        super().on_frame(header, body)


class Attackers(Asker):
    """Carries out attacks as the user OWN, and some as the user NEIGHBOUR. Setting `stopped` ends them after the
    present attack."""

    def __init__(
        self,
        host: ClientHost,
        report: Report,
        leaks: Leaks,
        asked: Callable[[], Sequence[str]],
        ready: Callable[[], bool],
    ) -> None:
        """`asked`: returns the ids of the clients that wait for replies. `ready`: returns True if the cluster has the
        level from which on it withstands every attack.
        """
        super().__init__(host, report)
        self.report = report
        self._ready = ready
        self._leaks, self.asked = leaks, asked
        self._next: dict[str, int] = {RETRY: 0, DEAD: 0}
        self.counts: Counter[str] = Counter()
        """"attack code" -> number of answers."""
        self.attacks = attacks_of(())

    def start(self) -> None:
        """Starts the attacks as tasks: those on other users' data, and those on what all users share."""
        for client, is_greedy in ((CLIENT, False), (f"{CLIENT}-greedy", True)):
            if kinds := [attack for attack in self.attacks if attack.is_greedy is is_greedy]:
                self._spawn(partial(self._attack, client, kinds))

    async def _attack(self, client: str, kinds: Sequence[AttackKind]) -> None:
        rng = random.Random(self.rng.random())
        connection: AttackerConnection | None = None
        while not self.stopped:
            await asyncio.sleep(rng.uniform(*PAUSE_S))
            if connection is None or connection.closed or rng.random() < 0.05:
                connection = await self._connect(client, rng)
            if connection is not None and self._ready():
                attack = rng.choice(kinds)
                await attack.act(UserAttack(self, attack.name, connection, rng))
        if connection is not None:
            connection.transport.abort()

    async def _connect(self, client: str, rng: random.Random) -> AttackerConnection | None:
        """Opens a connection and registers the attacker's own consumer and producer on it."""
        made = AttackerConnection("an attacker", self.host.loop, self._report)
        if not await connects(made, rng.choice(self.host.nodes)):
            return None
        own = UserAttack(self, "joins", made, rng)
        made.on_check = own.answers_check
        await own.ask(RequestCode.HEART_BEAT, {}, beat_body(client, [GROUP], [TOPIC, RETRY]))
        return None if made.closed else made

    async def ask_as(
        self, name: str, attack: str, connection: RawConnection, code: int, ext: dict[str, str], body: bytes
    ) -> Answer | None:
        """Sends a request signed by a user; returns its answer, None if there is none."""
        answer = await self._ask(connection, code, Signer(name, first_secret(name)).signed(ext, body), body)
        if answer is not None:
            self.counts[f"{attack} {answer.code}"] += 1
        return answer


class UserAttack:
    """One attack on one connection. In the descriptions of its methods, "its own" means the attacker's own, and a
    number in parentheses is the code of the request that the method sends."""

    def __init__(self, attackers: Attackers, name: str, connection: RawConnection, rng: random.Random) -> None:
        self.all, self._name, self.connection, self.rng = attackers, name, connection, rng
        self.host, self.report, self.own = attackers.host, attackers.report, OWN
        self._leaks = attackers._leaks

    async def ask(self, code: int, ext: dict[str, str], body: bytes = b"", *, name: str = OWN) -> Answer | None:
        """Sends a request signed by the attacker, or by the user `name`."""
        return await self.all.ask_as(name, self._name, self.connection, code, ext, body)

    # --- reads -------------------------------------------------------------------------------------------------------

    async def sends_back(self) -> None:
        """Sends another user's message back (36) to its own group, and reads what that group gets."""
        message = self._leaks.message(self.rng)
        if message is not None:
            fields = {"group": GROUP, "offset": str(message.position), "unitMode": "false"}
            fields |= {"delayLevel": self.rng.choice(("1", "-1")), "originMsgId": "x"}
            if self.rng.random() < 0.3:
                fields["originTopic"] = self.rng.choice((TOPIC, RETRY, message.topic))
            await self.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields)
        for topic in (RETRY, DEAD):
            await self._pull(topic)

    async def _pull(self, topic: str) -> None:
        answer = await self.ask(RequestCode.PULL_MESSAGE, pull_fields(GROUP, topic, 0, self.all._next[topic]))
        if answer is not None and answer.code == ResponseCode.PULL_OFFSET_MOVED:
            self.all._next[topic] = int(answer.ext["nextBeginOffset"])
        elif answer is not None and answer.code == ResponseCode.SUCCESS:
            self.all._next[topic] = max(message.queue_offset + 1 for message in decode_messages(answer.body))

    async def consumes_directly(self) -> None:
        """Asks for another user's message to be sent to its own consumer (309)."""
        message = self._leaks.message(self.rng)
        if message is not None:
            fields = {"consumerGroup": GROUP, "clientId": CLIENT, "brokerName": "broker-a"}
            fields["msgId"] = encode_message_id(message.store_host, message.position)
            # The attacker's own consumer never reports a result.
            code = RequestCode.CONSUME_MESSAGE_DIRECTLY
            self.connection.write(self.frame(code, fields))

    def frame(self, code: int, ext: dict[str, str], body: bytes = b"", *, oneway: bool = False) -> bytes:
        """Returns a request signed by the attacker, whose answer is ignored."""
        return self.frame_on(self.connection, code, ext, body, oneway=oneway)

    def frame_on(
        self, connection: RawConnection, code: int, ext: dict[str, str], body: bytes = b"", *, oneway: bool = False
    ) -> bytes:
        """Returns a signed request, like `frame`, for another connection."""
        signed = Signer(OWN, first_secret(OWN)).signed(ext, body)
        return connection.frame(code, signed, body, oneway=oneway, parked_s=20.0)

    async def looks_up(self) -> None:
        """Looks for somebody else's message by its position (33) and its keys (12)."""
        message = self._leaks.message(self.rng)
        if message is None:
            return
        await self.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(message.position)})
        key = self.rng.choice((unique_key_of(message), encode_message_id(message.store_host, message.position)))
        fields = {"topic": self.rng.choice((TOPIC, RETRY, message.topic)), "key": key or "none", "maxNum": "8"}
        fields |= {"beginTimestamp": "0", "endTimestamp": str(1 << 50)}
        if self.rng.random() < 0.5:
            fields["_UNIQUE_KEY_QUERY"] = "true"
        await self.ask(RequestCode.QUERY_MESSAGE, fields)

    # --- waiting messages --------------------------------------------------------------------------------------------

    async def recalls(self) -> None:
        """Recalls another user's waiting message (370) by a handle that it made itself."""
        found = self._leaks.handle(self.rng, TOPIC)
        if found is not None:
            fields = {"topic": found.topic, "recallHandle": found.encode()}
            await self.ask(RequestCode.RECALL_MESSAGE, fields)

    # --- transactions ------------------------------------------------------------------------------------------------

    async def joins_producers(self) -> None:
        """Claims that its own client is a producer of another user's group (34)."""
        found = self._leaks.client(self.rng, is_producer=True)
        if found is not None:
            body = {"clientID": CLIENT, "producerDataSet": [{"groupName": found.group}, {"groupName": GROUP}]}
            await self.ask(RequestCode.HEART_BEAT, {}, json.dumps(body).encode())

    def answers_check(self, ext: dict[str, str]) -> None:
        """Answers a node's question about a half message (39) with a commit or rollback of that message (37)."""
        fields = {"producerGroup": GROUP, "commitOrRollback": self.rng.choice((COMMIT, ROLLBACK))}
        fields |= {name: ext[name] for name in ("tranStateTableOffset", "commitLogOffset", "msgId") if name in ext}
        self.connection.write(self.frame(RequestCode.END_TRANSACTION, fields, oneway=True))

    async def ends_transactions(self) -> None:
        """Commits or rolls back another user's half message (37), with and without the name of a topic."""
        found = self._leaks.half(self.rng)
        if found is None:
            return
        half, message = found
        properties = parse_properties(message.properties.decode("utf-8", "replace"))
        fields = {
            "producerGroup": properties.get("PGROUP", GROUP),
            "tranStateTableOffset": str(half.position),
            "commitLogOffset": str(half.position),
            "commitOrRollback": self.rng.choice((COMMIT, ROLLBACK)),
            "msgId": unique_key_of(message),
        }
        topic = self.rng.choice((None, TOPIC, properties.get("REAL_TOPIC", TOPIC)))
        await self.ask(RequestCode.END_TRANSACTION, fields if topic is None else fields | {"topic": topic})

    # --- staged writes -----------------------------------------------------------------------------------------------

    async def stages(self) -> None:
        """Stages slices for another user's attempt (700002) as soon as it is opened, and uses its sequences and those
        of the next attempts in plain sends."""
        before = self._leaks.attempt(self.rng)
        attempt = before
        for _ in range(LOOKS):
            if before is None or attempt is None or attempt.number != before.number:
                break
            await asyncio.sleep(LOOK_S)
            attempt = self._leaks.attempt(self.rng)
        if attempt is None:
            return
        for sequence in (1, 2, 3):
            fields = {"attempt": str(attempt.number), "sequence": str(sequence), "topic": TOPIC}
            items = [BatchItem(0, self.host.marked(TOPIC, "theft"), b"")] * self.rng.randint(1, 3)
            frame = self.frame(RequestCode.STAGE_MESSAGES, fields, build_batch(items))
            self.connection.write(frame)
        for number in range(attempt.number, attempt.number + 3):  # the next attempts are not opened yet
            await self._send_named(b"raftmq-w" + number.to_bytes(8, "big"), str(self.rng.choice((1, 2))))

    async def ends_writes(self) -> None:
        """Commits or discards another user's write (700003, 700004)."""
        attempt = self._leaks.attempt(self.rng)
        if attempt is not None:
            fields = {"name": attempt.name, "write": str(attempt.write)}
            if self.rng.random() < 0.5:
                winners = json.dumps([[attempt.number, attempt.count]]).encode()
                await self.ask(RequestCode.COMMIT_WRITE, fields, winners)
            else:
                await self.ask(RequestCode.ABORT_WRITE, fields)

    # --- sessions ----------------------------------------------------------------------------------------------------

    async def takes_sessions(self) -> None:
        """Sends to its own topic in another user's session, with the sequences that its owner uses next."""
        found = self._leaks.session(self.rng)
        if found is not None:
            session, following = found
            for sequence in sorted({1, 2, 3, *range(following, following + 3)}):
                await self._send_named(session, str(sequence))

    async def _send_named(self, session: bytes, sequence: str, low: str = "1") -> None:
        fields = foreign_send(TOPIC, f"taken-{self.rng.random()}", 0)
        fields |= {"raftmqPid": session.hex(), "raftmqSeq": sequence, "raftmqLow": low}
        await self.ask(SEND_CODE, fields, self.host.marked(TOPIC, "taken"))

    async def forgets_sessions(self) -> None:
        """Commits an offset of its own group in another user's session (15): with the sequence of a send that comes
        next, or with a huge one."""
        found = self._leaks.session(self.rng)
        if found is not None:
            session, following = found
            number = HUGE if self.rng.random() < HUGE_SHARE else following + self.rng.randrange(4)
            fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "commitOffset": "0"}
            fields |= {"raftmqPid": session.hex(), "raftmqSeq": str(number)}
            fields["raftmqLow"] = str(number if number == HUGE else 1)
            await self.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)

    # --- clients -----------------------------------------------------------------------------------------------------

    async def unregisters(self) -> None:
        """Unregisters another user's client (35), sometimes after claiming that its own connection is that client's."""
        found = self._leaks.client(self.rng, is_producer=self.rng.random() < 0.7)
        if found is not None:
            if found.is_producer and self.rng.random() < 0.5:
                beat = {"clientID": found.client_id, "producerDataSet": [{"groupName": found.group}]}
                await self.ask(RequestCode.HEART_BEAT, {}, json.dumps(beat).encode())
            fields = {"clientID": found.client_id}
            fields["producerGroup" if found.is_producer else "consumerGroup"] = found.group
            await self.ask(RequestCode.UNREGISTER_CLIENT, fields)

    async def forges_replies(self) -> None:
        """Replies (324, 325) to another user's client. A client that knows a correlation id has read the request and
        may reply, so the id is guessed here."""
        asked = self.all.asked()
        if asked:
            client_id = self.rng.choice(asked)
            guess = self.rng.choice(("", f"question-{self.rng.randrange(1 << 30, 1 << 31)}", client_id))
            properties = {"REPLY_TO_CLIENT": client_id, "CORRELATION_ID": guess, "MSG_TYPE": "reply"}
            text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items() if value)
            fields = send_fields(TOPIC, text)
            self.connection.write(self.frame(RequestCode.SEND_REPLY_MESSAGE_V2, fields, b"forged"))

    async def takes_client_ids(self) -> None:
        """Claims that another user's client id is a consumer of its own group, and a producer of its own group and of
        the client's (34)."""
        found = self._leaks.client(self.rng)
        if found is not None:
            body = json.loads(beat_body(found.client_id, [GROUP], [TOPIC]))
            body["producerDataSet"] = [{"groupName": GROUP}, {"groupName": found.group}]
            await self.ask(RequestCode.HEART_BEAT, {}, json.dumps(body).encode())

    async def takes_locks(self) -> None:
        """Joins a common group under another consumer's client id (34), and unlocks that consumer's queues (42)."""
        group = ORDERED_GROUP
        found = self._leaks.client(self.rng, is_producer=False, of_group=group)
        if found is not None:
            if self.rng.random() < 0.7:
                beat = beat_body(found.client_id, [group], [ORDERED])
                await self.ask(RequestCode.HEART_BEAT, {}, beat, name=NEIGHBOUR)
            queues = [{"topic": ORDERED, "brokerName": "broker-a", "queueId": number} for number in range(4)]
            body = json.dumps({"consumerGroup": group, "clientId": found.client_id, "mqSet": queues}).encode()
            await self.ask(RequestCode.UNLOCK_BATCH_MQ, {}, body, name=NEIGHBOUR)


class AttackKind(NamedTuple):
    """One kind of attack: its name, and the function that carries it out."""

    name: str
    act: Callable[[UserAttack], Awaitable[None]]
    waits_for: str = ""
    """Name of the feature that the product needs to withstand the attack. The attack is left out until the product has
    it; "" if it lacks nothing.
    """
    is_greedy: bool = False
    """True for an attack on what all users share (`greedy_attacks`)."""


ATTACKS: Final = (
    AttackKind("send-back", UserAttack.sends_back),
    AttackKind("consume-directly", UserAttack.consumes_directly),
    AttackKind("look-up", UserAttack.looks_up),
    AttackKind("recall", UserAttack.recalls),
    AttackKind("join-producers", UserAttack.joins_producers),
    AttackKind("end-transactions", UserAttack.ends_transactions),
    AttackKind("stage", UserAttack.stages),
    AttackKind("end-writes", UserAttack.ends_writes),
    AttackKind("take-sessions", UserAttack.takes_sessions),
    AttackKind("forget-sessions", UserAttack.forgets_sessions),
    AttackKind("unregister", UserAttack.unregisters),
    AttackKind("forge-replies", UserAttack.forges_replies),
    AttackKind("take-client-ids", UserAttack.takes_client_ids),
    AttackKind("take-locks", UserAttack.takes_locks),
    AttackKind("many-names", greedy_attacks.names_many, is_greedy=True),
    AttackKind("long-names", greedy_attacks.names_long, is_greedy=True),
    AttackKind("denied", greedy_attacks.is_denied, is_greedy=True),
    AttackKind("ask-and-leave", greedy_attacks.asks_and_leaves, is_greedy=True),
    AttackKind("ask-on-many", greedy_attacks.asks_on_many, is_greedy=True),
)


def attacks_of(names: Sequence[str]) -> tuple[AttackKind, ...]:
    """Returns the attacks with these names; without names, all that the product withstands. Raises KeyError for an
    unknown name."""
    known = {attack.name: attack for attack in ATTACKS}
    return tuple([known[name] for name in names] or [attack for attack in ATTACKS if not attack.waits_for])
