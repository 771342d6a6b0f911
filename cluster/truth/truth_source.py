"""Serves the truth, on the leader of the first group: sends its rows to the leaders of other groups. The leader also
completes the journal of the truth in slices, and removes the rows of ended names that every group has copied.

The caller of a change gets its result once the groups that are in contact have copied the change. A client can then use
what it just made, and cannot use what it just deleted, at a node of any of these groups. If a group has not copied a
change within COPIED_MS, later changes do not wait for that group until it has copied everything.
"""

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
"""Milliseconds after its last question during which a group counts as in contact. A change waits at most this long, or
half of its caller's deadline if that is less, for groups to copy it."""
RETIRED_COPIES_MS: Final = 3_600_000
"""Milliseconds of log time, after a group has retired, for which rows of ended names are still kept for it. Its nodes
must copy those rows before they come to the row that says that the group has retired. After this time its nodes may be
gone, and nothing waits for them."""
_BYTES_PER_UNIT: Final = 16
"""The number of bytes of rows that are read and packed in a microsecond, which is one unit of `raftlog.work`."""


class TruthLink(Protocol):
    """A connection to a node of another group (`cluster.peer.group_links.GroupLink`)."""

    @property
    def group(self) -> int:
        """The number of the group at the other end."""

    def send(self, kind: Kind, header: list[Any], payload: bytes = b"") -> bool:
        """Sends a frame. Returns False if the connection dropped it."""


class TruthReads(Protocol):
    """The services of the node that serving and changing the truth use."""

    def writes_open(self) -> bool:
        """Returns True if this node leads and has applied the no-op of its term."""

    def read_index(self, done: Callable[[bool], None]) -> None:
        """Calls `done(True)` when a read of this node's applied state is linearizable, `done(False)` if this node
        cannot confirm that it leads."""

    def monotonic_ms(self) -> int:
        """Returns the milliseconds of the node's monotonic clock."""


class Submit(Protocol):
    """Proposes commands (`cluster.replication.proposals.Proposals.submit_commands`)."""

    def __call__(
        self, commands: list[Command], done: Done, session: CommitSession | None = None, author: str = ""
    ) -> None:
        """Proposes the commands, and calls `done` with their results. `author`: the user who asked for them, "" if
        none."""


class _Uncopied(NamedTuple):
    """A change that is applied in the first group, and that some group in contact has not copied yet."""

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
        number of names that get a row in the journal by one entry (`Environment.sweep_rows`). `deadline_ms`: the
        milliseconds for which a caller waits for a change."""
        self._state, self._reads, self._submit, self._slice_names = state, reads, submit, slice_names
        self._wait_ms = min(COPIED_MS, deadline_ms // 2)
        self._asking: dict[TruthLink, TruthQuestion] = {}
        """Connection -> its newest question, which is answered once this node has confirmed that it leads."""
        self._copied: dict[int, int] = {}
        """Group -> the highest version that it is known to have, from its questions. It never falls."""
        self._heard: dict[TruthLink, int] = {}
        """Connection of another group -> the monotonic milliseconds at which it last asked."""
        self._uncopied: list[_Uncopied] = []
        self._slow: set[int] = set()
        """Groups that have not copied a change in time. No change waits for them until they have copied everything."""
        self._is_slicing = False
        self._forgotten_ms = 0
        self._told = Seldom(logger)

    def part(self) -> Part:
        """Returns the hooks through which the node calls this service."""
        return Part(name="truth source", tick=self.tick, role=lambda raw: self._lose_leadership())

    def on_question(self, link: TruthLink, header: list[Any], payload: bytes) -> None:
        """Answers a question for the truth, once this node has confirmed that it leads. If it does not lead, the answer
        has no page. Raises WireError if the frame is malformed."""
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
        """Returns True if the group can copy the changes after the version that it has.

        Returns False, and logs why, in three cases. Ended names that the group has not copied are already removed from
        the journal, for example after a restore of that group. The group has a higher version than the journal, for
        example after a restore of the first group. The level of either group is too low for the rows of the truth.
        """
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
        """Returns a callback for the result of a change. The callback passes the result on to `done`: at once if the
        change was not made, otherwise when the groups in contact have copied it or the wait is over."""

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
        """Returns the highest version that every group in contact has copied, apart from slow groups; INDEX_MAX if
        there is no such group."""
        self._forget_silent()
        groups = {link.group for link in self._heard} - self._slow
        return min((self._copied[group] for group in groups), default=INDEX_MAX)

    def _tell_copied(self) -> None:
        """Passes on the results of the changes that are copied. If a change has reached its deadline, the groups that
        have not copied it become slow, and the change no longer waits for them."""
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
        """Passes on the results of changes that have waited for copies for too long. Proposes the next slice of the
        journal if the journal is not complete; otherwise removes ended names that all groups have copied."""
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
        """Yields the numbers of the groups for which ended names are kept: all but the first group and the groups that
        retired at least RETIRED_COPIES_MS ago."""
        now_ms = self._state.applied_mark.timestamp_ms
        for number, row in self._state.broker_groups.by_number.items():
            if number != FIRST_GROUP and not (row.is_retired and now_ms - row.since_ms >= RETIRED_COPIES_MS):
                yield number

    def _sliced(self, result: ProposeResult) -> None:
        self._is_slicing = False
        if result.outcome is Outcome.OK and not self._state.truth_journal.is_ready:
            self.tick(0)
