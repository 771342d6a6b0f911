"""The judges of a cell of the compat matrix: one client, one feature, everything it sent and was given.

Pure functions over what was recorded, so that each rule has a test that breaks it (test_compat_judges.py). The number
of a message tells what it asks for, the same way in every client's program.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

ATTEMPTS = 4
"""Deliveries of a message that always fails: one, and as many as the group retries (3)."""
ORPHANS = "orphan"
"""Prefix of the keys of the half messages whose producer was killed."""
CLOCKS_S = 0.003
"""The precision of due times: the client's clock and those of two leaders count whole milliseconds."""
KNOWN_S = 5.0
"""Seconds after its first request until a client can be answered: a heartbeat has named it (Go: once it knows a
route)."""
RECOVERED_S = 45.0
"""This long after the last kill every client has asked for its routes again (30 s) and resumed."""


@dataclass(frozen=True)
class Send:
    """One send (or request) of the program and how it ended. Times in s, by the client's clock."""

    key: str
    started: float
    ended: float
    error: str | None = None
    reply: str | None = None


@dataclass(frozen=True)
class Delivery:
    """One message given to one reader, in the order in which they were given."""

    key: str
    at: float
    reader: str = "a"
    tried: int = 0
    queue: int = 0
    offset: int = 0


@dataclass
class Seen:
    """Everything recorded of one cell."""

    sends: list[Send] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    dead: list[str] = field(default_factory=list)
    """Keys in the group's dead letters."""
    kills: list[float] = field(default_factory=list)
    """Times at which a leader was killed, in s."""
    reset_at: float | None = None
    """The time when the group's offsets were set back to the start, in s: before the request for it was sent."""

    @property
    def acknowledged(self) -> list[Send]:
        """One for each message: Java 5.3 reports some replies twice."""
        return list({send.key: send for send in self.sends if send.error is None}.values())

    def at_each_reader(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for delivery in self.deliveries:
            found.setdefault(delivery.reader, set()).add(delivery.key)
        return found


Judge = Callable[[Seen], Iterator[str]]

NAMELESS = (
    (re.compile(r"\b\d{1,3}(\.\d{1,3}){3}(:\d+)?"), "ADDRESS"),
    (re.compile(r"\b[0-9A-Fa-f]{16,}\b"), "ID"),
    (re.compile(r"(?<!CODE: )(?<!code )\b\d+"), "N"),
)
"""What differs between two errors of one kind, and what stands for it. Response codes stay."""
ERROR_MAX = 240
"""Letters of an error that are kept."""


def number_of(key: str) -> int:
    return int(key.rpartition("-")[2])


def failures(key: str) -> int:
    """Returns the number of attempts that fail at a message; ATTEMPTS: all of them."""
    return {0: ATTEMPTS, 1: 1, 2: 2}.get(number_of(key) % 20, 0)


def delay_s(feature: str, key: str) -> float:
    """Returns the shortest time between a message's send and its delivery."""
    if feature == "delay":
        return float(1 + number_of(key) % 4)
    return (500 + number_of(key) % 7 * 700) / 1000


def committed(key: str) -> bool:
    """Returns True if the producers commit a half message in the end."""
    if key.startswith(ORPHANS):
        return number_of(key) % 2 == 0
    return number_of(key) % 10 not in (0, 2)


def _some(keys: Iterable[str]) -> str:
    found = sorted(keys, key=number_of)
    return f"{len(found)} ({', '.join(found[:5])}{', ...' if len(found) > 5 else ''})"


def gave_up(seen: Seen) -> dict[str, int]:
    """Returns why sends failed, as the program was told: errors with the numbers and addresses taken out, and how many
    sends ended with each, most frequent first."""
    kinds: Counter[str] = Counter()
    for send in seen.sends:
        if send.error is not None:
            kind = " ".join(send.error.split())
            for pattern, word in NAMELESS:
                kind = pattern.sub(word, kind)
            kinds[kind[:ERROR_MAX]] += 1
    return dict(kinds.most_common())


def _missing(seen: Seen, wanted: Iterable[str]) -> Iterator[str]:
    gone = set(wanted) - {delivery.key for delivery in seen.deliveries}
    if gone:
        yield f"acknowledged and not consumed: {_some(gone)}"


def _strangers(seen: Seen, unwanted: Callable[[str], bool], what: str) -> Iterator[str]:
    found = {delivery.key for delivery in seen.deliveries if unwanted(delivery.key)}
    if found:
        yield f"{what}: {_some(found)}"


def judge_plain(seen: Seen) -> Iterator[str]:
    yield from _missing(seen, (send.key for send in seen.acknowledged))


def judge_retry(seen: Seen) -> Iterator[str]:
    """The dead letters are exactly those that failed often enough, and each attempt was made."""
    yield from judge_plain(seen)
    tries: dict[str, set[int]] = {}
    for delivery in seen.deliveries:
        tries.setdefault(delivery.key, set()).add(delivery.tried)
    dead = set(seen.dead)
    failed_often_enough = {key for key, tried in tries.items() if failures(key) == ATTEMPTS and ATTEMPTS - 1 in tried}
    if dead - failed_often_enough:
        yield f"dead letters that did not fail often enough: {_some(dead - failed_often_enough)}"
    if failed_often_enough - dead:
        yield f"failed often enough and no dead letter: {_some(failed_often_enough - dead)}"
    untried = {key for key, tried in tries.items() if not set(range(min(failures(key), ATTEMPTS - 1) + 1)) <= tried}
    if untried:
        yield f"not delivered again as often as they failed: {_some(untried)}"


def _judge_due(feature: str) -> Judge:
    def judge(seen: Seen) -> Iterator[str]:
        yield from judge_plain(seen)
        started = {send.key: send.started for send in seen.sends}
        early = {
            delivery.key: ahead_s
            for delivery in seen.deliveries
            if (send_s := started.get(delivery.key)) is not None
            and (ahead_s := send_s + delay_s(feature, delivery.key) - delivery.at) > CLOCKS_S
        }
        if early:
            yield f"delivered too early, by up to {max(early.values()):.3f} s: {_some(early)}"

    return judge


def judge_transactions(seen: Seen) -> Iterator[str]:
    yield from _missing(seen, (send.key for send in seen.acknowledged if committed(send.key)))
    yield from _strangers(seen, lambda key: not committed(key), "rolled back and consumed")


def judge_order(seen: Seen) -> Iterator[str]:
    """Nobody is given a message of a queue before the one before it was given to somebody."""
    yield from judge_plain(seen)
    reached: dict[int, int] = {}
    for delivery in seen.deliveries:
        before = reached.get(delivery.queue, -1)
        if delivery.offset > before + 1:
            given = f"offset {delivery.offset} was given to {delivery.reader} right after {before}"
            yield f"queue {delivery.queue}: {given}"
        reached[delivery.queue] = max(before, delivery.offset)


def judge_broadcast(seen: Seen) -> Iterator[str]:
    acknowledged = {send.key for send in seen.acknowledged}
    for reader in "ab":
        gone = acknowledged - seen.at_each_reader().get(reader, set())
        if gone:
            yield f"acknowledged and not consumed by {reader}: {_some(gone)}"


def _judge_selection(selected: Callable[[str], bool]) -> Judge:
    def judge(seen: Seen) -> Iterator[str]:
        yield from _missing(seen, (send.key for send in seen.acknowledged if selected(send.key)))
        yield from _strangers(seen, lambda key: not selected(key), "not selected and consumed")

    return judge


def judge_reset(seen: Seen) -> Iterator[str]:
    """Yields faults of a reset: messages acknowledged before it are consumed after it, if they were before or not."""
    yield from judge_plain(seen)
    if seen.reset_at is None:
        yield "the group was not reset"
        return
    again = {delivery.key for delivery in seen.deliveries if delivery.at >= seen.reset_at}
    gone = {send.key for send in seen.acknowledged if send.ended < seen.reset_at} - again
    if gone:
        yield f"not consumed again after the reset: {_some(gone)}"


def judge_requests(seen: Seen) -> Iterator[str]:
    """A reply belongs to its request. A request may be left without one only while a leader dies."""
    yield from judge_plain(seen)
    wrong = {send.key for send in seen.acknowledged if send.reply != f"reply to {send.key}"}
    if wrong:
        yield f"answered with the reply to another request: {_some(wrong)}"
    first = min((send.started for send in seen.sends), default=0.0)
    calm_from = max(first + KNOWN_S, max(seen.kills, default=float("-inf")) + RECOVERED_S)
    unanswered = {send.key for send in seen.sends if send.error is not None and send.started > calm_from}
    if unanswered:
        yield f"not answered although no leader died: {_some(unanswered)}"


JUDGES: dict[str, Judge] = {
    "retry": judge_retry,
    "delay": _judge_due("delay"),
    "timer": _judge_due("timer"),
    "transaction": judge_transactions,
    "orderly": judge_order,
    "broadcast": judge_broadcast,
    "tag": _judge_selection(lambda key: number_of(key) % 3 != 1),
    "sql": _judge_selection(lambda key: number_of(key) % 100 >= 50),
    "reset": judge_reset,
    "request": judge_requests,
}
"""The judges by feature; their keys are all features that there are."""


def waits_s(seen: Seen) -> list[float]:
    """Returns, for each kill, the longest time without a message that ended after it and began before the next kill."""
    gaps = list(pairwise(sorted(delivery.at for delivery in seen.deliveries)))
    ends = [*seen.kills[1:], float("inf")]
    return [
        max((later - earlier for earlier, later in gaps if later > kill and earlier < end), default=0.0)
        for kill, end in zip(seen.kills, ends, strict=False)
    ]


def delivered_twice(seen: Seen) -> int:
    """Deliveries of the same attempt of a message to the same reader, above one each."""
    counts = Counter((delivery.reader, delivery.key, delivery.tried) for delivery in seen.deliveries)
    return sum(count - 1 for count in counts.values())
