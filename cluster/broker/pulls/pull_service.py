"""Answers pulls. Any node answers from its own applied state, at once or when messages come.

Two rules protect consumers. A message is never sent unless its bytes match the CRC that apply recorded. The answer
MOVED makes a client overwrite its offset, so it is never given from state that may lag. For an offset beyond the end, a
follower answers that there is no message yet, and the leader first confirms the end with a ReadIndex round.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cluster.broker.evicted.evicted_pulls import EvictedMessages, EvictedPulls
from cluster.broker.filters.known_filters import KnownFilters, Unknown
from cluster.broker.filters.subscription import Expression
from cluster.broker.groups.consumer_group import BROADCASTING
from cluster.broker.groups.group_members import Members
from cluster.broker.groups.offset_resets import OffsetResets
from cluster.broker.groups.queue_locks import other_holder
from cluster.broker.name_rules import PERM_READ, check_counted, no_topic
from cluster.broker.pulls.filter_search import SEARCH_BOUNDS, SearchBounds
from cluster.broker.pulls.filtered_pulls import FilteredPulls
from cluster.broker.pulls.long_poll import Answers, LongPolls, wish_of
from cluster.broker.pulls.paced_pulls import PacedPulls
from cluster.broker.reads.log_reads import is_here
from cluster.broker.reads.pull_values import ForMany, Pull, PullAnswer, Puller, PullOutcome, PullRequest, pull_of
from cluster.broker.reads.row_scan import NOTHING, SCAN_BOUNDS, Found, RecentBlocks, ScanBounds, choose, read
from cluster.broker.reads.tier_read_policy import ReadLevels
from cluster.broker.refusal import Reason, Refused
from cluster.broker.services import Services, begin_steps, node_told
from cluster.config.local_layout import node_object
from cluster.flow.quota_rules import QuotaRules
from cluster.replication.follower_reads import LEADER, FollowerReads
from cluster.runtime.turns.work import WorkSteps
from raftlog.work import charge
from raftmq_wire.denial import disabled_group, unreadable_topic
from statemachine.queue_reads import QueueItem

if TYPE_CHECKING:
    from statemachine.consuming.groups import GroupConfig
    from statemachine.consuming.offset_resets import OffsetReset
    from statemachine.topics.topics import TopicConfig

logger = logging.getLogger(__name__)

PULL_UNITS = 20
"""The units of work (`raftlog.work`) of answering a pull, in addition to what it reads."""
ANSWER_UNITS = 15
"""The units of work of making the answer to a woken pull, in addition to what it reads. Pulls with an equal Wish get
the same answer and cost less."""
TOPIC_TRIES, TOPIC_RETRY_MS = 20, 50
"""The number of tries, and the milliseconds between them, while a follower waits for a topic that it has not seen
yet."""
TRIM_RETRY_MS = 20
"""Milliseconds that a pull waits until the new bounds of a queue that was just trimmed are published."""
REPAIR_TRIES, REPAIR_RETRY_MS = 10, 200
"""The number of tries, and the milliseconds between them, while a pull's first message is being repaired. After the
last try the client must ask again."""


class Pulls:
    """Answers pulls, and attempts parked ones again when they are woken. Event loop only."""

    def __init__(
        self,
        services: Services,
        members: Members,
        resets: OffsetResets,
        reads: FollowerReads | None = None,
        evicted: EvictedMessages | None = None,
        levels: ReadLevels | None = None,
        rules: QuotaRules | None = None,
        *,
        search: SearchBounds = SEARCH_BOUNDS,
        scan: ScanBounds = SCAN_BOUNDS,
    ) -> None:
        """`reads`: decides which node a consumer should ask next, and how stale this node may be; with None consumers
        are sent to the leader, and answers have no labels about staleness. `evicted`: access to evicted messages; None
        if this node has no tier. `levels`: decides which messages are read from the tier although this node still has
        them; None without a tier. `rules`: the quotas, which also list what was refused for the node's findings; with
        None, the constructor makes a QuotaRules."""
        self._services = services
        self._access = services.state.access
        self._members = members
        self._resets = resets
        self._reads = reads
        self._old = EvictedPulls(services, evicted, levels)
        self._has_tier = levels is not None
        self._rows = RecentBlocks(services.state)
        self.filters = KnownFilters(services)
        self._filtered = FilteredPulls(
            services,
            self._rows,
            settle=self._settle,
            conclude=self._conclude,
            hold=self._hold,
            fail=self._fail,
            search=search,
            scan=scan,
        )
        self.long_polls = LongPolls(services, self._attempt, self.reply_nothing)
        rules = rules or QuotaRules(services.state.quotas, services.state.access)
        self.paced = PacedPulls(services, rules, self.long_polls.go_on)

    # --- a pull comes in ---

    def pull(self, puller: Puller, asked: PullRequest, tries: int = 0, *, waited: bool = False) -> None:
        """Answers a consumer's pull, now or later. `tries`: the number of times that the pull has waited for its topic.
        `waited`: True if it has waited for its filter, or for a turn of the loop with time left."""
        charge(PULL_UNITS)
        if not waited and self._services.turns.spent():
            if self._commit_at_once(puller, asked, tries):
                begin_steps(self._services.turns, puller.client, self._later(puller, asked, tries))
            return
        try:
            pull = self._accept(puller, asked, tries, waited=waited)
        except Refused as refused:
            puller.refused(refused)
        else:
            if pull is not None:
                self._settle(pull)

    def _later(self, puller: Puller, asked: PullRequest, tries: int) -> WorkSteps:
        """Answers the pull in a later turn of the loop, because many came in this one."""
        if not puller.client.closed:
            self.pull(puller, asked, tries, waited=True)
        yield from ()

    def _accept(self, puller: Puller, asked: PullRequest, tries: int, *, waited: bool) -> Pull | None:
        """Checks a request, commits its offset, and returns the Pull. Returns None if the pull must first wait for its
        topic or its filter; it is then handled again. Raises Refused if the topic or queue does not exist, if the topic
        or group may not be read, or if the pull's filter or subscription is not accepted."""
        topic = self._services.state.topics.get(asked.topic)
        if topic is None:
            self._wait_for_topic(puller, asked, tries)
            return None
        group = self._services.state.groups.get(asked.group)
        _check_readable(asked, topic, group)
        if group is not None and group.refuses_broadcasts:
            self._check_model(asked)
        if asked.counted_in is not None and not self._counts_here(puller, asked, topic, tries):
            return None
        expression = self._expression(asked, group)
        wanted = None if expression is None else self.filters.get(*expression)
        # A pull that is handled again does not commit again: later commits of its connection may have arrived
        # meanwhile.
        if asked.commit_offset >= 0 and not tries and not waited:
            self._commit(puller, asked, topic)
        if isinstance(wanted, Unknown):
            begin_steps(self._services.turns, puller.client, self._learn(expression, puller, asked, tries))
            return None
        return pull_of(puller, asked, topic, wanted)

    def _check_model(self, asked: PullRequest) -> None:
        """Raises Refused if the group's consumers are broadcasting, for a group that does not allow that. As in
        RocketMQ, a pull that brings its own subscription is not checked."""
        found = self._members.consumers.get(asked.group)
        if asked.expression is None and found is not None and found.message_model == BROADCASTING:
            remark = (
                f"the consumer group[{asked.group}] can not consume by broadcast way (consumeBroadcastEnable=false)"
            )
            raise Refused(Reason.NO_PERMISSION, remark)

    def _counts_here(self, puller: Puller, asked: PullRequest, topic: TopicConfig, tries: int) -> bool:
        """Returns True if the pull's offset counts in this topic. Returns False if this follower may not have applied
        the topic's creation yet: the pull is handled again soon, as for a topic that does not exist yet. Raises Refused
        if the topic in which the offset counts was deleted."""
        try:
            check_counted(self._services, topic, asked.counted_in, asked.offset)
        except Refused as refused:
            if refused.reason is not Reason.UNAVAILABLE or self._services.writes_open() or tries == TOPIC_TRIES:
                raise
            self._again_soon(puller, asked, tries)
            return False
        return True

    def _again_soon(self, puller: Puller, asked: PullRequest, tries: int) -> None:
        if not puller.client.closed:
            self._services.call_later(TOPIC_RETRY_MS, lambda: self.pull(puller, asked, tries + 1))

    def _commit_at_once(self, puller: Puller, asked: PullRequest, tries: int) -> bool:
        """Commits the offset of a pull that has to wait for its turn, before it waits: its connection may commit newer
        offsets meanwhile. Returns False if the pull was refused."""
        topic = self._services.state.topics.get(asked.topic)
        if asked.commit_offset >= 0 and not tries and topic is not None:
            try:
                _check_readable(asked, topic, self._services.state.groups.get(asked.group))
                check_counted(self._services, topic, asked.counted_in, asked.offset)
                self._commit(puller, asked, topic)
            except Refused as refused:
                puller.refused(refused)
                return False
        return True

    def _wait_for_topic(self, puller: Puller, asked: PullRequest, tries: int) -> None:
        """Handles the pull again soon if this is a follower, because only the leader knows that a topic does not exist.
        On the leader, or after the last try, raises Refused (NO_TOPIC)."""
        if self._services.writes_open() or tries == TOPIC_TRIES:
            raise no_topic(asked.topic)
        self._again_soon(puller, asked, tries)

    def _learn(self, expression: Expression | None, puller: Puller, asked: PullRequest, tries: int) -> WorkSteps:
        assert expression is not None
        yield from self.filters.learn(*expression)
        if not puller.client.closed:
            self.pull(puller, asked, tries, waited=True)

    def _expression(self, asked: PullRequest, config: GroupConfig | None) -> Expression | None:
        """Returns the selection of messages: that of the request if it has one, else the group's newest subscription.
        None means all messages. Raises Refused: NO_SUBSCRIPTION if there is no subscription, STALE_SUBSCRIPTION if it
        is older than the consumer's and the client does not compare the tags itself.

        It also returns None if the group's subscription is older than the consumer's, and the client itself compares
        the tags. Otherwise the client would be refused for up to half a minute, until its next heartbeat.
        """
        if asked.expression is not None:
            return asked.expression
        group, topic = asked.group, asked.topic
        row = self._members.subscription(group, topic)
        newest = None if row is None else row[1:]
        stored = None if config is None else config.subscriptions.get(topic)
        if stored is not None and (newest is None or stored[2] > newest[2]):
            newest = stored
        if newest is None:
            remark = f"group {group} has no subscription to {topic}; consumers send their subscriptions with heartbeats"
            raise Refused(Reason.NO_SUBSCRIPTION, remark)
        expression_type, sub_string, version = newest
        if version < asked.subscription_version:
            if asked.compares_tags():
                return None
            remark = f"group {group}: the subscription to {topic} known here is older than the request's"
            raise Refused(Reason.STALE_SUBSCRIPTION, remark)
        return Expression(expression_type, sub_string)

    def _commit(self, puller: Puller, asked: PullRequest, topic: TopicConfig) -> None:
        """Commits the offset that the pull carries, if this node leads. A consumer that pulls from another node sends
        its commits in separate requests. The offset is ignored if another member of the group holds the lock of the
        queue."""
        services, members, group = self._services, self._members, asked.group
        client, user = puller.client, puller.user
        if not services.writes_open() or not services.knows_group(group):
            return
        queue = topic.id, asked.queue_id
        if other_holder(services, members, group, queue, user, lambda: members.clients_of(client, group, user)) is None:
            services.commit_offset_later(group, *queue, asked.commit_offset)

    # --- answering: now, or when something comes ---

    def _settle(self, pull: Pull) -> None:
        if not self._attempt(pull):
            self._hold(pull)

    def _hold(self, pull: Pull) -> None:
        """Parks a pull for which there is no message yet. If the pull must not wait, or cannot be parked, answers it
        without messages."""
        if pull.paced and pull.suspend_ms <= 0:
            pull.brief, pull.suspend_ms = True, self._services.config.flow.hold_ms
        if pull.suspend_ms <= 0:
            self.reply_nothing(pull)
            return
        full = self.long_polls.park(pull)
        if full is not None:
            self._reply(pull, PullOutcome.BUSY, full, pull.offset)

    def _attempt(self, pull: Pull) -> bool:
        """Answers the pull. Returns False if there is no message for it yet, or if it must wait for its quota. Never
        raises, because applying entries calls it too."""
        try:
            if self.paced.active and self.paced.holds(pull):
                return False
            if self.long_polls.answers is not None and pull.wanted is None:
                return self._answer_woken(pull, self.long_polls.answers)
            return self._answer(pull)
        except Exception as error:  # noqa: BLE001 - `_fail` logs it, unless the topic was deleted
            self._fail(pull, error)
            return True

    def _fail(self, pull: Pull, error: Exception) -> None:
        if pull.topic_id not in self._services.state.topics_by_id:  # the topic was deleted during the read
            pull.puller.refused(no_topic(pull.topic))
        else:
            logger.error("pull of %s queue %d at %d failed", pull.topic, pull.queue_id, pull.offset, exc_info=error)
            pull.puller.refused(Refused(Reason.ERROR, f"reading {pull.topic} failed: {error}"))

    def _answer_woken(self, pull: Pull, answers: Answers) -> bool:
        """Attempts one of many pulls that are woken together. Pulls with an equal Wish get the answer of the first
        one."""
        answer = answers.get(wish_of(pull))
        if answer is None:
            charge(ANSWER_UNITS)
            return self._answer(pull)
        if pull.puller.room_for(pull.bytes_max, lambda: self._settle(pull)):
            self._give(pull, answer)
        return True

    def _answer(self, pull: Pull) -> bool:
        state = self._services.state
        if self._services.fenced():
            remark = f"{node_told(self._services)} does not serve messages: its rows are wrong; pull from another node"
            self._reply(pull, PullOutcome.BUSY, remark, pull.offset)
            return True
        topic = state.topics_by_id.get(pull.topic_id)
        if topic is None or not topic.perm & PERM_READ:  # the topic may have changed while the pull was parked
            pull.puller.refused(no_topic(pull.topic) if topic is None else _unreadable(topic))
            return True
        group = state.groups.get(pull.group)
        if group is not None and not group.consume_enable:  # the group may have been switched off, too
            pull.puller.refused(_switched_off(pull.group))
            return True
        reset = self._resets.pending(pull.group, (pull.topic_id, pull.queue_id))
        if reset is not None and self._answer_reset(pull, reset):
            return True
        low, high = state.min_offset(pull.topic_id, pull.queue_id), state.max_offset(pull.topic_id, pull.queue_id)
        if pull.offset < low:
            self._answer_old(pull, low)
            return True
        if pull.offset > high:
            return self._ask_beyond(pull)
        if pull.offset >= high:
            return False
        if not pull.puller.room_for(pull.bytes_max, lambda: self._settle(pull)):
            return True
        if self._has_tier and self._old.answer_early(pull, high, self._reply_old, self._settle):
            return True
        if pull.wanted is not None:
            self._filtered.begin(pull)
            return True
        chosen = choose(self._rows, pull, high)
        if chosen.items and pull.puller.elsewhere(chosen.extent[0]):
            return True
        found = read(self._services, chosen) if chosen.items else Found(0, b"", chosen.next_offset)
        return self._conclude(pull, found, (low, high))

    def _conclude(self, pull: Pull, found: Found, bounds: tuple[int, int]) -> bool:
        """Answers the pull with the messages that were found up to the end of its queue. Returns False if it must wait
        for more. `bounds`: the first and the end offset of the queue's messages on this node."""
        if found.unread is not None:
            self._reply_before(pull, found, found.unread)
        elif found.messages:
            self._reply(pull, PullOutcome.FOUND, "FOUND", found.next_offset, found, bounds)
        elif pull.held and found.next_offset == bounds[1]:
            pull.offset = found.next_offset
            return False
        elif found.next_offset == pull.offset and pull.repair_tries < REPAIR_TRIES:
            # A TRIM is being applied on another thread: its rows are gone, and the bounds are published in a moment.
            pull.repair_tries += 1
            self._services.call_later(TRIM_RETRY_MS, lambda: self._settle_if_open(pull))
        else:
            self._reply(pull, PullOutcome.NOT_MATCHED, "NO_MATCHED_MESSAGE", found.next_offset)
        return True

    def _answer_old(self, pull: Pull, low: int) -> None:
        """Answers a pull whose offset is below `low`, the first offset on this node: from the tier, or with MOVED if
        the message was removed."""
        if pull.puller.room_for(pull.bytes_max, lambda: self._settle(pull)) and not self._old.answer(
            pull, low, self._reply_old, self._reply_gone, self._reply_busy
        ):
            self._reply_gone(pull, self._old.first_offset(pull))

    def _reply_gone(self, pull: Pull, first: int) -> None:
        self._reply(pull, PullOutcome.MOVED, "OFFSET_TOO_SMALL", first)

    def _reply_old(self, pull: Pull, found: Found) -> None:
        if found.messages:
            self._reply(pull, PullOutcome.FOUND, "FOUND", found.next_offset, found)
        else:
            self._reply(pull, PullOutcome.NOT_MATCHED, "NO_MATCHED_MESSAGE", found.next_offset)

    def _reply_busy(self, pull: Pull, remark: str) -> None:
        self._reply(pull, PullOutcome.BUSY, remark, pull.offset)

    def _answer_reset(self, pull: Pull, reset: OffsetReset) -> bool:
        """Handles a pull of a queue whose offset was reset. Returns True if the pull is or will be answered. Returns
        False if the consumer already continues from the new offset, so that the pull is answered like any other.

        On other nodes the pull is passed to the leader, because only the leader knows whether another reset, or the end
        of this one, has followed.
        """
        queue = pull.topic_id, pull.queue_id
        if not self._services.writes_open():
            if not pull.puller.to_leader():
                self.reply_nothing(pull)  # the client asks again, with a request that can be passed on
            return True
        if pull.offset == reset.offset:
            self._resets.known(pull.group, queue, reset)
            return False

        def confirmed(ok: bool) -> None:
            if pull.puller.client.closed:
                return
            if not ok:
                self._hold(pull)
            elif self._resets.pending(pull.group, queue) == reset:
                self._reply(pull, PullOutcome.MOVED, "OFFSET_RESET", reset.offset)
            else:
                self._settle(pull)

        self._services.read_index(confirmed)
        return True

    def _ask_beyond(self, pull: Pull) -> bool:
        """Handles a pull whose offset is beyond the queue's end. The leader moves the consumer to the end, once the end
        is confirmed by a majority. Returns False on other nodes: the pull waits."""
        if not self._services.writes_open():
            return False

        def confirmed(ok: bool) -> None:
            if pull.puller.client.closed:
                return
            high = self._services.state.max_offset(pull.topic_id, pull.queue_id)
            if pull.offset <= high:
                self._settle(pull)
            elif ok:
                remark = "OFFSET_OVERFLOW_BADLY" if high else "NO_MESSAGE_IN_QUEUE"
                self._reply(pull, PullOutcome.MOVED, remark, high)
            else:
                self._hold(pull)

        self._services.read_index(confirmed)
        return True

    # --- replies ---

    def _give(self, pull: Pull, answer: PullAnswer) -> None:
        """Sends the answer, unless users or rules have changed since the pull was judged and now deny it. The pull may
        have waited for its topic, for memory, for a filter or for the tier."""
        if pull.judged == self._access.version or self.long_polls.is_allowed(pull):
            if self.paced.active:
                self.paced.took(pull, answer.messages, len(answer.body))
            pull.puller.answered(answer)

    def _reply_before(self, pull: Pull, found: Found, bad: QueueItem) -> None:
        """Answers with the messages that were found before `bad`, which cannot be read intact. If there are none, waits
        for the repair of `bad`, at most REPAIR_TRIES times."""
        here = is_here(self._services, bad.position)
        if here:
            logger.error(
                "message at position %d (%s queue %d offset %d) cannot be read intact on %s",
                bad.position,
                pull.topic,
                pull.queue_id,
                bad.queue_offset,
                node_object(self._services.config.cluster.group, self._services.node_id),
            )
            self._services.report_damage(bad.position, bad.size)
        if found.messages:
            self._reply(pull, PullOutcome.FOUND, "FOUND", bad.queue_offset, found)
        elif found.next_offset > pull.offset:
            self._reply(pull, PullOutcome.NOT_MATCHED, "NO_MATCHED_MESSAGE", bad.queue_offset)
        elif pull.repair_tries < REPAIR_TRIES:
            pull.repair_tries += 1
            self._services.call_later(REPAIR_RETRY_MS, lambda: self._settle_if_open(pull))
        else:
            until = "cannot be read intact" if here else "is not"
            remark = (
                f"the message at offset {bad.queue_offset} (position {bad.position}) {until} on "
                f"{node_told(self._services)} until it is fetched from another node; pull again, or elsewhere"
            )
            self._reply(pull, PullOutcome.BUSY, remark, pull.offset)

    def _settle_if_open(self, pull: Pull) -> None:
        if not pull.puller.client.closed:
            self._settle(pull)

    def reply_nothing(self, pull: Pull) -> None:
        """Answers that no message has come for the pull until now. A pull that waited for its quota although its client
        does not wait for messages is answered BUSY."""
        if pull.paced and pull.brief:  # its client would take NOTHING for the end of the queue
            self._reply(pull, PullOutcome.BUSY, self.paced.remark(pull), pull.offset)
            return
        high = self._services.state.max_offset(pull.topic_id, pull.queue_id)
        remark = "OFFSET_OVERFLOW_ONE" if high else "NO_MESSAGE_IN_QUEUE"
        self._reply(pull, PullOutcome.NOTHING, remark, pull.offset)

    def _reply(
        self,
        pull: Pull,
        outcome: PullOutcome,
        remark: str,
        next_offset: int,
        found: Found = NOTHING,
        bounds: tuple[int, int] | None = None,
    ) -> None:
        """Sends the answer. `bounds`: the first and the end offset of the queue's messages on this node, None if the
        caller has not looked them up."""
        suggested = LEADER
        labels: dict[str, str] = {}
        if self._reads is not None:
            suggested = self._reads.suggest(pull.group, pull.queue_id, found.last_position)
            self._reads.label(labels)
        if bounds is None:
            first, high = self._old.first_offset(pull), self._services.state.max_offset(pull.topic_id, pull.queue_id)
        else:
            first, high = self._old.first_offset(pull, bounds[0]), bounds[1]
        answer = PullAnswer(outcome, remark, next_offset, first, high, suggested, labels, found.body, found.messages)
        if bounds is not None and pull.wanted is None and self.long_polls.answers is not None:
            answer = answer._replace(for_many=ForMany())
            self.long_polls.answers[wish_of(pull)] = answer
        self._give(pull, answer)


def _check_readable(asked: PullRequest, topic: TopicConfig, group: GroupConfig | None) -> None:
    if not topic.perm & PERM_READ:
        raise _unreadable(topic)
    if not 0 <= asked.queue_id < topic.read_queues:
        remark = f"topic {topic.name} has read queues 0 to {topic.read_queues - 1}, not {asked.queue_id}"
        raise Refused(Reason.INVALID, remark)
    if group is not None and not group.consume_enable:
        raise _switched_off(asked.group)


def _unreadable(topic: TopicConfig) -> Refused:
    return Refused(Reason.NO_PERMISSION, unreadable_topic(topic.name, topic.perm))


def _switched_off(group: str) -> Refused:
    return Refused(Reason.NO_PERMISSION, disabled_group(group))
