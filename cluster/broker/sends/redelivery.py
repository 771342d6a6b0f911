"""Handles a message that a consumer sends back because it could not process it. The leader stores a copy for the group,
to be delivered again later, or makes it a dead letter.

The copy is a scheduled message of `%RETRY%group`, with a longer delay at each attempt. Once `reconsumeTimes` has
reached the maximum, it goes to `%DLQ%group` instead. A failure is identified by the group and the position of the
message that failed. Its copy leaves a unique row under that name, so any leader recognises a repeated report of the
same failure: for REPEATED_MS, and as long as the copy waits. Source: RocketMQ's
AbstractSendMessageProcessor.consumerSendMsgBack.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from cluster.broker.delivery_time import DELAY, REAL_QID, REAL_TOPIC, Delayed, Delays, addressed
from cluster.broker.message_copies import SYS_FLAGS_OF_A_COPY
from cluster.broker.name_rules import DEAD_LETTER_PREFIX, PERM_WRITE, RETRY_PREFIX
from cluster.broker.new_names import check_new_group
from cluster.broker.reads.message_lookup import StoredMessage, UnreadableError, message_at, why_none
from cluster.broker.refusal import Reason, Refused, not_written, over_limit, when_confirmed
from cluster.broker.retries import delay_ms_of, own_topic
from cluster.broker.rights import SUB, Party, Rights, topic_need
from cluster.flow.gate import ITSELF, GateRequest
from cluster.replication.internal_sends import submit_own
from cluster.replication.message_batch import TopicSlot
from cluster.replication.message_head import TAG_MARK, UNIQUE_MARK, DeliverySchedule, property_of, tag_hash
from cluster.replication.outcome import Outcome, ProposeResult
from cluster.runtime.service_lifecycle import Part
from raftlog.errors import StorageError
from raftlog.kept_errors import bare
from raftmq_wire.message_format import PROPERTIES_BYTES_MAX, Message, encode_host, encode_message_id
from raftmq_wire.properties import without
from statemachine.commands import Command
from statemachine.consuming.groups import PutGroup
from statemachine.payload import RowKind

if TYPE_CHECKING:
    from cluster.broker.services import Services
    from cluster.config.config import Config
    from cluster.replication.outcome import ReplyTo
    from cluster.replication.proposals import Proposals
    from statemachine.consuming.groups import GroupConfig

TIMES_MAX = (1 << 31) - 1
TRIES, RETRY_MS = 10, 200
"""The number of tries, and the milliseconds between them, while a message is being repaired or a topic is being
changed."""
FIRST_LEVEL = 3
"""The delay level of the first failure. Each further failure is one level higher."""
REPEATED_MS = 60_000
"""Milliseconds of log time within which a second report of a failure counts as a repetition of the first one. A later
report, after the copy was delivered, is a new failure: the group has consumed the message again because its offsets
were reset."""
FAILURE_MARK = 0x36
"""The value in the unique row of a failure that stands where rows of messages have the CRC of the body."""

RETRY_TOPIC, ORIGIN_ID, NO_ORIGIN = b"RETRY_TOPIC\x01", b"ORIGIN_MESSAGE_ID\x01", b"RAFTMQ_NO_ORIGIN\x01"
"""Properties of a copy: the topic of the original message, its id, and the mark that there was no room for both."""
_WHERE = b"MSG_REGION\x01", b"TRACE_ON\x01", b"CLUSTER\x01"
"""Properties that every send gets (`Sends.suffix`). They are left out of a copy that has no room for them."""

CopyDone = Callable[[Refused | None], None]
"""Called once: with None when the copy is stored on a majority or if no copy is needed, or with the reason why no copy
was stored."""


class SentBack(NamedTuple):
    """The report of a consumer that it could not process a message. `maximum`: the most tries; None if the group's
    setting decides."""

    group: str
    position: int
    delay_level: int
    maximum: int | None
    origin_topic: str
    party: Party
    """The user and address that sent the report."""


class _Report(NamedTuple):
    """A report that is being handled."""

    client: ReplyTo
    size: int
    wanted: SentBack
    done: CopyDone


class SendBacks:
    """Handles reports of failed consumption. Leader only; callers forward reports to the leader."""

    def __init__(self, services: Services, proposals: Proposals, rights: Rights) -> None:
        self._services = services
        self._rights = rights
        self._proposals = proposals
        self.reload(services.config)
        self._waiting: dict[tuple[str, int], list[_Report]] = {}
        """(group, position) of a failure whose copy is in flight in this term of leadership -> the reports of it that
        wait."""
        self._undecided: dict[tuple[str, int], int] = {}
        """(group, position) of a failure -> the position in the log below which its copy will lie. These copies are in
        flight, but their reports were already answered with UNKNOWN."""

    def part(self) -> Part:
        """Returns the hooks through which the node calls this service."""
        return Part(name="send backs", opened=self.writes_opened, reload=self.reload)

    def reload(self, config: Config) -> None:
        """Applies the delay levels of a changed configuration."""
        self._delays = Delays(config.timer)

    def writes_opened(self) -> None:
        """Begins a term of leadership, in which no copies are in flight yet."""
        self._waiting, self._undecided = {}, {}

    def send_back(self, client: ReplyTo, size: int, wanted: SentBack, done: CopyDone) -> None:
        """Stores a copy of the message that the consumer sent back, and calls `done` with the result. `size`: the bytes
        of the request, which count against the client's limits."""
        report = _Report(client, size, wanted, done)
        # The message may have been pulled from a node that has applied more of the log than this one.
        when_confirmed(self._services, partial(self._keep, report, TRIES), done)

    def _try(self, report: _Report, tries: int) -> None:
        try:
            self._keep(report, tries)
        except Refused as refused:
            report.done(refused)

    def _keep(self, report: _Report, tries: int) -> None:
        wanted, services = report.wanted, self._services
        if not services.writes_open():
            raise Refused(Reason.UNAVAILABLE, "this node does not lead any more; nothing was stored")
        if self._proposals.refusing:
            raise Refused(Reason.UNAVAILABLE, self._proposals.refusing)
        group = services.state.groups.get(wanted.group)
        if group is None:
            if self._read(report, tries) is not None:  # a report about no message creates no group
                self._make_group(report, tries)
            return
        if not group.retry_queue_nums:  # the group wants no retries: the report is dropped with success, as in RocketMQ
            report.done(None)
            return
        name = (wanted.group, wanted.position)
        if self._repeated(wanted):
            report.done(None)
            return
        if name in self._waiting:
            self._waiting[name].append(report)
            return
        if self._is_undecided(name):
            raise Refused(Reason.UNKNOWN, "a copy for an earlier report of this failure is undecided")
        stored = self._read(report, tries)
        if stored is None:
            return
        dead = is_dead(wanted, group, stored.message)
        topic = (DEAD_LETTER_PREFIX if dead else RETRY_PREFIX) + wanted.group
        slot, config = self._proposals.topics.slot(topic), services.state.topics.get(topic)
        queues = 1 if dead else group.retry_queue_nums
        # The topic may exist without queues in this group of brokers.
        if slot is None or config is None or not config.write_queues:
            self._prepare(report, topic, queues, tries)
            return
        if not slot.perm & PERM_WRITE:
            raise Refused(Reason.NO_PERMISSION, f"topic {topic} does not accept writes (perm {slot.perm})")
        self._propose(report, slot, stored, group, dead=dead)

    def _is_undecided(self, name: tuple[str, int]) -> bool:
        """Returns True if an earlier copy of this failure may still be in flight. Forgets copies whose position is
        applied, because they are decided."""
        undecided = self._undecided
        while undecided:
            oldest = next(iter(undecided))
            if self._proposals.is_undecided(undecided[oldest] - 1):
                break
            del undecided[oldest]
        return name in undecided

    def _repeated(self, wanted: SentBack) -> bool:
        """Returns True if a copy for this failure was stored less than REPEATED_MS ago, or still waits for its
        delivery."""
        state = self._services.state
        for prefix in (RETRY_PREFIX, DEAD_LETTER_PREFIX):
            topic = state.topics.get(prefix + wanted.group)
            row = None if topic is None else state.unique(topic.id, wanted.position, FAILURE_MARK)
            if row is None:
                continue
            recent = self._services.log_time_ms() - row.time_ms < REPEATED_MS
            if recent or state.timers.at(row.position) is not None:
                return True
        return False

    # --- the message -------------------------------------------------------------------------------------------------

    def _read(self, report: _Report, tries: int) -> StoredMessage | None:
        """Returns the message that failed; None if it is being repaired and the report will be handled again. Raises
        Refused, also if the party may not consume the topic of the message's row, because the copy goes to the party's
        group.
        """
        wanted = report.wanted
        where = f"offset {wanted.position}"
        unreadable: UnreadableError | None = None
        try:
            stored = message_at(self._services, wanted.position)
        except UnreadableError as error:
            if isinstance(error.__cause__, StorageError) and tries:
                self._services.call_later(RETRY_MS, lambda: self._try(report, tries - 1))
                return None
            stored, unreadable = None, bare(error)
        if stored is None or not self._may_have(wanted.party, stored, first=tries == TRIES):
            why = why_none(self._services, wanted.position, unreadable)
            raise Refused(Reason.ERROR, f"no message to send back at {where}: {why}")
        message = stored.message
        known_as = {"", message.topic, property_of(message.properties, RETRY_TOPIC).decode("utf-8", "replace")}
        if wanted.origin_topic not in known_as:
            remark = f"the message at {where} is of topic {message.topic}, not {wanted.origin_topic[:255]}"
            raise Refused(Reason.ERROR, remark)
        return stored

    def _may_have(self, party: Party, stored: StoredMessage, *, first: bool) -> bool:
        """Returns True if the party may consume the message. A denial is noted on the first of several tries only."""
        needs = [topic_need(stored.topic, SUB)]
        rights = self._rights
        return rights.allows(party, needs, "sending back a message") if first else rights.is_allowed(party, needs)

    def _make_group(self, report: _Report, tries: int) -> None:
        """Creates the group, and handles the report again. RocketMQ creates a group when it is first named, because a
        consumer's first heartbeat may be 30 s away."""
        name = report.wanted.group
        if not tries:
            raise Refused(Reason.NO_GROUP, f"consumer group {name} does not exist")
        check_new_group(self._proposals.flow.creations, name, report.wanted.party)

        def made(result: ProposeResult) -> None:
            if result.outcome is not Outcome.OK:
                remark = f"group {name} could not be made; nothing was stored: {result.remark}"
                report.done(Refused(Reason.UNAVAILABLE, remark))
            elif not result.results[-1].ok:
                report.done(Refused(Reason.NO_GROUP, f"group {name} could not be made: {result.results[-1].value}"))
            else:
                self._try(report, tries - 1)

        self._proposals.submit_commands([PutGroup({"name": name}, if_absent=True)], made)

    def _prepare(self, report: _Report, topic: str, queues: int, tries: int) -> None:
        """Creates the group's retry or dead-letter topic, or waits for a change of it. Then handles the report
        again."""
        if not tries:
            raise Refused(Reason.UNAVAILABLE, f"topic {topic} is being changed; nothing was stored")
        run: list[Command] = []
        if not self._proposals.topics.changing(topic):
            run = own_topic(self._services.state, topic, queues)

        def made(result: ProposeResult) -> None:
            if result.outcome is not Outcome.OK:
                remark = f"topic {topic} could not be created; nothing was stored: {result.remark}"
                report.done(Refused(Reason.UNAVAILABLE, remark))
            elif result.results and not result.results[-1].ok:
                report.done(Refused(Reason.ERROR, f"topic {topic}: {result.results[-1].value}"))
            else:
                self._try(report, tries - 1)

        self._proposals.submit_commands(run, made)

    # --- the copy ----------------------------------------------------------------------------------------------------

    def _propose(
        self, report: _Report, slot: TopicSlot, stored: StoredMessage, group: GroupConfig, *, dead: bool
    ) -> None:
        client, wanted, message = report.client, report.wanted, stored.message
        size = report.size + len(stored.data)
        gate = self._proposals.gate
        over = gate.refusal(client.in_flight, size, ITSELF, GateRequest.OWN)
        if over is not None:
            raise over_limit(gate, over)
        properties = copied_properties(message)
        # The topic has more queues than the group's setting if the setting was lowered, or if an administrator changed
        # the topic.
        queue_id = slot.next_queue % (slot.write_queues if dead else min(slot.write_queues, group.retry_queue_nums))
        slot.next_queue = queue_id + 1
        schedule = None
        if not dead:
            schedule = self._schedule(wanted, group, message.reconsume_times)
            properties = _addressed(Delayed(schedule, properties), slot.name, queue_id)
        name = (wanted.group, wanted.position)
        self._waiting[name] = [report]
        submit_own(
            self._proposals,
            client,
            size,
            slot,
            queue_id,
            RowKind.DEAD_LETTER if dead else RowKind.SCHEDULED,
            partial(self._settled, self._waiting, name),
            flag=message.flag,
            sys_flag=message.sys_flag & SYS_FLAGS_OF_A_COPY,
            born_ms=message.born_ms,
            born_host=encode_host(message.born_host),
            reconsume_times=min(message.reconsume_times + 1, TIMES_MAX),
            body=message.body,
            properties=properties,
            tag_hash=tag_hash(property_of(properties, TAG_MARK)),
            unique_key=property_of(properties, UNIQUE_MARK).decode("utf-8", "replace"),
            schedule=schedule,
            failure=(wanted.position, FAILURE_MARK),
        )

    def _schedule(self, wanted: SentBack, group: GroupConfig, failures: int) -> DeliverySchedule:
        """Returns the delivery schedule of the copy: by the level that the consumer asks for, else by the group's
        policy, else by a level that rises with each failure."""
        delay_ms = None if wanted.delay_level else delay_ms_of(group, failures)
        if delay_ms is not None:
            return self._delays.after(delay_ms)
        return self._delays.of_level(wanted.delay_level or FIRST_LEVEL + failures)

    def _settled(self, waiting: dict[tuple[str, int], list[_Report]], name: tuple[str, int], outcome: Outcome) -> None:
        """Answers all reports of this failure that wait."""
        fail, unknown = (
            "the log did not take the copy; nothing was stored",
            "the copy is undecided; it may still be stored",
        )
        refused = None if outcome is Outcome.OK else not_written(outcome, "", fail=fail, unknown=unknown)
        if outcome is Outcome.UNKNOWN and waiting is self._waiting:
            self._undecided[name] = self._proposals.end_position
        for report in waiting.pop(name, ()):
            report.done(refused)


