"""The leaders of two groups of brokers on no loop, without time of its own: the first one's gives the truth and takes
acts, the other's copies it and asks for acts. Frames are packed and read as on a connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cluster.config.loading import load
from cluster.peer.wire import pack, unpack
from cluster.replication.outcome import Outcome, ProposeResult
from cluster.runtime.alarms import Alarms
from cluster.runtime.peer_frames import Kind
from cluster.truth.revocation_offers import RevocationOffers
from cluster.truth.truth_acts import ActsAsked, ActsTaken
from cluster.truth.truth_copies import TruthCopies
from cluster.truth.truth_source import TruthSource
from cluster.truth.write_decisions import WriteDecisions
from jepsen_like.sim.checks.truth_check import told
from raftlog.types import EntryId
from statemachine.commands import Command
from statemachine.levels import LEVEL
from tests.support.truth_kit import BrokerLog

DEADLINE_MS = 3000


class Leader:
    """The leader of a group: what it proposes is decided when the test says so."""

    def __init__(self, log: BrokerLog) -> None:
        self.log = log
        self.leads = True
        self.proposed: list[tuple[list[Command], Callable[[ProposeResult], None]]] = []
        self.confirming: list[Callable[[bool], None]] = []
        self.authors: list[str] = []
        self.now_ms = 0

    def submit(
        self, commands: list[Command], done: Callable[[ProposeResult], None], session: Any = None, author: str = ""
    ) -> None:
        self.authors.append(author)
        self.proposed.append((commands, done))

    def decide(self, outcome: Outcome = Outcome.OK) -> None:
        """Decides all that is proposed; what is proposed then waits."""
        proposed, self.proposed = self.proposed, []
        for commands, done in proposed:
            results = self.log.run(*commands) if outcome is Outcome.OK else []
            done(ProposeResult(outcome, results, EntryId(1, 1), ""))

    def writes_open(self) -> bool:
        return self.leads

    def log_time_ms(self) -> int:
        return int(self.log.log.now_ms)

    def read_index(self, done: Callable[[bool], None]) -> None:
        self.confirming.append(done)

    def monotonic_ms(self) -> int:
        return self.now_ms

    def confirm(self, *, ok: bool = True) -> None:
        confirming, self.confirming = self.confirming, []
        for done in confirming:
            done(ok)


class Ends:
    """One connection, and what is on its way."""

    def __init__(self, group: int) -> None:
        self.group = group
        self.is_open = True
        self.sent: list[tuple[Kind, bytes]] = []
        self.frames = 0
        """All that were ever sent."""

    def send(self, kind: Kind, header: list[Any], payload: bytes = b"") -> bool:
        if self.is_open:
            self.frames += 1
            self.sent.append((kind, pack(kind, header, len(payload)) + payload))
        return self.is_open

    def take(self) -> list[tuple[Kind, list[Any], bytes]]:
        sent, self.sent = self.sent, []
        return [(kind, *unpack(frame, 4, len(frame))[1:]) for kind, frame in sent]


class Two:
    """The first group and the second, and their connection."""

    def __init__(self, new_log: Callable[[], Any], *, first: int = LEVEL, second: int = LEVEL, group: int = 2) -> None:
        """`first`, `second`: the levels of the groups. `group`: the number of the second one."""
        self.first = Leader(BrokerLog(new_log(), level=first))
        self.second = Leader(BrokerLog(new_log(), group, level=second))
        self.now_ms = 0
        self.alarms = Alarms(lambda: self.now_ms)
        self.there, self.back = Ends(group), Ends(1)
        self.follows_decisions = True
        """False: nobody but requests asks what was decided."""
        self.source = TruthSource(self.first.log.state, self.first, self.first.submit, 512)
        self.taken = ActsTaken(self.first.log.state, self.first, self.first.submit)
        self.begin_second()

    def begin_second(self) -> None:
        """Makes what the leader of the second group has for its term, by the rows that it has now."""
        group = self.there.group
        self.copies = TruthCopies(
            self.second.log.state,
            self.second.submit,
            leads=self.second.writes_open,
            source=lambda: self.back if self.back.is_open else None,
            monotonic_ms=lambda: self.now_ms,
            alarms=self.alarms,
            copy_ms_max=0,
        )
        self.acts = ActsAsked(
            self.second.log.state,
            group,
            submit=self.second.submit,
            source=lambda: self.back if self.back.is_open else None,
            hurry=self.copies.hurry,
            monotonic_ms=lambda: self.now_ms,
            deadline_ms=DEADLINE_MS,
        )
        self.offers = RevocationOffers(
            self.second.log.state, self.second, self.acts.offer, self.second.submit, group, self.alarms
        )
        self.decisions = WriteDecisions(self.second.log.state, self.second, self.submit_in_second, group, self.alarms)

    def with_new_group(self, group: int, new_log: Callable[[], Any]) -> Two:
        """Returns the first group with another second one, which has nothing yet."""
        made = Two(new_log, group=group)
        made.first, made.source, made.taken, made.now_ms = self.first, self.source, self.taken, self.now_ms
        return made

    def submit_in_second(
        self, commands: list[Command], done: Callable[[ProposeResult], None], session: Any = None, author: str = ""
    ) -> None:
        """Has the first group decide commands of the truth, as `Proposals.submit_commands` does."""
        if all(command.OF_TRUTH for command in commands):
            self.acts.ask(commands, done, author)
        else:
            self.second.submit(commands, done)

    def limit_copies(self, ms: int) -> None:
        """Sets `auth.copy_ms_max`."""
        reload = self.copies.part().reload
        assert reload is not None
        reload(load(None, {}, {"node.id": 1, "node.data_dir": "/data", "auth.copy_ms_max": ms}))

    def carry_asked(self) -> None:
        """Carries the frames that are on their way to the first group."""
        for kind, header, payload in self.back.take():
            handler = self.source.on_question if kind == Kind.TRUTH else self.taken.on_act
            handler(self.there, header, payload)
        self.first.confirm()

    def carry(self) -> None:
        """Carries all frames that are on their way."""
        self.carry_asked()
        for kind, header, payload in self.there.take():
            answered = self.copies.on_answer if kind == Kind.TRUTH_REPLY else self.acts.on_reply
            answered(self.back, header, payload)

    def run(self, ms: int) -> None:
        """Lets time pass, in which everything is carried and decided."""
        for _ in range(ms // 50):
            self.now_ms += 50
            self.first.now_ms = self.second.now_ms = self.now_ms
            self.source.tick(self.now_ms)
            self.copies.tick(self.now_ms)
            self.acts.tick(self.now_ms)
            if self.follows_decisions:
                self.decisions.tick(self.now_ms)
            self.offers.tick(self.now_ms)
            self.first.decide()
            self.carry()
            self.second.decide()

    def is_equal(self) -> bool:
        return told(self.first.log.state) == told(self.second.log.state)
