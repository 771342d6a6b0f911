"""Holds back the appends to voters that no commit waits for, and gives them out in batches (`replication.thrifty`).

A majority commits an entry, so of three voters the slower follower's disk decides nothing. While few entries are in
flight, the leader sends them at once to as many of the quickest voters as a majority needs, and to the other voters
HOLD_MS later.

The core treats a held append like one on a slow network: it was sent, it is in flight, it may be lost. Holding it
therefore changes no commit, election or promotion. Code that reads the follower's `Progress` sees that everything was
sent. A follower's answer to a heartbeat or to an earlier append releases no held append: a probe that follows the
answer queues behind the held ones.

Appends are held only if that cannot delay a commit: `why_whole` lists the reasons not to hold any. If a quick voter is
late, the other voters get at once the entries that the late one may never acknowledge.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final, NamedTuple

from raftlog.core.raft import Raft
from raftlog.core.state.progress import ProgressState
from raftlog.messages import AppendEntries, AppendEntriesReply, Message
from raftlog.types import FLAG_ROLL, NOBODY, Entry, EntryType, NodeId, Role

HOLD_MS: Final = 10.0
"""The milliseconds after which all held appends are sent, counted from the beginning of the batch."""
ENTRIES_MAX: Final = 16
"""The number of held entries at which all held appends are sent."""
BYTES_MAX: Final = 64 * 1024
"""The bytes of held entries above which all held appends are sent. An entry that is held for two voters counts once."""
FEW: Final = 2
"""The number of uncommitted entries, the newest included, above which every append is sent at once."""
BEHIND_MAX: Final = 64
"""The most entries that a voter may lack. A voter that lacks more is catching up, and then no append is held."""
LATE_MS: Final = 2.0
"""The milliseconds after which a missing acknowledgement is late. If the 95th percentile of recent delays is larger, an
acknowledgement is late only after that time."""
DELAYS: Final = 64
"""The number of newest acknowledgements from whose delays the 95th percentile is computed."""
PACE: Final = 8
"""The number of acknowledgements after which the 95th percentile is computed again."""
TRIAL: Final = 8
"""The number of acknowledged entries, sent to all voters at once, after which the leader chooses the quickest
voters."""
BATCHES: Final = 256
"""The number of batches after which the leader compares the voters again."""


class Outside(NamedTuple):
    """Functions of the driver that tell what the core does not know."""

    plain: Callable[[int], bool]
    """Takes an index. Returns True if that entry holds only messages, and nobody waits for more than its commit."""
    in_haste: Callable[[], bool]
    """Returns True while every voter should get every append at once, for a reason outside the core."""
    slow: Callable[[NodeId], bool]
    """Returns True if that node reported slow turns of its event loop."""
    preferred: Callable[[], Collection[NodeId]]
    """Returns the nodes that should lead if they can. Appends to them are never held."""


class HeldAppends:
    """Decides which messages of one member leave at once. Times are in milliseconds of one clock of the caller."""

    __slots__ = (
        "_batches",
        "_delays",
        "_first_index",
        "_first_position",
        "_firsts",
        "_judged",
        "_late_ms",
        "_later",
        "_left",
        "_need",
        "_not_plain",
        "_open",
        "_outside",
        "_raft",
        "_term",
        "_tried",
        "_voters",
        "held",
        "quick",
        "since_ms",
    )

    def __init__(self, raft: Raft, outside: Outside) -> None:
        self._raft = raft
        self._outside = outside
        self.held: dict[NodeId, list[AppendEntries]] = {}
        """The appends that have not left, per voter, in order."""
        self.since_ms = 0.0
        """The time at which the present batch of held appends began."""
        self.quick: tuple[NodeId, ...] = ()
        """The voters that get everything at once, as many as make a majority with this leader; empty if not known."""
        self._term = -1
        """The term in which this member leads, and to which all fields below refer; -1 before it leads for the first
        time."""
        self._voters = raft.members.voters
        self._need = 0
        """The number of voters that make a majority of `_voters` with this leader."""
        self._judged = -1
        self._not_plain = -1
        """`_judged`: the newest index for which it was decided whether its append may be held. `_not_plain`: the newest
        index whose append must not be held."""
        self._left: dict[NodeId, int] = {}
        """Member -> index of the newest entry that the core has sent to it, held or not."""
        self._open: dict[int, tuple[float, list[NodeId]]] = {}
        """Index -> (the time at which the entry was sent to the quick voters, the voters that acknowledged it). An
        entry is removed when `_need` voters have acknowledged it."""
        self._delays: deque[float] = deque(maxlen=DELAYS)
        self._late_ms = LATE_MS
        self._firsts: dict[NodeId, int] = {}
        self._tried = 0
        self._batches = 0
        self._later: frozenset[NodeId] = frozenset()
        """The voters for which appends are held in the present batch."""
        self._first_index = self._first_position = 0
        """Index and position of the first entry that is held in the present batch."""

    # -- messages

    def leave(self, messages: Sequence[Message], now_ms: float) -> Sequence[Message]:
        """Returns the messages that leave now: those of `messages` that are not held, and held ones that are due."""
        raft = self._raft
        if raft.role is not Role.LEADER or raft.term != self._term:
            return self._leave_anew(messages) if self.held or raft.role is Role.LEADER else messages
        whole, found = None, False
        for message in messages:
            if type(message) is AppendEntries:
                if whole is None:
                    whole = bool(self.why_whole() or self._outside.in_haste())
                found = True
                if message.entries and not self._may_wait(message, now_ms, whole=whole):
                    whole = True
        if whole:
            return [*self.give_out(), *messages]
        if not found or not self.quick:
            return messages  # no append is held here: code that clears `quick` gives them all out
        if not self.held and not self._begin_batch(now_ms):
            return messages
        return self._divided(messages)

    def _divided(self, messages: Sequence[Message]) -> list[Message]:
        """Holds back, for the voters in `_later`, the appends that have entries or follow a held append. Returns all
        other messages. Adds all held appends to these if they are enough for a batch, or if they fill a voter's window,
        because a full window would make the voter look slow."""
        held, later = self.held, self._later
        leaving: list[Message] = []
        full = False
        for message in messages:
            to = message.to_id
            if to not in later or type(message) is not AppendEntries or not (message.entries or to in held):
                leaving.append(message)
                continue
            if not held:
                self._first_index, self._first_position = message.entries[0].index, message.entries[0].position
            held.setdefault(to, []).append(message)
            full = full or self._raft.members.peers[to].inflights.full
        tail = self._raft.log.tail
        size = tail.end_position - self._first_position
        if full or tail.index - self._first_index + 1 >= ENTRIES_MAX or size > BYTES_MAX:
            leaving += self.give_out()
        return leaving

    def _begin_batch(self, now_ms: float) -> bool:
        """Begins a batch: chooses the voters to which its entries are sent later than to the others. Returns False if
        all voters get them at once. Forgets which voters are quick, and returns False, if one of them is slow now, or
        enough batches have begun since they were chosen."""
        if self._batches > BATCHES or any(map(self._outside.slow, self.quick)):
            self._forget()
            return False
        preferred = self._outside.preferred()
        whole = (self._raft.id, *self.quick, *preferred)
        self._later = frozenset(node for node in self._voters if node not in whole)
        self.since_ms = now_ms
        self._batches += 1
        return bool(self._later)

    def _leave_anew(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Returns the appends that were held back in the last term, then `messages`. If this member leads, begins a new
        term, in which no voter is known to be quick yet."""
        given = self.give_out()
        if self._raft.role is Role.LEADER:
            self._term, self._late_ms = self._raft.term, LATE_MS
            self._judged = self._not_plain = -1
            self._delays.clear()
            self._left.clear()
            self._forget()
        return [*given, *messages]

    def _may_wait(self, append: AppendEntries, now_ms: float, *, whole: bool) -> bool:
        """Records which entries are sent for the first time, and when. Returns True if the append may be held: its
        entries are plain (`_is_plain`), none was sent to that member before (a repetition means that one was lost or
        refused), and none was first sent in a `whole` turn, which sends everything to every voter at once."""
        first, last, to = append.entries[0].index, append.entries[-1].index, append.to_id
        before = self._left.get(to, -1)
        self._left[to] = max(before, last)
        for entry in append.entries:
            if entry.index > self._judged:
                self._judged = entry.index
                if not whole and self._is_plain(entry):
                    self._open[entry.index] = (now_ms, [])
                else:
                    self._not_plain = entry.index
        return first > before and first > self._not_plain

    def _is_plain(self, entry: Entry) -> bool:
        return (
            entry.type == EntryType.MESSAGES
            and not entry.flags & FLAG_ROLL
            and entry.end_position - entry.position <= BYTES_MAX
            and self._outside.plain(entry.index)
        )

    def give_out(self) -> list[Message]:
        """Returns all held appends, which then count as sent; [] if none is held. Consecutive appends are joined into
        one message."""
        if not self.held:
            return []
        held, self.held = self.held, {}
        return [message for appends in held.values() for message in _joined(appends)]

    # -- when held appends are due

    def wake_ms(self, now_ms: float) -> float:
        """Returns the time at which the caller must call `look` next, if any append is held: when the batch is HOLD_MS
        old, or when the oldest missing acknowledgement becomes late, whichever is earlier."""
        oldest = next(iter(self._open.values()), None)
        return min(self.since_ms + HOLD_MS, (now_ms if oldest is None else oldest[0]) + self._late_ms)

    def look(self, now_ms: float) -> list[Message]:
        """Returns all held appends if they are due at `now_ms`, else []. The caller calls it at the time of `wake_ms`,
        and whenever a reason of `why_whole` may have arisen."""
        if not self.held:
            return []
        if now_ms >= self.since_ms + HOLD_MS or self.why_whole() or self._outside.in_haste():
            return self.give_out()
        oldest = next(iter(self._open.values()), None)
        if oldest is not None and now_ms >= oldest[0] + self._late_ms:
            self._forget()
            return self.give_out()
        return []

    # -- which voters are quick

    def on_reply(self, reply: AppendEntriesReply, now_ms: float) -> None:
        """Records which voters acknowledge first, and how long that takes. Chooses the quick ones after TRIAL
        entries."""
        if reply.term != self._term or reply.rejected or reply.from_id not in self._voters:
            return
        done = 0
        for index, (_, who) in self._open.items():
            if index > reply.match_index:
                break
            if reply.from_id not in who:
                who.append(reply.from_id)
            if len(who) >= self._need:
                done += 1
        for index in list(self._open)[:done]:
            self._acknowledged(now_ms - self._open[index][0], self._open[index][1])
            del self._open[index]
        if self._tried >= TRIAL and not self.quick:
            self._choose()

    def _acknowledged(self, delay_ms: float, who: list[NodeId]) -> None:
        self._delays.append(delay_ms)
        self._tried += 1
        if self._tried % PACE == 0:
            ordered = sorted(self._delays)
            self._late_ms = max(LATE_MS, ordered[len(ordered) * 95 // 100])
        if not self.quick:
            for node in who:
                self._firsts[node] = self._firsts.get(node, 0) + 1

    def _choose(self) -> None:
        """Chooses as quick the voters that were most often among the first to acknowledge, as many as a majority needs.
        Chooses none if there are not enough of them (`_may_be_quick`)."""
        firsts = self._firsts
        able = sorted((node for node in firsts if self._may_be_quick(node)), key=lambda node: (-firsts[node], node))
        self._forget()
        if len(able) >= self._need:
            self.quick = tuple(able[: self._need])

    def _may_be_quick(self, node: NodeId) -> bool:
        peer = self._raft.members.peers.get(node)
        if peer is None or not peer.fit or not peer.is_live or peer.state is not ProgressState.REPLICATE:
            return False
        return not self._outside.slow(node)

    def _forget(self) -> None:
        """Forgets which voters are quick, and begins to compare all voters again. Until TRIAL entries are acknowledged,
        every voter gets all appends at once."""
        self.quick = ()
        self._voters = self._raft.members.voters
        self._need = self._raft.members.quorum - 1
        self._firsts.clear()
        self._open.clear()
        self._tried = self._batches = 0

    # -- when no append is held

    def why_whole(self) -> str:
        """Returns the reason within the core to send everything at once to every voter; "" if there is none. Forgets
        which voters are quick if the voters changed or a quick one is gone.

        Called in each turn: if there is no reason, it calls no other function of this package.
        """
        raft = self._raft
        log, members = raft.log, raft.members
        voters, peers = members.voters, members.peers
        if voters is not self._voters:  # replaced at each change of members: the majority may be another one
            self._forget()
            return "members change"
        if raft.role is not Role.LEADER or raft.term != self._term or log.commit_index < raft.term_start_index:
            return "a term begins or ends"
        if log.tail.index - log.commit_index > FEW:
            return "more is in flight"
        if raft.transferee != NOBODY:
            return "leadership is being transferred"
        if raft.reads.waiting or raft.reads.rounds:
            return "a read waits for a round"
        if members.history[-1].index > log.commit_index or not members.is_own_voter:
            return "members change"
        if len(voters) <= self._need + 1:
            return "every voter is needed"
        for node in voters:
            if node != raft.id:
                peer = peers[node]
                behind = peer.match_index + BEHIND_MAX < log.tail.index
                if behind or peer.state is not ProgressState.REPLICATE or peer.held:
                    return "a voter catches up"
                live = (peer.recent_active or peer.was_active) and not peer.gone  # `Progress.is_live` without a call
                if node in self.quick and not (live and peer.fit):
                    self._forget()
                    return "a quick voter is gone"
        return ""


def _joined(appends: list[AppendEntries]) -> Iterator[AppendEntries]:
    """Yields the appends of one voter, consecutive ones joined into one. A joined append has the commit index of the
    last."""
    first, entries, last = appends[0], list(appends[0].entries), appends[0]
    for append in appends[1:]:
        if append.term == first.term and append.prev.index == first.prev.index + len(entries):
            entries += append.entries
        else:
            yield first._replace(entries=tuple(entries), commit_index=last.commit_index)
            first, entries = append, list(append.entries)
        last = append
    yield first._replace(entries=tuple(entries), commit_index=last.commit_index)
