"""The first group's end: its leader gives rows of the truth to the leaders of other groups, completes the journal in
slices, and forgets rows of ends that every group has copied.

A change is answered once the groups that are in contact have copied it, so that a client can use what it just made, and
cannot use what it just deleted, at a node of any group. A group for which one has waited for COPIED_MS is not waited
for until it has copied all."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from cluster.peer.wire import INDEX_MAX
from cluster.replication.outcome import Outcome, ProposeResult
from cluster.runtime.logs import Seldom
from cluster.runtime.peer_frames import Kind
from cluster.runtime.service_lifecycle import Part
from cluster.truth.truth_frames import NEWS, TruthAnswer, TruthQuestion, answer_frame, read_question
from raftlog.types import FIRST_GROUP
from raftlog.work import charge
from statemachine.cluster_wide.truth_journal import ForgetEnds
from statemachine.levels import DRAINS_LEVEL, GATHERS_LEVEL, GROUPS_LEVEL, QUOTAS_LEVEL
from statemachine.truth import JournalNames, TruthPage

if TYPE_CHECKING:
    from cluster.replication.outcome import CommitSession, Done
    from statemachine.broker_state import BrokerState
    from statemachine.commands import Command

logger = logging.getLogger(__name__)

FORGET_EVERY_MS: Final = 10_000
COPIED_MS: Final = 1_000
"""Milliseconds after its last question for which a group is in contact, and for which a change waits for it at most: a
copy is less old than that."""
RETIRED_COPIES_MS: Final = 3_600_000
"""Milliseconds of log time for which rows of ends are kept for a group that has retired: the copy of its own row comes
after them. Nobody waits for its nodes after that: they may be gone."""
_BYTES_PER_UNIT: Final = 16
"""Bytes of rows that are read and packed in a microsecond (a unit of `raftlog.work`)."""


class TruthLink(Protocol):
    """A connection to a node of another group (`cluster.peer.group_links.GroupLink`)."""

    @property
    def group(self) -> int:
        """The number of that node's group."""

    def send(self, kind: Kind, header: list[Any], payload: bytes = b"") -> bool:
        """Sends a frame. Returns False if it is lost."""


class TruthReads(Protocol):
    """The part of the node's services that is used here."""

    def writes_open(self) -> bool:
        """Returns True if this node leads and has applied the no-op of its term."""

    def read_index(self, done: Callable[[bool], None]) -> None:
        """Calls `done(True)` when the applied state of this node, the leader, answers linearizably."""

    def monotonic_ms(self) -> int:
        """Returns the milliseconds of the node's monotonic clock."""


class Submit(Protocol):
    """Proposes commands (`cluster.replication.proposals.Proposals.submit_commands`)."""

    def __call__(
        self, commands: list[Command], done: Done, session: CommitSession | None = None, author: str = ""
    ) -> None:
        """Calls `done` with their results."""


class _Uncopied(NamedTuple):
    """A change that is made, and not copied everywhere."""

    version: int
    done: Done
    result: ProposeResult
    deadline_ms: int


