"""A topic over its quota is paced: few requests reach a node for one message that is stored, and the rate is used."""

from __future__ import annotations

import concurrent.futures
import random
from collections import deque
from typing import NamedTuple

import pytest

from raftmq.client.producing.send_window import NextStep, Pending, SendWindow, out_of_time
from raftmq.client.producing.topic_pace import FORGET_S, PAUSE_S_MAX, TopicPace
from raftmq_wire.codes import ResponseCode

TICK_S = 0.01
REMARK = "topic=orders may have 200 messages sent a second (quota topic=orders)"


class Outcome(NamedTuple):
    requests: int
    stored: int


class Leader:
    """Stores `rate` messages a second, holds what is over that for `hold_s`, and then refuses it."""

    def __init__(self, rate: float, hold_s: float) -> None:
        self._rate, self._hold_s = rate, hold_s
        self._tokens = rate
        self._held: deque[tuple[float, Pending]] = deque()
        self.requests = 0

    def takes(self, pending: Pending, now: float) -> None:
        self.requests += 1
        self._held.append((now, pending))

    def answers(self, now: float) -> list[tuple[Pending, int]]:
        """Returns what it answers now."""
        self._tokens = min(self._rate, self._tokens + self._rate * TICK_S)
        told: list[tuple[Pending, int]] = []
        while self._held:
            came, pending = self._held[0]
            if self._tokens >= 1:
                self._tokens -= 1
                told.append((pending, ResponseCode.SUCCESS))
            elif now - came >= self._hold_s:
                told.append((pending, ResponseCode.FLOW_CONTROL))
            else:
                break
            self._held.popleft()
        return told


def new(window: SendWindow, deadline: float = 1e9, topic: str = "orders") -> Pending:
    made = Pending(topic, concurrent.futures.Future(), ("id",), 1, deadline, False)
    made.frame = b"%d" % window.admit(made)
    return made


def played(rate: float, hold_s: float, in_flight: int, seconds: float = 20.0) -> Outcome:
    """Lets a producer send as much as the window takes, with so many unsettled at most."""
    window, leader = SendWindow(random.Random(1)), Leader(rate, hold_s)
    sent: dict[bytes, Pending] = {}
    stored, look_at = 0, 0.0
    for tick in range(int(seconds / TICK_S)):
        now = tick * TICK_S
        if now >= look_at:
            wait_s = window.next_rounds(now)
            look_at = now + (TICK_S if wait_s is None else wait_s)
        for frame in window.take_again(now) if window.again else []:
            leader.takes(sent[frame], now)
        while len(window) < in_flight:
            pending = new(window)
            sent[pending.frame] = pending
            if window.begin(pending, now):
                leader.takes(pending, now)
        for pending, code in leader.answers(now):
            stored += window.answer(pending, code, REMARK, now) is NextStep.OK
    return Outcome(leader.requests, stored)


@pytest.mark.parametrize(("rate", "in_flight"), [(200, 160), (200, 600), (50, 40), (10, 100), (2, 40)])
@pytest.mark.parametrize("hold_s", [0.0, 1.0])
def test_few_requests_are_sent_for_one_that_is_stored(rate: int, in_flight: int, hold_s: float) -> None:
    told = played(rate, hold_s, in_flight)
    assert told.stored >= 0.8 * 20 * rate, told
    assert told.requests <= 3 * told.stored, told


def test_what_is_held_for_less_than_a_second_is_sent_once() -> None:
    told = played(200, 1.0, 160)
    assert told.requests <= told.stored + 160


def refused(window: SendWindow, pending: Pending, now: float = 0.0) -> None:
    pending.in_flight = True
    assert window.answer(pending, ResponseCode.FLOW_CONTROL, REMARK, now) is NextStep.AGAIN


def test_another_topic_does_not_wait_for_one_over_its_quota() -> None:
    window = SendWindow(random.Random(1))
    refused(window, new(window))
    assert not window.begin(new(window), 0.0)
    assert window.begin(new(window, topic="others"), 0.0)


def test_a_topic_that_nothing_is_refused_of_any_more_has_no_pace() -> None:
    window = SendWindow(random.Random(1))
    first = new(window)
    refused(window, first)
    assert window.next_rounds(PAUSE_S_MAX) is not None
    assert window.take_again(PAUSE_S_MAX) == [first.frame]
    assert not window.take_again(PAUSE_S_MAX)
    window.answer(first, ResponseCode.SUCCESS, None, PAUSE_S_MAX)
    assert window.next_rounds(2 * PAUSE_S_MAX) is not None  # the next round, which nothing waits for
    assert window.next_rounds(2 * PAUSE_S_MAX + FORGET_S) is None
    assert window.begin(new(window), 5.0)


def test_a_lost_connection_ends_the_requests_of_a_round() -> None:
    window = SendWindow(random.Random(1))
    first = new(window)
    refused(window, first)
    window.next_rounds(1.0)
    window.take_again(1.0)
    window.lost("it broke")
    window.next_rounds(2.0)
    assert window.take_again(2.0) == [first.frame]


def test_a_message_that_waited_for_its_pace_until_its_deadline_is_refused_by_the_quota() -> None:
    window = SendWindow(random.Random(1))
    refused(window, new(window))
    late = new(window)
    assert not window.begin(late, 0.0)
    error = out_of_time(late)
    assert error.code == ResponseCode.FLOW_CONTROL
    assert "quota topic=orders" in str(error)


def test_a_pause_doubles_while_nothing_is_stored_and_is_short_again_later() -> None:
    pace = TopicPace(random.Random(1), 0.0)
    now, pauses = 0.0, []
    for code in [ResponseCode.FLOW_CONTROL] * 6 + [ResponseCode.SUCCESS] * 12:
        if code == ResponseCode.FLOW_CONTROL:
            pace.refused(code, REMARK, now)
        else:
            pace.stored()
        now = pace.due
        assert pace.next_round(now)
        pauses.append(pace.due - now)
    assert max(pauses) > 0.7 * PAUSE_S_MAX
    assert pauses[-1] < 0.2 * PAUSE_S_MAX
