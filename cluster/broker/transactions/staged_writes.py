"""Handles staged writes on the leader: opens attempts, stores the messages that clients stage for them, and commits or
aborts writes (docs/adr/0068).

Every request here may be repeated, also at two leaders one after the other. A slice of messages is identified by its
attempt and a sequence number, as a send is by its producer, and a repeated commit is answered as such. A slice is
answered as stored only if the stored one has the same topic and messages. Attempts are numbers that anybody can guess,
so a client that stages messages also needs the right to the name of the attempt's write.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Hashable, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from cluster.broker.name_rules import FORBIDDEN_TOPICS, PERM_WRITE, STAGED_TOPIC
from cluster.broker.refusal import Reason, Refused, no_such_queue, not_written, over_limit
from cluster.broker.rights import PUB, group_need
from cluster.flow.gate import GateRequest
from cluster.replication.acks.ack_levels import Ack
from cluster.replication.message_batch import Send
from cluster.replication.message_head import DeliverySchedule, topic_field
from cluster.replication.outcome import Outcome, ProposeResult
from cluster.replication.send_identity import SLICES, SessionIds, SessionKind, names_of, slice_hash
from cluster.runtime.figures.service_metrics import ServiceMetrics
from statemachine.access.users import NOBODY
from statemachine.delivery.prepared_writes import ABORTED, DecideWrite, EndPrepared, PreparedState, PreparedWrite
from statemachine.delivery.staged_writes import (
    ATTEMPTS_MAX,
    COMMITTED,
    FULL,
    PREPARED,
    Attempt,
    AttemptState,
    CommitWrite,
    DiscardAttempts,
    OpenAttempt,
)
from statemachine.levels import OWNERS_LEVEL
from statemachine.payload import RowKind

if TYPE_CHECKING:
    from cluster.broker.rights import Party, Rights
    from cluster.broker.sends.send_request import SendPath
    from cluster.broker.services import Services
    from cluster.replication.message_batch import BatchMessage, TopicSlot
    from cluster.replication.proposals import Proposals
    from cluster.runtime.turns.work import WorkSteps
    from raftlog.types import EntryId
    from statemachine.commands import CommandResult
    from statemachine.delivery.staged_writes import StagedWrites


_FIELD = topic_field(STAGED_TOPIC)
DISCARDED_MAX = 1_024
"""The most attempts that one command discards."""
USER_ATTEMPTS_MAX = ATTEMPTS_MAX // 2
"""The most open attempts of one user, counting those that this leader has opened."""
LOOKED_AT = 4
"""The number of a user's attempts that are checked each time when the user opens one, so that ended attempts do not
count for long."""


class StagedSlice(NamedTuple):
    """Messages of an attempt for one queue."""

    attempt: int
    sequence: int
    """The number of the slice, beginning with 1; each attempt stages its slices one after the other."""
    topic: str
    queue_id: int
    """The queue; -1 if the broker chooses one."""
    born_ms: int
    body: bytes
    """The messages in the form of a batch request."""


class CommitAnswer(NamedTuple):
    """The answer that the write is committed."""

    write: int
    """The number of the newest committed write of this name."""
    earlier: bool
    """True if the write was committed before, so that nothing changed."""


class Aborted(NamedTuple):
    """The answer that a write was aborted, or with `dry_run` would be."""

    attempts: int
    """The number of attempts that were discarded."""
    messages: int
    """The number of messages that these attempts had staged."""
    entry: EntryId
    """The last entry that discarded an attempt; if none did, the last applied entry."""


def discard_attempts(
    services: Services,
    name: str,
    write: int,
    done: Callable[[Aborted | Refused], None],
    *,
    owner: Hashable,
    dry_run: bool = False,
) -> None:
    """Discards all open attempts at the write, or with `dry_run` only counts them. `owner`: the owner of the work among
    the turns of the event loop. Leader only.

    If this group of brokers has prepared the write for a commit in several groups, the first group is asked to abort
    it. Calls `done` when all commands are decided: with an Aborted if all were applied, with a Refused otherwise. The
    reason is UNKNOWN if some attempts were discarded, ILLEGAL if the first group has committed the write.
    """
    services.turns.begin(owner, _abort(services, name, write, done, dry_run))


def _abort(
    services: Services, name: str, write: int, done: Callable[[Aborted | Refused], None], dry_run: bool
) -> WorkSteps:
    """Asks the first group to abort each prepared part of the write, and proposes a command for each page of open
    attempts. Calls `done` as `discard_attempts` describes it."""
    waiting, attempts, messages = 1, 0, 0
    refused: Refused | None = None
    entry = services.state.applied

    def ended() -> None:
        nonlocal waiting
        waiting -= 1
        if waiting:
            return
        if refused is not None and attempts:
            done(Refused(Reason.UNKNOWN, f"{attempts} attempts were discarded, and not all: {refused.remark}"))
        else:
            done(refused or Aborted(attempts, messages, entry))

    def discarded(result: ProposeResult) -> None:
        nonlocal attempts, entry, refused
        if result.outcome is Outcome.OK:
            attempts += int(result.results[-1].value)
            entry = result.entry_id or entry
        else:
            refused = refused or no_result(result)
        ended()

    def aborted(prepared: PreparedWrite, result: ProposeResult) -> None:
        nonlocal waiting, refused
        if result.outcome is not Outcome.OK:
            refused = refused or no_result(result)
        elif result.results[-1].value == ABORTED:
            waiting += 1
            services.propose(
                [EndPrepared(prepared.decider, False, services.log_time_ms())], partial(ended_here, prepared)
            )
        else:
            remark = f"write {write} of {name!r} is committed, as the first group of brokers has decided"
            refused = refused or Refused(Reason.ILLEGAL, remark)
        ended()

    def ended_here(prepared: PreparedWrite, result: ProposeResult) -> None:
        nonlocal attempts, entry, refused
        if result.outcome is Outcome.OK:
            attempts += prepared.attempts
            entry = result.entry_id or entry
        else:
            refused = refused or no_result(result)
        ended()

    for prepared in list(services.state.prepared_writes.prepared.values()):
        if (prepared.name, prepared.write, prepared.state) == (name, write, PreparedState.UNDECIDED):
            messages += prepared.messages
            if dry_run:
                attempts += prepared.attempts
            else:
                waiting += 1
                group = services.config.cluster.group
                ask = DecideWrite(name, write, prepared.decider, group, abort=True)
                services.propose([ask], partial(aborted, prepared))
            yield
    after: int | None = 0
    while after is not None:
        found, after = services.state.writes.open_of(name, write, after, DISCARDED_MAX)
        messages += sum([attempt.left for attempt in found])
        if dry_run:
            attempts += len(found)
        elif found:
            waiting += 1
            services.propose([DiscardAttempts([attempt.number for attempt in found])], discarded)
        yield
    ended()


class _Places:
    """Limits the open attempts of each user, counting those that were opened at this leader. All users share
    ATTEMPTS_MAX attempts: without this limit, a user that opens attempts and stages nothing could keep other users from
    writing until the attempts expire."""

    def __init__(self, writes: StagedWrites, user_attempts_max: int) -> None:
        self._writes, self._user_attempts_max = writes, user_attempts_max
        self._of: dict[int, OrderedDict[int, None]] = {}
        """User -> the numbers of its attempts; those that were checked longest ago come first."""
        self._asked: Counter[int] = Counter()
        """User -> the number of its attempts that are being opened."""

    def begin(self, user: int) -> None:
        """Takes a place for an attempt that is being opened. Raises Refused (BUSY) if the user has no place left.
        Clients without a proven user are not limited."""
        if user != NOBODY and (taken := self._asked[user] + len(self._look(user))) >= self._user_attempts_max:
            remark = f"{taken} attempts of this user are there, of {ATTEMPTS_MAX} in all: see raftmq writes list"
            raise Refused(Reason.BUSY, remark)
        self._asked[user] += 1

    def end(self, user: int, attempt: int | None) -> None:
        """Records the number of the attempt that was opened; None if it could not be opened."""
        self._asked[user] -= 1
        if not self._asked[user]:
            del self._asked[user]
        if attempt is not None and user != NOBODY:
            self._of.setdefault(user, OrderedDict())[attempt] = None

    def _look(self, user: int) -> Collection[int]:
        """Returns the user's attempts. Each call checks a few of them and removes those that have ended."""
        mine = self._of.get(user, OrderedDict[int, None]())
        for number in list(islice(mine, LOOKED_AT)):
            del mine[number]
            if self._writes.get(number) is not None:
                mine[number] = None
        if not mine:
            self._of.pop(user, None)
        return mine


