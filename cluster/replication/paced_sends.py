"""Holds sends that exceed a quota, until their owner may send again and they can be proposed.

They wait in lines. The sends of one owner to one topic are one line and keep their order. A waiting send counts for its
connection and its owner, never among the bytes in flight of the node: an owner above its quota takes no room from
others. The leader refuses a send that has waited for `flow.hold_ms`, or for half of `send.deadline_ms` if that is less.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias

from cluster.flow.quota_buckets import Bucket
from cluster.replication.fair_order import owner_of, take_where
from raftlog.work import charge

if TYPE_CHECKING:
    from cluster.config.config import Config
    from cluster.flow.backlogs import Backlogs
    from cluster.flow.gate import Gate
    from cluster.flow.hold import Account
    from cluster.flow.quota_buckets import QuotaBuckets
    from cluster.flow.quota_rules import Refusals
    from cluster.flow.requests_at_once import AtOnce, RequestsAtOnce
    from cluster.replication.message_batch import Send
    from statemachine.access.quotas import Quota

HOLD_SHARES: Final = 8
"""All owners together may have this many times as many waiting bytes as one owner."""
RELEASED_PER_TURN: Final = 2_000
"""The most sends that are released in one turn of the loop."""
REFUSED_PER_TURN: Final = 400
"""The most sends that are refused in one turn of the loop: an answer takes some 100 µs."""
JUDGED_PER_TURN: Final = 500
"""The most lines whose quotas are looked up again in one turn, after a change of any quota."""
SENDS_PER_UNIT: Final = 2
"""Sends that are looked at in a microsecond (a unit of `raftlog.work`)."""
Limiting: TypeAlias = "Bucket | AtOnce"
"""One of the limits for which a send waits."""


def _opens_ms(limiting: Limiting) -> float:
    return limiting.opens_ms()


class _PacedLine:
    """The waiting sends of one owner to one topic, oldest first."""

    __slots__ = ("buckets", "sends")

    def __init__(self, buckets: tuple[Limiting, ...]) -> None:
        self.buckets = buckets
        self.sends: deque[Send] = deque()

    def opens_ms(self) -> float:
        """Returns the time in milliseconds at which its first send may go; a time in the past if no quota applies any
        more."""
        return max(map(_opens_ms, self.buckets), default=float("-inf"))

    def last_to_open(self) -> Limiting:
        """Returns the bucket or limit that holds the sends back longest. `buckets` must not be empty."""
        return max(self.buckets, key=_opens_ms)


class PacedSends:
    """The sends that wait for their quota. Event loop only. A caller that takes sends from here must release their
    holds."""

    def __init__(
        self, buckets: QuotaBuckets, at_once: RequestsAtOnce, backlogs: Backlogs, gate: Gate, config: Config
    ) -> None:
        self.buckets, self.backlogs = buckets, backlogs
        self._at_once = at_once
        self._gate = gate
        self.active = False
        """True if a send may have to wait. Set by `look`, several times a second, so that nothing is asked per send as
        long as there is no quota."""
        self._lines: dict[tuple[int | str, int], _PacedLine] = {}
        """(owner, id of the topic) -> line; none is empty."""
        self._names: dict[tuple[bytes, int], Send] = {}
        """(id of the session, sequence) -> send."""
        self._owners: dict[int | str, Account] = {}
        self._seen: Mapping[str, Quota] = {}
        """The rows of quotas by which the lines are judged. If the present rows are others, all lines are judged
        again."""
        self._stale: list[tuple[int | str, int]] = []
        """The keys of the lines whose quotas must still be looked up again."""
        self.reload(config)

    def reload(self, config: Config) -> None:
        """Applies changed limits."""
        self._bytes_max = config.flow.hold_bytes_max
        self._hold_ms = min(config.flow.hold_ms, config.send.deadline_ms // 2)

    def look(self) -> None:
        """Updates `active`: whether any quota, backlog limit or waiting send exists."""
        if not (self.active or self.buckets.rules.limited):
            return
        self._gate.count_owners(self._at_once if self._at_once.active else None)
        limited = self.buckets.active or self.backlogs.active or self._at_once.active
        self.active = limited or len(self) > 0

    @property
    def waits_for_others(self) -> bool:
        """True if a send may wait here until other sends are decided, rather than for time to pass."""
        return self._gate.at_once is not None and len(self) > 0

    def __len__(self) -> int:
        return self._gate.paced.requests

    @property
    def size(self) -> int:
        """The bytes of all sends that wait here."""
        return self._gate.paced.bytes

    def __iter__(self) -> Iterator[Send]:
        return (send for line in self._lines.values() for send in line.sends)

    def waiting(self) -> Iterator[tuple[Bucket, int]]:
        """Yields the bucket for which the sends of a line wait, and their number, for each line that waits for a
        bucket. Leaves out lines that wait for a limit on requests at once."""
        for line in self._lines.values():
            limiting = line.last_to_open() if line.buckets else None
            if isinstance(limiting, Bucket):
                yield limiting, len(line.sends)

    # --- sends come --------------------------------------------------------------------------------------------------

    def admit(self, sends: list[Send], now_ms: int) -> tuple[list[Send], list[tuple[Send, Refusals]]]:
        """Returns the sends that may go now, and the sends that must be refused, each with its reason: the empty
        bucket, if there is no room to wait, or the backlog of its topic. The other sends wait here. All sends are of
        one owner, and no account holds them yet."""
        going: list[Send] = []
        refused: list[tuple[Send, Refusals]] = []
        owner = owner_of(sends[0])
        slot = line = None
        buckets: tuple[Limiting, ...] = ()
        backlog = None
        self._at_once.begin()
        if self._fit(owner, sends, now_ms):
            return sends, refused
        for send in sends:
            if send.slot is not slot:
                slot = send.slot
                line = self._lines.get((owner, slot.topic_id))
                buckets = self._limiting(send, now_ms)
                backlog = self.backlogs.of(slot.name, slot.topic_id) if self.backlogs.active else None
            if backlog is not None and not backlog.takes(send.size, now_ms):
                refused.append((send, backlog))
                continue
            if line is None:
                over = next((bucket for bucket in buckets if bucket.opens_ms() > now_ms), None)
                if over is None:
                    _take(buckets, send, now_ms)
                    going.append(send)
                    continue
                line = self._lines[owner, slot.topic_id] = _PacedLine(buckets)
            if not line.buckets or self._has_room(owner, send.size):
                self._wait(owner, line, send)
            else:
                refused.append((send, line.last_to_open()))
                if not line.sends:
                    del self._lines[owner, slot.topic_id]
                    line = None
        charge(1 + len(sends) // SENDS_PER_UNIT)
        return going, refused

    def _fit(self, owner: int | str, sends: list[Send], now_ms: int) -> bool:
        """Returns True, and charges the quotas, if all of the sends may go at once. This is the usual case of an owner
        within its quotas: it is checked once per read, not once per send."""
        first = sends[0]
        slot = first.slot
        messages = size = 0
        for send in sends:
            if send.slot is not slot:
                return False
            messages += len(send.batch) or 1
            size += send.size
        if (owner, slot.topic_id) in self._lines:
            return False
        requests, buckets = len(sends), self._limiting(first, now_ms)
        for bucket in buckets:
            if not bucket.fits(now_ms, requests, messages, size):
                return False
        if self.backlogs.active:
            backlog = self.backlogs.of(slot.name, slot.topic_id)
            if backlog is not None and not backlog.takes(size, now_ms):
                return False
        for bucket in buckets:
            bucket.take(now_ms, messages, size, requests)
        charge(1 + requests // SENDS_PER_UNIT)
        return True

    def _limiting(self, send: Send, now_ms: int) -> tuple[Limiting, ...]:
        """Returns the buckets and limits that apply to a send."""
        address = send.connection.in_flight.address
        buckets = self.buckets.of(send.user, address, send.slot.name, now_ms)
        at_once = self._at_once.of(send.user, address) if self._at_once.active else None
        return buckets if at_once is None else (*buckets, at_once)

    def _has_room(self, owner: int | str, size: int) -> bool:
        held = self._owners.get(owner)
        return (
            self._hold_ms > 0
            and (0 if held is None else held.bytes) + size <= self._bytes_max
            and self._gate.paced.bytes + size <= HOLD_SHARES * self._bytes_max
        )

    def _wait(self, owner: int | str, line: _PacedLine, send: Send) -> None:
        self._hold(owner, send)
        line.sends.append(send)
        if send.producer_id:
            self._names[send.producer_id, send.sequence] = send

    def _hold(self, owner: int | str, send: Send) -> None:
        account = self._owners.get(owner)
        if account is None:
            account = self._owners[owner] = self._gate.pacing_account()
        send.hold = self._gate.hold_paced(send.connection.in_flight, account, send.size)

    # --- sends go ----------------------------------------------------------------------------------------------------

    def due(self, now_ms: int) -> list[Send]:
        """Removes and returns the sends that may go now: from each line in turn, and from each line in its order."""
        self._judge_anew(now_ms)
        going: list[Send] = []
        self._at_once.begin()
        open_lines = [line for line in self._lines.values() if line.opens_ms() <= now_ms]
        while open_lines and len(going) < RELEASED_PER_TURN:
            left = []
            for line in open_lines:
                if line.opens_ms() > now_ms:  # another line of the same owner has used up the quota
                    continue
                send = line.sends.popleft()
                _take(line.buckets, send, now_ms)
                going.append(send)
                if line.sends:
                    left.append(line)
            open_lines = left
        charge((len(going) + len(self._lines)) // SENDS_PER_UNIT)
        self._gone(going)
        # Lines that have used up their quota go behind the others: the next turn begins with lines that still may send.
        for key in [key for key, line in self._lines.items() if line.opens_ms() > now_ms]:
            self._lines[key] = self._lines.pop(key)
        return going

    def _judge_anew(self, now_ms: int) -> None:
        """Looks up the quotas of the waiting lines again after any quota has changed, of at most JUDGED_PER_TURN lines
        in one turn. Otherwise a line that is never empty would keep the quotas of its first send."""
        rows = self.buckets.rules.rows
        if not self._stale and rows is not self._seen:
            self._seen, self._stale = rows, list(self._lines)
        for key in self._stale[-JUDGED_PER_TURN:]:
            line = self._lines.get(key)
            if line is not None:
                line.buckets = self._limiting(line.sends[0], now_ms)
        charge(min(len(self._stale), JUDGED_PER_TURN))
        del self._stale[-JUDGED_PER_TURN:]

    def overdue(self, now_ms: int) -> list[tuple[Send, Refusals]]:
        """Removes and returns the sends that have waited too long (see the module), each with the bucket or limit that
        holds it back longest. Returns at most REFUSED_PER_TURN; later calls return the others."""
        before_ms = now_ms - self._hold_ms
        late: list[tuple[Send, Refusals]] = []
        for line in self._lines.values():
            while (
                line.buckets and line.sends and line.sends[0].received_ms <= before_ms and len(late) < REFUSED_PER_TURN
            ):
                late.append((line.sends.popleft(), line.last_to_open()))
        self._gone([send for send, _ in late])
        return late

    def take_where(self, which: Callable[[Send], bool]) -> list[Send]:
        """Removes and returns the sends for which `which` is true."""
        taken: list[Send] = []
        for line in self._lines.values():
            taken += take_where(line.sends, which)
        self._gone(taken)
        return taken

    def take_to(self, topic: str) -> list[Send]:
        """Removes and returns the sends to a topic."""
        return self.take_where(lambda send: send.slot.name == topic)

    def take_all(self) -> list[Send]:
        """Removes and returns all sends; those of a line are in their order."""
        return self.take_where(lambda send: True)

    def _gone(self, sends: list[Send]) -> None:
        if not sends:
            return
        for send in sends:
            self._names.pop((send.producer_id, send.sequence), None)
        self._lines = {key: line for key, line in self._lines.items() if line.sends}
        self._owners = {owner: held for owner, held in self._owners.items() if held.requests}

    # --- repetitions -------------------------------------------------------------------------------------------------

    def find(self, producer_id: bytes, sequence: int) -> Send | None:
        """Returns the send with this identity; None if none waits here."""
        return self._names.get((producer_id, sequence)) if self._names else None

    def replace(self, old: Send, new: Send) -> bool:
        """Puts the repetition `new` in the place of the waiting send `old`, with the arrival time of `old`, so that the
        sends behind it do not wait longer. Returns False if `old` does not wait here."""
        if self.find(old.producer_id, old.sequence) is not old:
            return False
        owner, line = next((key[0], line) for key, line in self._lines.items() if old in line.sends)
        line.sends[line.sends.index(old)] = new
        new.received_ms = old.received_ms
        new.hold.ended()
        self._hold(owner, new)
        self._names[new.producer_id, new.sequence] = new
        return True


def _take(buckets: tuple[Limiting, ...], send: Send, now_ms: int) -> None:
    for bucket in buckets:
        bucket.take(now_ms, len(send.batch) or 1, send.size)