def is_dead(wanted: SentBack, group: GroupConfig, message: Message) -> bool:
    """Returns True if the message becomes a dead letter: it has failed as often as allowed, or the consumer asks for
    this with a negative delay level."""
    maximum = group.retry_max_times if wanted.maximum is None else wanted.maximum
    return wanted.delay_level < 0 or message.reconsume_times >= maximum


def copied_properties(message: Message) -> bytes:
    """Returns the properties of the copy: those of the message, and its origin, which is the topic and id of the first
    message in a chain of copies.

    If the message is itself a copy, it already names its origin. Without room for the origin, the copy gets the
    property RAFTMQ_NO_ORIGIN, and if possible the topic, because clients choose their listeners by it.
    """
    kept = without(message.properties, DELAY)  # the delay of a plain message would delay the copy, too
    if not message.topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)):
        kept = without(kept, RETRY_TOPIC, ORIGIN_ID, NO_ORIGIN)
    elif property_of(kept, NO_ORIGIN):
        return kept  # an origin that is added here would name the copy itself
    topic = _unless_there(kept, RETRY_TOPIC, message.topic)
    whole = topic + _unless_there(kept, ORIGIN_ID, encode_message_id(message.store_host, message.position))
    lean, mark = without(kept, *_WHERE), NO_ORIGIN + b"true\x02"
    wishes = (kept + whole, lean + whole, lean + mark + topic, lean + mark)
    return next((choice for choice in wishes if len(choice) <= PROPERTIES_BYTES_MAX), kept)


def _unless_there(properties: bytes, mark: bytes, value: str) -> bytes:
    return b"" if property_of(properties, mark) else mark + value.encode() + b"\x02"


def _addressed(delayed: Delayed, topic: str, queue_id: int) -> bytes:
    """Returns the properties of the copy, with its topic and queue added as REAL_TOPIC and REAL_QID if there is room.
    Only people read these two."""
    delayed = delayed._replace(properties=without(delayed.properties, REAL_TOPIC, REAL_QID))
    try:
        return addressed(delayed, topic, queue_id, PROPERTIES_BYTES_MAX)
    except Refused:
        return delayed.properties