class StagedWriteRequests:
    """Handles the requests of staged writes. Leader only; callers forward requests to the leader."""

    def __init__(
        self,
        services: Services,
        proposals: Proposals,
        split: Callable[[TopicSlot, bytes, int], tuple[BatchMessage, ...]],
        rights: Rights,
        user_attempts_max: int = USER_ATTEMPTS_MAX,
    ) -> None:
        """`split(topic, body, user)` returns the messages of a batch request, with the properties that the broker adds.
        It raises Refused if the batch is not allowed. `user_attempts_max`: the most attempts that one user may have
        open."""
        self._services = services
        self._proposals = proposals
        self._split = split
        self._rights = rights
        self._places = _Places(services.state.writes, user_attempts_max)

    def abort(self, name: str, write: int, done: Callable[[Aborted | Refused], None]) -> None:
        """Discards all open attempts at the write; see `discard_attempts`."""
        discard_attempts(self._services, name, write, done, owner=self)

    def open(self, party: Party, name: str, write: int, done: Callable[[int | CommitAnswer | Refused], None]) -> None:
        """Opens a new attempt at the write. Calls `done` with the attempt's number, with the CommitAnswer if the write
        is committed, or with a Refused. Raises Refused (BUSY) if the party's user has no place for a further
        attempt."""
        self._places.begin(party.user)

        def opened(result: ProposeResult) -> None:
            is_open = result.outcome is Outcome.OK and result.results[-1].ok
            self._places.end(party.user, int(result.results[-1].value) if is_open else None)
            answer = told_at_once(result, done)
            if answer is None:
                return
            if answer.code == FULL:
                done(Refused(Reason.BUSY, f"{answer.value} attempts are there already: see raftmq writes list"))
            else:
                done(Refused(Reason.INVALID, str(answer.value)))

        try:
            self._services.propose([OpenAttempt(name, write, self._services.log_time_ms())], opened)
        except BaseException:
            self._places.end(party.user, None)
            raise

    def stage(self, path: SendPath, party: Party, asked: StagedSlice, done: Callable[[Refused | None], None]) -> None:
        """Stores messages of an attempt, for a party that may commit the attempt's write. Calls `done` with None, or
        with the reason why they were not stored. Raises Refused if the messages, the topic or the attempt do not allow
        this, or if there is no room for them now. A party without the right gets the same refusal as if the attempt did
        not exist."""
        proposals = self._proposals
        size = len(asked.body)
        if proposals.refusing:
            raise Refused(Reason.UNAVAILABLE, proposals.refusing)
        over = proposals.gate.refusal(path.in_flight, size, party.user, GateRequest.NEW)
        if over is not None:
            raise over_limit(proposals.gate, over)
        attempt = self._open_attempt(party, asked.attempt)
        slot = self._slot(asked.topic)
        queue_id = asked.queue_id
        if queue_id < 0 < slot.queues:
            queue_id = slot.next_queue % slot.write_queues
            slot.next_queue = queue_id + 1
        elif not 0 <= queue_id < slot.queues:
            raise Refused(Reason.INVALID, no_such_queue(queue_id, asked.topic, slot.queues))
        state = self._services.state
        content = slice_hash(asked.body) if state.level >= OWNERS_LEVEL else 0
        brought = SLICES + asked.attempt.to_bytes(8, "big")
        names = names_of(SessionKind.SLICE, party.user, brought, state.level)
        if self._is_stored(names, asked, slot.topic_id, content):
            done(None)
            return

        def told(outcome: Outcome) -> None:
            done(None if outcome is Outcome.OK else not_written(outcome, "", fail="it was not stored"))

        send = Send(
            connection=path,
            size=size,
            origin=None,
            oneway=True,
            slot=slot,
            queue_id=queue_id,
            flag=0,
            sys_flag=0,
            born_ms=asked.born_ms,
            born_host=path.born_host,
            reconsume_times=0,
            body=b"",
            properties=b"",
            tag_hash=0,
            unique_key="",
            kind=RowKind.SCHEDULED,
            producer_id=names.own,
            sequence=asked.sequence,
            low_sequence=asked.sequence,
            batch=self._split(slot, asked.body, party.user),
            received_ms=proposals.now_ms,
            ack=Ack.QUORUM_FSYNC,
            schedule=DeliverySchedule(_FIELD, 0, due_ms=attempt.due_ms),
            done=told,
            user=party.user,
            content=content,
        )
        proposals.session_max[names.own] = max(asked.sequence, proposals.session_max.get(names.own, 0))
        send.hold = proposals.gate.hold(path.in_flight, size, party.user, GateRequest.NEW)
        proposals.submit_send(send)

    def commit(
        self, name: str, write: int, winners: Sequence[tuple[int, int]], done: Callable[[CommitAnswer | Refused], None]
    ) -> None:
        """Commits the write with the attempts `winners`, each given as (number, number of its messages). Calls `done`
        with the CommitAnswer. Calls it with a Refused if an attempt does not exist or is incomplete, if a prepared
        write of the name waits for its decision, or if the command was lost or is undecided."""

        command = CommitWrite(name, write, self._services.log_time_ms(), winners)
        self._services.propose([command], lambda result: done(commit_answer(name, write, result)))

    # -- checks

    def _open_attempt(self, party: Party, number: int) -> Attempt:
        attempt = self._services.state.writes.get(number)
        if attempt is not None:
            needs = [group_need(attempt.name, PUB)]
            if not self._rights.allows(party, needs, "messages for an attempt at a staged write"):
                attempt = None
        if attempt is None or attempt.state is not AttemptState.OPEN:
            raise Refused(Reason.ILLEGAL, f"attempt {number} is not open (any more): it was committed or discarded")
        return attempt

    def _slot(self, topic: str) -> TopicSlot:
        slot = self._proposals.topics.slot(topic)
        if slot is None:
            if self._proposals.topics.changing(topic):
                raise Refused(Reason.UNAVAILABLE, f"topic {topic} is being changed")
            raise Refused(Reason.NO_TOPIC, f"topic[{topic}] not exist, create it first")
        if not slot.perm & PERM_WRITE or topic in FORBIDDEN_TOPICS or topic[:1] == "%":
            raise Refused(Reason.NO_PERMISSION, f"topic {topic} does not accept writes of this kind")
        return slot

    def _is_stored(self, names: SessionIds, asked: StagedSlice, topic_id: int, content: int) -> bool:
        """Returns True if the log has the slice. Raises Refused while that is undecided, and if the log has another
        slice under its number: an answer that this one is stored would lose its messages."""
        state, proposals, sequence = self._services.state, self._proposals, asked.sequence
        for name in names:
            session = state.session(name) if name else None
            highest = proposals.session_max.get(name, 0 if session is None else session.max_sequence)
            if not name or sequence > highest:
                continue
            found = None if session is None else session.find(sequence)
            if found is not None:
                stored_topic, _, stored_content, _ = found
                # Below OWNERS_LEVEL the row has 0 in place of the hash.
                if stored_topic == topic_id and stored_content in (content, 0):
                    return True
                remark = (
                    f"slice {sequence} of attempt {asked.attempt} is stored with other messages; open a new attempt"
                )
                raise Refused(Reason.ILLEGAL, remark)
            if session is not None and name is not names.unowned and session.forgotten(sequence):
                raise Refused(Reason.INVALID, f"slice {sequence} is below {session.low_sequence}, which came later")
            if proposals.repeats.find(name, sequence) is not None:
                raise Refused(Reason.BUSY, "the same slice is on its way into the log: ask again")
        return False


