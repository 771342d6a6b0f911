"""The other groups' end: their leader asks the leader of the first group what changed, and proposes it to its own group
as entries. What it has then stays valid while the first group cannot be asked."""

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
"""Milliseconds between two questions while nothing is new: a copy is to be less than a second behind."""
ANSWER_MS: Final = 1_000
"""Milliseconds after which a question without an answer is put again."""
CONFIRM_MS: Final = 10_000
"""Milliseconds without a confirmation after which a copy may be old: an alarm says so."""
ALARM = Code("truth_unconfirmed", "warning", "raftmq status")
UNCONFIRMED: Final = (
    f"for {CONFIRM_MS // 1000} s no leader of group {FIRST_GROUP} has confirmed that this group has the newest topics, "
    "users, rules and settings"
)
REFUSED_MS: Final = 10_000
"""Milliseconds after which a page is asked for again that this group's log did not accept."""


FOLLOWER_ASKS_MS: Final = 1_000
"""The same between two questions of a node that does not lead, which asks only if `auth.copy_ms_max` is set."""


class _Copied(NamedTuple):
    """A node whose group has copied `version` had the newest truth at `at_ms`."""

    version: int
    at_ms: int


class _AskedPage(NamedTuple):
    number: int
    link: TruthLink
    version: int
    at_ms: int


class TruthCopies:
    """Copies the truth, on the leader of a group that is not the first; and knows, on every node of it, how old the
    copy may be, if requests are refused for that. Event loop only."""

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
        """`leads` returns True if this node leads its group and takes writes. `source` returns a connection to the
        leader of the first group, None if there is none. `submit` proposes commands. `copy_ms_max`:
        `auth.copy_ms_max`."""
        self._state, self._submit = state, submit
        self._leads, self._source, self._monotonic_ms, self._alarms = leads, source, monotonic_ms, alarms
        self._number = 0
        self._asked: _AskedPage | None = None
        self._is_copying = False
        self._due_ms = 0
        self._confirmed_ms: int | None = None
        self._copy_ms_max = copy_ms_max
        self._sure_ms: int | None = None
        """The time as of which this node had the newest truth; None if it cannot tell since it started."""
        self._coming: _Copied | None = None
        """The answer of which this node will be sure once it has applied it."""
        self._told = Seldom(logger)
        self.rejected = ""
        """Why this group's log did not accept the newest page; "" if it did."""

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
        """Returns why this node judges no requests by its copy now, "" if it does: `auth.copy_ms_max` has passed."""
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
        """Returns the milliseconds since the leader of the first group last confirmed that this leader has copied
        everything; those since this node became leader if that has not happened yet. None if this node does not lead
        its group."""
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
            if now_ms - self._confirmed_ms >= CONFIRM_MS:  # a new group has a lower level for a moment
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
        """Copies the rows of an answer; one to a question that was given up is ignored. Raises WireError."""
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
            if not copy.ok and copy.code != "conflict":  # a leader before this one has copied meanwhile: asked again
                self.rejected = str(copy.value)
                self._due_ms = self._monotonic_ms() + REFUSED_MS
                self._told.warn("the truth of the first group cannot be copied", self.rejected, self._due_ms / 1000)
                return
            if self._leads():  # asks for the next page, or learns that there is none
                self._ask()

        self._submit([CopyTruth(asked.version, page.version, page.rows)], copied)

    def lose_leadership(self) -> None:
        if not self._leads():
            self._asked = self._confirmed_ms = None
