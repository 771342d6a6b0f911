"""Sends: checks a message or a batch, gives it an identity, finds out whether it repeats an earlier send, and queues
it.

Nothing is stored of a refused send, unless the reason of its refusal is UNKNOWN; see docs/guarantees.md. This is the
hot path: it makes no task, no future and no log line per message.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

from cluster.broker.delivery_time import DONE_BYTES, Delays, addressed, half_of, is_half
from cluster.broker.name_rules import AUTO_CREATE_NAMES, FORBIDDEN_TOPICS, PERM_WRITE
from cluster.broker.new_names import check_new_topic
from cluster.broker.refusal import NotTaken, Reason, Refused, no_such_queue, over_limit
from cluster.broker.rights import Party
from cluster.broker.sends.held_sends import HeldSends, LongSessionError, OtherTopic, SessionReads, UnderWay
from cluster.broker.sends.send_request import DecodedSend, Origin, PlainBatches, SendPath, redirected
from cluster.flow.gate import GateRequest
from cluster.replication.acks.ack_levels import LevelError, ack_of
from cluster.replication.message_batch import BatchMessage, Send, TopicSlot, key_hash_of, normal_kind
from cluster.replication.message_head import (
    CACHED_TAG_MAX,
    TAG_MARK,
    UNIQUE_MARK,
    cached_tag_hash,
    property_of,
    tag_hash,
)
from cluster.replication.outcome import Outcome, ProposeResult
from cluster.replication.proposals import Proposals
from cluster.replication.send_identity import (
    ID_SIZE,
    ConnectionSession,
    Identity,
    RetryMemory,
    SessionIds,
    SessionKind,
    content_hash,
    names_in,
)
from cluster.runtime.service_lifecycle import Part
from raftmq_wire.crc import crc32
from raftmq_wire.message_format import PROPERTIES_BYTES_MAX
from raftmq_wire.names import NAME
from raftmq_wire.properties import without
from statemachine.commands import Command
from statemachine.levels import OWNERS_LEVEL
from statemachine.payload import RowKind
from statemachine.topics.topics import CreateTopic

if TYPE_CHECKING:
    from cluster.broker.services import Services
    from cluster.config.config import Config
    from cluster.replication.message_head import DeliverySchedule
    from cluster.replication.pending_requests import StrictName
    from cluster.runtime.clock import Clock
    from statemachine.dedup import UniqueMessage


_BATCH_HEAD = struct.Struct(">iiiii")
_U16 = struct.Struct(">H")


_NEW = GateRequest.NEW  # used twice per send; a global of the module is looked up faster than a member of an Enum
_Origin = TypeVar("_Origin", bound=Origin)


class Sends(Generic[_Origin]):
    """Checks sends and queues them for the log. Used on the leader. Event loop only."""

    def __init__(
        self,
        services: Services,
        clock: Clock,
        proposals: Proposals,
        retries: RetryMemory,
        incarnation: bytes,
        *,
        entropy: Callable[[int], bytes],
        route: Callable[[_Origin], None],
        refuse: Callable[[_Origin, Refused], None],
    ) -> None:
        """`incarnation`: 8 bytes that are different in each run of each node. Keys that are made for messages without a
        key begin with them. `entropy` returns random bytes. `route` handles a send again from the start after it had to
        wait. `refuse` tells its client why nothing was stored."""
        config = services.config
        self._services = services
        self._state = services.state
        self._clock = clock
        self._proposals = proposals
        self._retries = retries
        self._entropy = entropy
        self._route = route
        self._refuse = refuse
        self._held = HeldSends(services.state, proposals)
        self._session_reads = SessionReads(services)
        suffix = f"MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02CLUSTER\x01{config.cluster.name}\x02"
        self.suffix = suffix.encode()
        """The properties that the broker adds to every message."""
        self._waiting: dict[str, list[Callable[[Refused | None], None]]] = {}
        self._key_prefix = incarnation.hex().upper().encode()
        self._keys = 0
        self.reload(config)

    def part(self) -> Part:
        """Returns the hooks through which the node calls this service."""
        return Part(name="sends", reload=self.reload)

    def reload(self, config: Config) -> None:
        """Applies another configuration."""
        self._config, self._limits, self._delays = config, config.limits, Delays(config.timer)
        self._plain_batches = PlainBatches(config.limits, self.suffix)

    # --- entry -------------------------------------------------------------------------------------------------------

    def send(self, origin: _Origin, decoded: DecodedSend, *, oneway: bool) -> None:
        """Queues a message or a batch for the log. `Proposals` reports its outcome later. Raises Refused if the send is
        not allowed, or if this node takes no sends or no more of this client now."""
        path, size, proposals = origin.path, origin.size, self._proposals
        refusing = proposals.refusing
        over = proposals.gate.refusal(path.in_flight, size, origin.user, _NEW)
        # A send that is stored, or may be, is never answered "busy": its client would take that for a failure.
        if (refusing or over is not None) and not self._held_already(origin, decoded):
            if refusing or over is None:
                raise self._refusal(refusing)
            raise over_limit(proposals.gate, over)
        topic, queue_id, asked = decoded.topic, decoded.queue_id, decoded.properties
        if topic[:1] == "%":
            topic, queue_id, asked = redirected(decoded, self._state.groups, origin.version)
        slot = proposals.topics.slot(topic)
        # The topic is missing, or is being changed. The send is checked against the topic as it will be.
        if slot is None:
            self._wait_for_topic(origin, topic, decoded)
            return
        # The send is checked here, before it is proposed, because applying an entry never rejects a row.
        if not slot.perm & PERM_WRITE or topic in FORBIDDEN_TOPICS:
            raise self._not_writable(slot)
        if queue_id < 0 < slot.queues:
            queue_id = slot.next_queue % slot.write_queues
            slot.next_queue = queue_id + 1
        elif not 0 <= queue_id < slot.queues:
            raise NotTaken(Reason.INVALID, no_such_queue(queue_id, topic, slot.queues))
        schedule, kind = None, normal_kind(topic) if topic[0] == "%" else 0
        if "DELAY" in asked or "TIMER_D" in asked or "TRAN_MSG" in asked:
            if decoded.is_batch:
                self._check_at_once(topic, asked.encode(), "a batch")
            else:
                asked, schedule, kind = self._waiting_kind(asked, topic, queue_id, kind, origin.user)
        self._submit(origin, decoded, oneway, slot, queue_id, asked, kind, schedule)

    def _submit(
        self,
        origin: _Origin,
        decoded: DecodedSend,
        oneway: bool,
        slot: TopicSlot,
        queue_id: int,
        asked: str,
        kind: int,
        schedule: DeliverySchedule | None,
    ) -> None:
        """Checks a message for the given queue, gives it an identity, and queues it unless it repeats an earlier send.
        `asked`: the message's properties, without those that the broker adds. `kind`: the RowKind of its row. Raises
        Refused if the message or its identity is malformed or too long."""
        path, size, proposals, body = origin.path, origin.size, self._proposals, origin.body
        if decoded.is_batch:
            properties, unique_key, tag, batch = b"", "", 0, self.split_batch(slot, body, origin.user)
        else:
            later = DONE_BYTES if schedule is not None and schedule.names_due else 0
            properties, key, tag = self._check_message(len(body), asked.encode(), later)
            unique_key, batch = key.decode("utf-8", "replace"), ()
        try:
            ack = ack_of(properties or asked.encode(), slot.ack)
        except LevelError as error:
            raise Refused(Reason.MESSAGE_ILLEGAL, str(error)) from None
        # No client repeats a oneway send, because no answer to it could be lost. An identity would only cost a row.
        if slot.dedup == "off" or (oneway and not decoded.producer_id):
            producer_id, sequence, low = _NO_IDENTITY
        else:
            producer_id, sequence, low = self._identify(origin, slot.name, decoded, unique_key)
        send = Send(
            path,
            size,
            origin,
            oneway,
            slot,
            queue_id,
            decoded.message_flag,
            decoded.sys_flag & ~0x3C,
            decoded.born_ms,
            path.born_host,
            decoded.reconsume_times or 0,
            body,
            properties,
            tag,
            unique_key,
            kind,
            producer_id,
            sequence,
            low,
            batch,
            proposals.now_ms,
            ack,
            schedule=schedule,
            user=origin.user,
            issued=bool(producer_id) and not (decoded.producer_id or path.forwarded),
        )
        hashes: list[int] = []
        if slot.dedup == "strict":
            hashes = [_batch_hash(batch)] if batch else self._unique_hashes(send)
            send.content = hashes[0]
        if (hashes and self._known_unique(send, hashes)) or (producer_id and self._known(origin, send, decoded)):
            return
        # The first send may still fail. If this one were answered now, it would be lost with the first; if it were
        # stored now, there might be two messages.
        if hashes and (first := proposals.strict_inflight(send, hashes)) is not None:
            self._wait_for_first(origin, send, first)
            return
        send.hold = proposals.gate.hold(path.in_flight, size, origin.user, _NEW)
        proposals.submit_send(send)

    def when_confirmed(self, origin: _Origin, again: Callable[[], None]) -> None:
        """Calls `again` once a majority confirms that this node leads. If this node was deposed, passes the send on to
        the new leader. If no majority confirms it, refuses the send (UNAVAILABLE)."""
        release = self._hold(origin)

        def confirmed(ok: bool) -> None:
            if not release():
                return
            if ok and self._proposals.open:
                again()
            # This node was deposed while it asked. Only the new leader knows whether it has this send.
            elif not self._proposals.open:
                self._route(origin)
            else:
                remark = "no majority confirms what this node knows of the topic; nothing was stored, try again"
                self._refuse(origin, Refused(Reason.UNAVAILABLE, remark))

        self._services.read_index(confirmed)

    def _hold(self, origin: _Origin) -> Callable[[], bool]:
        """Counts a waiting send against the limits. Returns a function that ends this. The function returns True if the
        client is still connected. If it returns False, nothing was stored, and no answer is sent."""
        path = origin.path
        hold = self._proposals.gate.hold(path.in_flight, origin.size, origin.user, GateRequest.WAITING)

        def release() -> bool:
            hold.ended()
            return not path.closed

        return release

    # --- checks ------------------------------------------------------------------------------------------------------

    def _held_already(self, origin: _Origin, decoded: DecodedSend) -> bool:
        """Returns True if this send was stored or proposed before, so that it must not be answered "busy". Raises
        Refused (UNKNOWN) if that must first be looked up."""
        names, sequence = self._names(origin, decoded), decoded.sequence
        if not decoded.producer_id and origin.identity is not None:
            names, sequence = SessionIds(origin.identity.producer_id), origin.identity.sequence
        # A send without a session cannot be a repetition, nor can one whose sequence is above all known ones of its
        # session.
        if not names.own or sequence > self._held.highest(names):
            return False
        topic = decoded.topic
        if topic[:1] == "%":
            topic = redirected(decoded, self._state.groups, origin.version).topic
        config = self._state.topics.get(topic)
        try:
            found = self._held.find(names, sequence, -1 if config is None else config.id)
        # It is not known yet whether this send was stored, and neither may be guessed: the answer is UNKNOWN.
        except LongSessionError as unread:  # there is no memory to hold the send until its session is read
            self._session_reads.read(unread.session, lambda _: None)
            raise Refused(Reason.UNKNOWN, "it is being looked up whether this send was stored before") from None
        return found is not None and not isinstance(found, OtherTopic)

    def _check_message(self, body_size: int, properties: bytes, later: int = 0) -> tuple[bytes, bytes, int]:
        """Returns the properties as they will be stored, the UNIQ_KEY and the tag's hash. `later`: the number of bytes
        that are added to the properties when the entry is built. Raises Refused (response code 13) if the body or the
        properties are too long."""
        if body_size > self._limits.message_bytes_max:
            raise Refused(
                Reason.MESSAGE_ILLEGAL,
                f"the message body has {body_size} bytes, limits.message_bytes_max = {self._limits.message_bytes_max}",
            )
        if properties and properties[-1] != 2:
            properties += b"\x02"
        # The property is the handle of a popped message. A message that its consumer sends on is another message.
        if b"POP_CK\x01" in properties:
            properties = without(properties, b"POP_CK\x01")
        unique_key = property_of(properties, UNIQUE_MARK)
        if not unique_key:
            self._keys += 1  # this is `new_key` inlined, because it runs for every message
            unique_key = b"%b%016X" % (self._key_prefix, self._keys)
            properties = b"%bUNIQ_KEY\x01%b\x02" % (properties, unique_key)
        stored = properties + self.suffix
        if len(stored) + later > self._limits.properties_bytes_max:
            raise Refused(
                Reason.MESSAGE_ILLEGAL,
                f"the properties have {len(stored) + later} bytes with those the broker adds, "
                f"limits.properties_bytes_max = {self._limits.properties_bytes_max}",
            )
        tag = property_of(properties, TAG_MARK)
        if not tag:
            return stored, unique_key, 0
        return stored, unique_key, cached_tag_hash(tag) if len(tag) <= CACHED_TAG_MAX else tag_hash(tag)

    def _check_at_once(self, topic: str, properties: bytes, what: str) -> None:
        """Raises Refused (response code 13) if a batch, or a message of one, is not to be delivered at once. RocketMQ
        refuses it too (CommitLog.asyncPutMessages). `what`: the batch or message, for the error."""
        if is_half(topic, properties):
            raise Refused(Reason.MESSAGE_ILLEGAL, f"{what} with TRAN_MSG: a half message is not sent in a batch")
        if self._delays.of(properties, self._services.log_time_ms()):
            raise Refused(Reason.MESSAGE_ILLEGAL, f"{what} cannot be delivered later: it has DELAY or TIMER_*")

    def new_key(self) -> bytes:
        """Returns a new UNIQ_KEY for a message that comes without one."""
        self._keys += 1
        return b"%b%016X" % (self._key_prefix, self._keys)

    def split_batch(self, slot: TopicSlot, body: bytes, user: int) -> tuple[BatchMessage, ...]:
        """Returns the messages in the body of a user's batch request (code 320). Raises Refused (response code 13) if
        the body is malformed, empty or too long, if one of the messages is not allowed, or for a %RETRY% topic."""
        if slot.name.startswith("%RETRY%"):
            raise Refused(Reason.MESSAGE_ILLEGAL, "batch sends to a retry topic are not allowed")
        if len(body) > self._limits.message_bytes_max:
            remark = f"the batch has {len(body)} bytes, limits.message_bytes_max = {self._limits.message_bytes_max}"
            raise Refused(Reason.MESSAGE_ILLEGAL, remark)
        strict = slot.dedup == "strict"
        plain = None if strict else self._plain_batches.split(body)
        if plain is not None:
            return plain
        messages: list[BatchMessage] = []
        at, end = 0, len(body)
        try:
            while at < end:
                size, _magic, _crc, flag, body_len = _BATCH_HEAD.unpack_from(body, at)
                body_at = at + 20
                props_at = body_at + body_len
                (props_len,) = _U16.unpack_from(body, props_at)
                stop = props_at + 2 + props_len
                if body_len < 0 or stop > end or size != stop - at:
                    remark = f"message {len(messages)} of the batch is truncated or longer than its length field"
                    raise Refused(Reason.MESSAGE_ILLEGAL, remark)
                asked = body[props_at + 2 : stop]
                if b"DELAY" in asked or b"TIMER_D" in asked or b"TRAN_MSG" in asked:
                    self._check_at_once(slot.name, asked, "a message of a batch")
                properties, key, tag = self._check_message(body_len, asked)
                content = body[body_at:props_at]
                key_hash = self._unique_hash(user, key.decode("utf-8", "replace"), content) if strict else 0
                messages.append(BatchMessage(flag, content, properties, tag, key_hash, key))
                at = stop
                if len(messages) > self._limits.batch_messages_max:
                    limit = self._limits.batch_messages_max
                    remark = f"the batch has more messages than limits.batch_messages_max = {limit}"
                    raise Refused(Reason.MESSAGE_ILLEGAL, remark)
        except (struct.error, UnicodeDecodeError) as error:
            raise Refused(Reason.MESSAGE_ILLEGAL, f"the batch body is malformed: {error}") from error
        if not messages:
            raise Refused(Reason.MESSAGE_ILLEGAL, "the batch is empty")
        return tuple(messages)

    # --- messages that are delivered later ---------------------------------------------------------------------------

    def _waiting_kind(
        self, asked: str, topic: str, queue_id: int, kind: int, user: int
    ) -> tuple[str, DeliverySchedule | None, int]:
        """Returns (properties as stored, schedule of the message, kind of its row). The schedule is None, and the kind
        is `kind`, if the message does not wait for its delivery. `user`: the id of the user who sends it. Raises
        Refused (response code 13) if the properties that ask for a delay or a half message are not allowed."""
        properties = asked.encode()
        if is_half(topic, properties):
            half = half_of(properties, topic, queue_id, self._config.transaction.timeout_ms, PROPERTIES_BYTES_MAX)
            owner = user if self._state.level >= OWNERS_LEVEL else 0
            return half.properties.decode(), half.schedule.owned_by(owner), RowKind.HALF
        delayed = self._delays.of(properties, self._services.log_time_ms())
        if delayed is None:
            return asked, None, kind
        addressed_to = addressed(delayed, topic, queue_id, PROPERTIES_BYTES_MAX)
        return addressed_to.decode(), delayed.schedule, RowKind.SCHEDULED

    def _refusal(self, why: str) -> Refused:
        """Returns the refusal of a send while this node accepts none, for the reason `why`."""
        if self._proposals.topics.drain.is_closed:  # after code 14 (UNAVAILABLE), a client would ask this node again
            return NotTaken(Reason.NO_PERMISSION, why)
        return Refused(Reason.UNAVAILABLE, why)

    def _not_writable(self, slot: TopicSlot) -> Refused:
        if slot.perm & PERM_WRITE:
            return Refused(Reason.NO_PERMISSION, f"the topic[{slot.name}] is conflict with system topic.")
        if not self._proposals.topics.drain.takes(slot.name):
            return NotTaken(Reason.NO_PERMISSION, self._proposals.topics.drain.remark(slot.name))
        return NotTaken(Reason.NO_PERMISSION, f"topic {slot.name} does not accept writes (perm {slot.perm})")

    # --- topics that do not exist ------------------------------------------------------------------------------------

    def _wait_for_topic(self, origin: _Origin, topic: str, decoded: DecodedSend) -> None:
        """Creates the topic, or waits for a change of it. The send is handled again when the change is applied. Raises
        Refused if the send may not create the topic."""
        waiting = self._waiting.get(topic)
        commands: list[Command] | None = None
        if waiting is None:
            commands = []
            if not self._proposals.topics.changing(topic):
                new = CreateTopic(self._new_topic(topic, decoded), if_absent=True)
                party = Party(origin.user, origin.path.in_flight.address)
                check_new_topic(self._proposals.flow.creations, topic, party)
                commands.append(new)
            waiting = self._waiting[topic] = []
        release = self._hold(origin)

        def settle(refused: Refused | None) -> None:
            if not release():
                return
            if refused is not None:
                self._refuse(origin, refused)
            else:
                self._route(origin)

        # One change serves all sends that wait for the topic. Otherwise each send would propose its own.
        waiting.append(settle)
        if commands is not None:
            # Sends that find a change in progress wait behind it, with an entry that has no commands.
            self._proposals.submit_commands(commands, lambda result: self._topic_ready(topic, result))

    def _topic_ready(self, topic: str, result: ProposeResult) -> None:
        refused = None
        if result.outcome is not Outcome.OK:
            # Even if the outcome of the topic's change is unknown, the send itself was never proposed.
            refused = Refused(Reason.UNAVAILABLE, f"topic {topic} could not be created: {result.remark}")
        elif result.results and not result.results[0].ok:
            refused = Refused(Reason.INVALID, f"topic {topic}: {result.results[0].code}")
        for settle in self._waiting.pop(topic, ()):
            settle(refused)

    def _new_topic(self, topic: str, decoded: DecodedSend) -> dict[str, object]:
        """Returns the configuration of a topic that its first send creates, as RocketMQ's TopicConfigManager does.
        Raises Refused if the name is not allowed, or if sends may not create this topic."""
        special = topic.startswith(("%RETRY%", "%DLQ%"))
        length_max = 255 if special else self._limits.topic_length_max
        if not topic or len(topic) > length_max:
            remark = f"the topic has {len(topic)} characters, allowed are 1 to {length_max} (limits.topic_length_max)"
            raise Refused(Reason.INVALID, remark)
        if not NAME.fullmatch(topic):
            remark = f"the topic {topic!r} has characters outside ^[%|a-zA-Z0-9_-]+$"
            raise Refused(Reason.INVALID, remark)
        if topic in FORBIDDEN_TOPICS:
            raise Refused(Reason.NO_PERMISSION, f"the topic[{topic}] is conflict with system topic.")
        if special:
            queues = 1
        elif self._proposals.topics.drain.drains:
            raise NotTaken(Reason.NO_PERMISSION, self._proposals.topics.drain.remark())
        elif self._config.topics.auto_create and topic not in AUTO_CREATE_NAMES:
            queues = max(1, min(decoded.default_queues, self._config.topics.default_queues))
        else:
            allowed = str(self._config.topics.auto_create).lower()
            remark = f"topic[{topic}] not exist, create it first (topics.auto_create = {allowed})"
            raise NotTaken(Reason.NO_TOPIC, remark)
        return {"name": topic, "read_queues": queues, "write_queues": queues, "perm": 6}

    # --- identity ----------------------------------------------------------------------------------------------------

    def name_held(self, origin: _Origin, decoded: DecodedSend) -> Identity | None:
        """Returns the identity under which this node passes a client's send to one leader after another. None if the
        client has given the send an identity."""
        if decoded.producer_id:
            return None
        unique_key = "" if decoded.is_batch else _unique_key(decoded)
        return Identity(*self._identify(origin, decoded.topic, decoded, unique_key))

    def remember_held(self, origin: _Origin, decoded: DecodedSend, identity: Identity) -> None:
        """Remembers the identity of a send that was passed on and got no final answer."""
        if decoded.producer_id or decoded.is_batch or origin.path.forwarded:
            return
        now_ms = self._clock.monotonic_ms()
        self._retries.remember(origin.user, decoded.topic, _unique_key(decoded), origin.body, identity, now_ms)

    def _names(self, origin: _Origin, decoded: DecodedSend) -> SessionIds:
        """Returns the ids of the session that the client has named. `own` is empty if the client named none, or if the
        name is malformed."""
        return names_in(SessionKind.SEND, origin.user, decoded.producer_id, self._state.level)

    def _identify(
        self, origin: _Origin, topic: str, decoded: DecodedSend, unique_key: str
    ) -> Identity | tuple[bytes, int, int]:
        """Returns the send's Identity, or its fields. It is the first that exists of: the one in the session that the
        client has named; the one given by the node that holds the connection; that of the send that this one repeats; a
        new one in the session of the connection. Raises Refused (INVALID) if the client has given a malformed one."""
        if decoded.producer_id:
            names = self._names(origin, decoded)
            if not names.own or decoded.sequence < 1:
                raise Refused(Reason.INVALID, "raftmqPid is 32 hex digits, raftmqSeq at least 1")
            return names.own, decoded.sequence, decoded.low_sequence
        if origin.identity is not None:
            return origin.identity
        if unique_key and self._retries.count:
            now_ms = self._clock.monotonic_ms()
            # Both key and body must match. Clients use one key for several messages, and a different message must not
            # be taken for a repetition.
            claimed = self._retries.claim(origin.user, topic, unique_key, origin.body, now_ms)
            if claimed is not None:
                return claimed
        return self.session_of(origin.path).issue()

    def session_of(self, path: SendPath) -> ConnectionSession:
        """Returns the producer session of the connection, which begins with the connection's first send. Its id is
        random and secret: a client that knew the id could use up sequences of later sends of the session."""
        session = path.session
        if session is None:
            session = path.session = ConnectionSession(self._entropy(ID_SIZE))
        return session

    def _known(self, origin: _Origin, send: Send, decoded: DecodedSend) -> bool:
        """Returns True if nothing more is to be done for the send now. This is so if the log or this node's proposals
        already hold it: it is or will be answered like the first one. It is also so if the session must be read first:
        the send is handled again afterwards."""
        producer_id, sequence = send.producer_id, send.sequence
        proposals = self._proposals
        highest = proposals.session_max.get(producer_id)
        # The sequence is new in the usual case. This check then costs one look-up in a dictionary, and none in the
        # state.
        if highest is not None and sequence > highest:
            proposals.session_max[producer_id] = sequence
            return False
        names = self._names(origin, decoded) if decoded.producer_id else SessionIds(producer_id)
        self._services.catch_up()  # a send that was answered before it is applied is found in the state alone
        highest = self._held.highest(names)
        # This is recorded before the search, which may wait for a read. Another send that comes meanwhile with this
        # sequence then counts as a repetition.
        proposals.session_max[producer_id] = max(highest, sequence)
        if sequence > highest:
            return False
        try:
            found = self._held.find(names, sequence, send.slot.topic_id)
        except LongSessionError as unread:
            self._wait_for_session(origin, send, unread.session)
            return True
        if found is None:
            return False
        if isinstance(found, OtherTopic):  # two messages cannot have the same identity
            send.producer_id, send.sequence, send.low_sequence = _NO_IDENTITY
            send.issued = False
            return False
        # The first send is applied, so a majority has it. Its answer is still true and can be given again.
        if not isinstance(found, UnderWay):
            proposals.early.answer_stored(send, *found)
            return True
        # The log will decide one message, and both requests are told of that one.
        send.producer_id, send.content = found.session, found.first.content  # the identity under which it is proposed
        gate, holder = proposals.gate, send.connection.in_flight
        room = gate.refusal(holder, send.size, send.user, GateRequest.REPEATED) is None
        send.hold = gate.hold(holder, send.size, send.user, GateRequest.REPEATED)
        if isinstance(found.place, Send):
            proposals.repeats.replace_queued(found.place, send, room=room)
        else:
            proposals.repeats.share(*found.place, send, room=room)
        return True

    # --- dedup=strict ------------------------------------------------------------------------------------------------

    def _unique_hash(self, user: int, unique_key: str, body: bytes) -> int:
        """Returns the hash by which a message of a topic with dedup=strict is recognised: that of its user, key and
        body; below OWNERS_LEVEL, of its key alone."""
        apart = self._state.level >= OWNERS_LEVEL
        return content_hash(user, unique_key, body) if apart else key_hash_of(unique_key)

    def _unique_hashes(self, send: Send) -> list[int]:
        """Returns the hashes under which a message with this key and body may have been recorded: first that of its own
        row, then those from before its sender had a user, and from below OWNERS_LEVEL."""
        key, body = send.unique_key, send.body
        hashes = [self._unique_hash(send.user, key, body)]
        if self._state.level >= OWNERS_LEVEL:
            hashes += [content_hash(0, key, body), key_hash_of(key)] if send.user else [key_hash_of(key)]
        return hashes

    def _known_unique(self, send: Send, hashes: list[int]) -> bool:
        """Handles a send to a topic with dedup=strict. A second message of a user with the same key and body counts as
        a repetition of the first. A batch counts as one if all its messages are repetitions and their first copies lie
        side by side."""
        if send.batch:
            return self._known_batch(send)
        body_crc = crc32(send.body)
        for each in hashes:
            row = self._state.unique(send.slot.topic_id, each, body_crc)
            if row is not None:
                self._proposals.early.answer_stored(send, row.topic_id, row.queue_id, row.queue_offset, row.position)
                return True
        return False

    def _known_batch(self, send: Send) -> bool:
        rows: list[UniqueMessage] = []
        for message in send.batch:
            row = self._state.unique(send.slot.topic_id, message.key_hash, crc32(message.body))
            if row is None:
                return False
            rows.append(row)
        topic_id, queue_id, offset, position, _ = rows[0]
        there = self._state.fetch(topic_id, queue_id, offset, len(rows))
        if [item.position for item in there] != [row.position for row in rows]:
            # The answer gives only the first offset, so it is right only if all messages lie side by side.
            return False  # they do not, or some are gone
        self._proposals.early.answer_stored(send, topic_id, queue_id, offset, position)
        return True

    def _wait_for_session(self, origin: _Origin, send: Send, session: bytes) -> None:
        """Reads the session, for a send that may repeat one of very many sequences of its producer. The send is then
        handled again."""
        release = self._hold(origin)
        self._keep_identity(origin, send)

        def again(done: bool) -> None:
            if not release():
                return
            if done:
                self._route(origin)
            else:
                remark = "what this node stored of its producer cannot be read"
                self._refuse(origin, Refused(Reason.UNKNOWN, remark))

        self._session_reads.read(session, again)

    @staticmethod
    def _keep_identity(origin: _Origin, send: Send) -> None:
        """Keeps the identity that this node has given to the send, for when it is handled again."""
        if send.issued:
            origin.identity = Identity(send.producer_id, send.sequence, send.low_sequence)

    def _wait_for_first(self, origin: _Origin, send: Send, first: StrictName) -> None:
        """Makes a send to a topic with dedup=strict wait while the same message is in flight. The send is handled again
        once the outcome of the first is known."""
        release = self._hold(origin)
        self._keep_identity(origin, send)

        def again(decided: bool) -> None:
            if not release():
                return
            if decided:
                self._route(origin)
            else:
                self._refuse(origin, Refused(Reason.UNKNOWN, "a send with the same key and body is undecided"))

        self._proposals.wait_for_strict(first, again)


_NO_IDENTITY = Identity(b"", 0, 0)


def _batch_hash(batch: tuple[BatchMessage, ...]) -> int:
    """Returns the hash by which a batch in a topic with dedup=strict is recognised while it is in flight."""
    return content_hash(0, "", b"".join([message.key_hash.to_bytes(8, "big") for message in batch]))


def _unique_key(decoded: DecodedSend) -> str:
    return property_of(decoded.properties.encode(), UNIQUE_MARK).decode("utf-8", "replace")