def commit_answer(name: str, write: int, result: ProposeResult) -> CommitAnswer | Refused:
    """Returns the answer to a commit of the write, in one or several groups of brokers, from the result of its
    command."""
    if result.outcome is not Outcome.OK:
        return no_result(result)
    answer = result.results[-1]
    if answer.ok:
        return CommitAnswer(write, earlier=False)
    if answer.code == COMMITTED:
        return CommitAnswer(int(answer.value), earlier=True)
    if answer.code == PREPARED:
        remark = f"write {answer.value} of {name!r} is prepared and waits for its decision"
        return Refused(Reason.BUSY, f"{remark}: see raftmq writes list")
    return Refused(Reason.ILLEGAL, f"write {write} of {name!r} is not committed: {answer.value}")


def no_result(result: ProposeResult) -> Refused:
    """Returns the refusal for commands that have no results, because they failed or their outcome is unknown."""
    if result.unacceptable:
        return Refused(Reason.INVALID, result.remark)
    return not_written(result.outcome, result.remark)


def told_at_once(result: ProposeResult, done: Callable[[int | CommitAnswer | Refused], None]) -> CommandResult | None:
    """Calls `done` for the outcomes that opening an attempt and preparing a write have in common: no result, a number,
    or a committed write. Returns None then. Returns any other result, which the caller must handle."""
    if result.outcome is not Outcome.OK:
        done(no_result(result))
        return None
    answer: CommandResult = result.results[-1]
    if answer.ok:
        done(int(answer.value))
        return None
    if answer.code == COMMITTED:
        done(CommitAnswer(int(answer.value), earlier=True))
        return None
    return answer


class StagedMetrics(ServiceMetrics):
    """Gauges of staged writes, updated before a scrape."""

    def __init__(self, writes: StagedWrites) -> None:
        super().__init__()
        self._writes = writes
        gauge = self.gauge
        self._messages = gauge("raftmq_staged_messages", "Messages staged for a write, not copied yet")
        self._bytes = gauge("raftmq_staged_bytes", "Stored bytes of staged messages")

    def look(self) -> None:
        """Sets the gauges from the present state."""
        self._messages.set(self._writes.left)
        self._bytes.set(self._writes.left_bytes)
