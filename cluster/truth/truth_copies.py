"""Copies the truth in all groups but the first. The leader of such a group asks the leader of the first group what has
changed, and proposes the changed rows to its own group. The copied rows stay valid while the first group cannot be
asked."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cluster.replication.outcome import Outcome, ProposeResult
from cluster.runtime.alarms import Alarms
from cluster.runtime.findings import Code
from cluster.runtime.logs import Seldom
from cluster.runtime.peer_frames import Kind
from cluster.runtime.service_lifecycle import Part
from cluster.truth.truth_frames import NEWS, TruthQuestion, question_header, read_answer, too_low
from raftlog.types import FIRST_GROUP
from statemachine.levels import GROUPS_LEVEL
from statemachine.truth import CopyTruth

if TYPE_CHECKING:
    from cluster.config.config import Config
    from cluster.truth.truth_source import Submit, TruthLink
    from statemachine.broker_state import BrokerState
    from statemachine.truth import TruthPage

logger = logging.getLogger(__name__)

ASK_EVERY_MS: Final = 250
"""Milliseconds between two questions while nothing changes, so that a copy is less than a second behind."""
ANSWER_MS: Final = 1_000
"""Milliseconds after which a question that was not answered is given up, and the next one is sent."""
CONFIRM_MS: Final = 10_000
"""Milliseconds after which an alarm is raised if the leader of the first group has not confirmed that the copy is the
newest."""
ALARM = Code("truth_unconfirmed", "warning", "raftmq status")
UNCONFIRMED: Final = (
    f"for {CONFIRM_MS // 1000} s no leader of group {FIRST_GROUP} has confirmed that this group has the newest topics, "
    "users, rules and settings"
)
REFUSED_MS: Final = 10_000
"""Milliseconds until the next question after this group rejected a page of rows."""


FOLLOWER_ASKS_MS: Final = 1_000
"""Milliseconds between two questions of a node that does not lead. Such a node asks only if `auth.copy_ms_max` is
set."""


class _Copied(NamedTuple):
    """An answer of the first group: `version` was the newest version of the truth at some time after `at_ms` (monotonic
    milliseconds)."""

    version: int
    at_ms: int


class _AskedPage(NamedTuple):
    number: int
    link: TruthLink
    version: int
    at_ms: int


class TruthCopies:
    """Copies the truth, on the leader of a group that is not the first. If `auth.copy_ms_max` is set, every node of the
    group also measures how old its copy may be, because it refuses requests if the copy is too old. Event loop only."""

    def __init__(
        self,
        state: BrokerState,
        submit: Submit,
        *,
        leads: Callable[[], bool],
        source: Callable[[], TruthLink | None],
        monotonic_ms: Callable[[], int],
        alarms: Alarms,
        copy_ms_max: int,
    ) -> None:
        """`leads` returns True if this node leads its group and accepts writes. `source` returns a connection to the
        leader of the first group, None if there is none. `submit` proposes commands to this group. `copy_ms_max` is
        the setting `auth.copy_ms_max`; 0 means no limit."""
        self._state, self._submit = state, submit
        self._leads, self._source, self._monotonic_ms, self._alarms = leads, source, monotonic_ms, alarms
        self._number = 0
        self._asked: _AskedPage | None = None
        self._is_copying = False
        self._due_ms = 0
        self._confirmed_ms: int | None = None
        self._copy_ms_max = copy_ms_max
        self._sure_ms: int | None = None
        """Monotonic milliseconds: this node has copied everything that was in the truth at this time. None if it has
        had no confirmation since it started."""
        self._coming: _Copied | None = None
        """An answer whose version this node has not applied yet. Once it has, the answer's `at_ms` becomes `_sure_ms`.
        None if no answer waits."""
        self._told = Seldom(logger)
        self.rejected = ""
        """The reason why this group rejected the newest page; "" if it accepted it."""

    def part(self) -> Part:
        """Returns the hooks through which the node calls this service."""
        return Part(
            name="truth copies",
            tick=self.tick,
            role=lambda raw: self.lose_leadership(),
            applied=lambda applied: self._look(),
            reload=self._reload,
        )

    def _reload(self, config: Config) -> None:
        self._copy_ms_max = config.auth.copy_ms_max

    def why_stale(self) -> str:
        """Returns why this node may not judge requests by its copy now: the copy was last confirmed more than
        `auth.copy_ms_max` ago. Returns "" if the node may, or if there is no such limit."""
        if not self._copy_ms_max:
            return ""
        if self._sure_ms is None:
            told = "since this node started"
        elif (silent_ms := self._monotonic_ms() - self._sure_ms) > self._copy_ms_max:
            told = f"for {silent_ms} ms"
        else:
            return ""
        return (
            f"{told} no leader of group {FIRST_GROUP} has confirmed its copy of users and rules, auth.copy_ms_max is "
            f"{self._copy_ms_max}"
        )

    def unconfirmed_ms(self) -> int | None:
        """Returns the milliseconds since the leader of the first group last confirmed that this group has copied
        everything. If it has not confirmed that since this node became leader, returns the milliseconds since then.
        Returns None if this node does not lead its group."""
        if self._confirmed_ms is None:
            return None
        return self._monotonic_ms() - self._confirmed_ms

    def tick(self, now_ms: int) -> None:
        """Asks the first group's leader for changes when that is due, and raises or clears the alarm about an old
        copy."""
        if not self._leads():
            self._alarms.clear(ALARM)
            if self._copy_ms_max:
                self._ask_in_time(now_ms, FOLLOWER_ASKS_MS)
            return
        if self._confirmed_ms is None:
            self._confirmed_ms = now_ms
        if (level := self._state.level) < GROUPS_LEVEL:
            # A new group begins with a lower level, which is raised a moment later: that is no reason for an alarm.
            if now_ms - self._confirmed_ms >= CONFIRM_MS:
                self._alarms.raise_alarm(ALARM, f"{UNCONFIRMED}: {too_low(level)}")
            return
        if self.rejected:
            self._alarms.raise_alarm(ALARM, f"what all groups share cannot be copied: {self.rejected}")
        elif now_ms - self._confirmed_ms >= CONFIRM_MS:
            self._alarms.raise_alarm(ALARM, UNCONFIRMED)
        else:
            self._alarms.clear(ALARM)
        self._ask_in_time(now_ms, ASK_EVERY_MS)

    def _ask_in_time(self, now_ms: int, every_ms: int) -> None:
        asked = self._asked
        if asked is not None and now_ms - asked.at_ms >= ANSWER_MS:
            self._asked = asked = None
        if asked is None and not self._is_copying and now_ms >= self._due_ms:
            self._ask()
            self._due_ms = now_ms + every_ms

    def hurry(self) -> None:
        """Asks now, because something is known to be new."""
        if self._leads() and self._asked is None and not self._is_copying:
            self._ask()
        else:
            self._due_ms = 0

    def _ask(self) -> None:
        link, now_ms = self._source(), self._monotonic_ms()
        self._due_ms = now_ms + ASK_EVERY_MS
        if link is None or self._state.level < GROUPS_LEVEL:
            return
        self._number += 1
        asked = _AskedPage(self._number, link, self._state.truth.copied, now_ms)
        if link.send(Kind.TRUTH, question_header(TruthQuestion(asked.number, asked.version, self._state.level))):
            self._asked = asked

    def on_answer(self, link: TruthLink, header: list[Any], payload: bytes) -> None:
        """Copies the rows of an answer. An answer with the number NEWS has no rows: it makes this node ask at once. An
        answer to a question that was given up is ignored. Raises WireError if the frame is malformed."""
        answer = read_answer(header, payload)
        if answer.number == NEWS:
            self.hurry()
            return
        asked = self._asked
        if asked is None or (asked.number, asked.link) != (answer.number, link):
            return
        self._asked = None
        page = answer.page
        if page is None:
            return
        self._look()
        if not page.more and self._coming is None:
            self._coming = _Copied(page.version, asked.at_ms)
            self._look()
        if not self._leads():
            return
        if page.version == asked.version:
            self.rejected = ""
            if self._confirmed_ms is not None:
                self._confirmed_ms = asked.at_ms
        else:
            self._copy(asked, page)

    def _look(self) -> None:
        coming = self._coming
        if coming is not None and self._state.truth.copied >= coming.version:
            self._coming, self._sure_ms = None, coming.at_ms

    def _copy(self, asked: _AskedPage, page: TruthPage) -> None:
        self._is_copying = True

        def copied(result: ProposeResult) -> None:
            self._is_copying = False
            if result.outcome is not Outcome.OK:
                return
            copy = result.results[-1]
            # "conflict": an earlier leader has copied rows in the meantime, so this node asks again from there.
            if not copy.ok and copy.code != "conflict":
                self.rejected = str(copy.value)
                self._due_ms = self._monotonic_ms() + REFUSED_MS
                self._told.warn("the truth of the first group cannot be copied", self.rejected, self._due_ms / 1000)
                return
            if self._leads():  # The answer is the next page, or says that there is none.
                self._ask()

        self._submit([CopyTruth(asked.version, page.version, page.rows)], copied)

    def lose_leadership(self) -> None:
        if not self._leads():
            self._asked = self._confirmed_ms = None