class TruthSource:
    """Serves the truth to other groups, on the leader of the first group. Event loop only."""

    def __init__(
        self, state: BrokerState, reads: TruthReads, submit: Submit, slice_names: int, deadline_ms: int = 2 * COPIED_MS
    ) -> None:
        """`submit` proposes commands (`cluster.replication.proposals.Proposals.submit_commands`). `slice_names`: the
        names that one entry gives a row in the journal (`Environment.sweep_rows`). `deadline_ms`: the time for which a
        caller waits for a change."""
        self._state, self._reads, self._submit, self._slice_names = state, reads, submit, slice_names
        self._wait_ms = min(COPIED_MS, deadline_ms // 2)
        self._asking: dict[TruthLink, TruthQuestion] = {}
        """The question of each connection that waits for the confirmation of this leader. A connection has one."""
        self._copied: dict[int, int] = {}
        """Group -> the version that it has at least, as a leader of it told this node; it only rises."""
        self._heard: dict[TruthLink, int] = {}
        """Connection of another group -> when it asked last, monotonic milliseconds."""
        self._uncopied: list[_Uncopied] = []
        self._slow: set[int] = set()
        """Groups that have not copied a change within COPIED_MS."""
        self._is_slicing = False
        self._forgotten_ms = 0
        self._told = Seldom(logger)

    def part(self) -> Part:
        """Returns the hooks through which the node calls this service."""
        return Part(name="truth source", tick=self.tick, role=lambda raw: self._lose_leadership())

    def on_question(self, link: TruthLink, header: list[Any], payload: bytes) -> None:
        """Answers a question for the truth, once this node is sure to lead. Raises WireError."""
        question = read_question(header)
        waits = link in self._asking
        self._asking[link] = question
        if not self._reads.writes_open():
            self._answer(link, ok=False)
        elif not waits:
            self._reads.read_index(lambda ok: self._answer(link, ok=ok))

    def _answer(self, link: TruthLink, *, ok: bool) -> None:
        question = self._asking.pop(link, None)
        if question is None:
            return
        page = None
        if ok and self._reads.writes_open() and self._can_follow(link.group, question):
            self._note_copied(link, question.version)
            page = self._state.truth.after(question.version)
        header, rows = answer_frame(TruthAnswer(question.number, page))
        charge(1 + len(rows) // _BYTES_PER_UNIT)
        link.send(Kind.TRUTH_REPLY, header, rows)

    def _can_follow(self, group: int, question: TruthQuestion) -> bool:
        """Returns False if no page can follow the version that a group has: ends that it has not copied are forgotten,
        as after a restore of that group, or it has more than there is, as after one of the first group. Nor does one
        if one of both groups has a level at which there is no truth to copy, or not all of its rows."""
        journal, version = self._state.truth_journal, question.version
        low = min(question.level, self._state.level)
        all_active = all(row.is_active for row in self._state.broker_groups.by_number.values())
        needed = GROUPS_LEVEL if all_active else DRAINS_LEVEL
        if self._state.quotas.by_subject or self._state.learnt.has_rows:
            needed = QUOTAS_LEVEL
        if self._state.topics_gathered:
            needed = GATHERS_LEVEL
        lowest = journal.followed_from(group)
        if low >= needed and (version == 0 or lowest <= version <= journal.version):
            return True
        why = (
            f"it has version {version}, and versions from {lowest} to {journal.version} can be followed"
            if low >= needed
            else f"it has level {question.level}, group {FIRST_GROUP} {self._state.level}, and both need {needed}"
        )
        self._told.warn(f"group {group} cannot copy the truth", why, self._reads.monotonic_ms() / 1000)
        return False

    def _note_copied(self, link: TruthLink, version: int) -> None:
        group = link.group
        if link not in self._heard:
            self._forget_silent()
        self._heard[link] = self._reads.monotonic_ms()
        self._copied[group] = max(version, self._copied.get(group, 0))
        if self._copied[group] >= self._state.truth_journal.version:
            self._slow.discard(group)
        if self._uncopied:
            self._tell_copied()

    def when_copied(self, done: Done) -> Done:
        """Returns what passes the result of a change on to `done` once the groups in contact have copied it."""

        def decided(result: ProposeResult) -> None:
            version = self._state.truth_journal.version
            if result.outcome is not Outcome.OK or version <= self._reached():
                done(result)
                return
            self._uncopied.append(_Uncopied(version, done, result, self._reads.monotonic_ms() + self._wait_ms))
            news = answer_frame(TruthAnswer(NEWS, TruthPage((), version, more=True)))
            for link in self._heard:
                link.send(Kind.TRUTH_REPLY, *news)

        return decided

    def _forget_silent(self) -> None:
        since_ms = self._reads.monotonic_ms() - COPIED_MS
        for link in [link for link, heard_ms in self._heard.items() if heard_ms < since_ms]:
            del self._heard[link]

    def _reached(self) -> int:
        """Returns the version that all groups have that are waited for."""
        self._forget_silent()
        groups = {link.group for link in self._heard} - self._slow
        return min((self._copied[group] for group in groups), default=INDEX_MAX)

    def _tell_copied(self) -> None:
        """Answers the changes that are copied. A group for which one has waited long enough is not waited for."""
        waiting, now_ms = self._uncopied, self._reads.monotonic_ms()
        if late := [each.version for each in waiting if each.deadline_ms <= now_ms]:
            self._slow |= {link.group for link in self._heard if self._copied[link.group] < max(late)}
        reached = self._reached()
        self._uncopied = [each for each in waiting if each.version > reached]
        for each in waiting:
            if each.version <= reached:
                each.done(each.result)

    def _lose_leadership(self) -> None:
        if self._uncopied and not self._reads.writes_open():
            waiting, self._uncopied = self._uncopied, []
            for each in waiting:
                each.done(each.result)

    def tick(self, now_ms: int) -> None:
        """Answers changes that have waited for copies for too long, continues with the journal if it is not complete,
        and proposes to forget ends that all groups know."""
        if self._uncopied:
            self._tell_copied()
        journal = self._state.truth_journal
        if not journal.is_kept or not self._reads.writes_open():
            return
        if not journal.is_ready:
            if not self._is_slicing:
                self._is_slicing = True
                self._submit([JournalNames(self._slice_names)], self._sliced)
        elif journal.oldest_end and now_ms - self._forgotten_ms >= FORGET_EVERY_MS:
            self._forgotten_ms = now_ms
            known = min([self._copied.get(group, 0) for group in self._copying()], default=0)
            if known >= journal.oldest_end:
                self._submit([ForgetEnds(known)], lambda result: None)

    def _copying(self) -> Iterator[int]:
        """Yields the groups that copy: all others, and one that has retired for so long that it should know it."""
        now_ms = self._state.applied_mark.timestamp_ms
        for number, row in self._state.broker_groups.by_number.items():
            if number != FIRST_GROUP and not (row.is_retired and now_ms - row.since_ms >= RETIRED_COPIES_MS):
                yield number

    def _sliced(self, result: ProposeResult) -> None:
        self._is_slicing = False
        if result.outcome is Outcome.OK and not self._state.truth_journal.is_ready:
            self.tick(0)
