"""The rules of the send window, one by one, without a network or a clock."""

from __future__ import annotations

import concurrent.futures
import random

from raftmq.client.errors import Denied, Failed, NotFound, RaftMQError, Refused, Unknown, Unreachable, error_of
from raftmq.client.producing.send_window import NextStep, Pending, SendWindow
from tests.support.rows import each_row

OK, AGAIN, MAYBE, FINAL = NextStep.OK, NextStep.AGAIN, NextStep.AGAIN_MAYBE, NextStep.FINAL

TABLE = [
    # code, remark, verdict, error at first, error after an attempt without an answer
    (0, None, OK, None, None),
    (10, None, OK, None, None),
    (11, None, OK, None, None),
    (12, None, OK, None, None),
    (14, "no leader", AGAIN, Refused, Unknown),
    (2, "busy", AGAIN, Refused, Unknown),
    (215, "quota", AGAIN, Refused, Unknown),
    (1, "[UNKNOWN] undecided", MAYBE, Unknown, Unknown),
    (1, "boom", FINAL, Failed, Unknown),
    (1, None, FINAL, Failed, Unknown),
    (17, "gone", FINAL, NotFound, Unknown),
    (22, "gone", FINAL, NotFound, Unknown),
    (24, "gone", FINAL, NotFound, Unknown),
    (26, "gone", FINAL, NotFound, Unknown),
    (3, "what", FINAL, Refused, Unknown),
    (13, "long", FINAL, Refused, Unknown),
    (16, "perm", FINAL, Denied, Unknown),
    (25, "old", FINAL, Refused, Unknown),
    (29, "queue", FINAL, Refused, Unknown),
    (501, "elsewhere", FINAL, Unknown, Unknown),
]


def pending(deadline: float = 10.0) -> Pending:
    return Pending("t", concurrent.futures.Future(), ("id",), 1, deadline, False)


def sent(window: SendWindow, count: int, deadline: float = 10.0) -> list[Pending]:
    made = [pending(deadline) for _ in range(count)]
    for p in made:
        p.frame = b"%d" % window.admit(p)
        p.in_flight = True
    return made


@each_row("lost_before", [False, True])
@each_row(("code", "remark", "verdict", "first", "later"), TABLE)
def test_reply_table(
    code: int, remark: str | None, verdict: NextStep, first: type | None, later: type | None, lost_before: bool
) -> None:
    window = SendWindow(random.Random(1))
    (p,) = sent(window, 1)
    if lost_before:
        window.lost()
        window.take_again(0.0)
    assert window.answer(p, code, remark) is verdict
    assert (len(window) == 0) == (verdict in (OK, FINAL))
    expected = later if lost_before else first
    if verdict is FINAL:
        assert type(error_of(code, remark, "send", maybe=p.maybe)) is expected
    elif verdict is not OK:
        ((_, error),) = window.expire(11.0)
        assert type(error) is expected
        assert error.message_ids == ("id",)


def test_low_is_the_smallest_unsettled_sequence() -> None:
    window = SendWindow(random.Random(1))
    assert window.low == 1
    first, second, third = sent(window, 3)
    window.answer(second, 0, None)
    assert window.low == 1
    window.answer(first, 0, None)
    assert window.low == 3
    window.answer(third, 13, None)
    assert window.low == 4


def test_an_expired_sequence_counts_as_settled() -> None:
    window = SendWindow(random.Random(1))
    sent(window, 1, deadline=1.0)
    sent(window, 1, deadline=2.0)
    ((_, error),) = window.expire(1.0)
    assert isinstance(error, Unknown)
    assert window.low == 2


def test_after_a_loss_everything_unanswered_goes_again_in_order() -> None:
    window = SendWindow(random.Random(1))
    made = sent(window, 5)
    window.answer(made[1], 0, None)
    window.answer(made[3], 14, None)
    window.lost()
    assert window.take_again(0.0) == [b"1", b"3", b"4", b"5"]
    assert not window.again
    assert [p.maybe for p in made] == [True, False, True, False, True]


def test_a_refusal_alone_goes_again_alone() -> None:
    window = SendWindow(random.Random(1))
    made = sent(window, 3)
    window.answer(made[1], 2, "busy")
    assert window.again
    assert window.take_again(0.0) == [b"2"]


def test_what_a_quota_would_hold_beyond_the_deadline_is_not_sent_again() -> None:
    """So it is Refused then, and not Unknown."""
    window = SendWindow(random.Random(1))
    early, late = sent(window, 2, deadline=10.0)
    for each, answered_at in ((early, 3.0), (late, 6.0)):
        each.sent_at = 0.0
        window.answer(each, 215, "quota", answered_at)
    window.next_rounds(6.0)
    assert window.take_again(6.0) == [b"1"]
    assert (early.in_flight, late.in_flight) == (True, False)
    (_, unknown), (_, refused) = window.expire(11.0)
    assert (type(unknown), type(refused)) == (Unknown, Refused)


def test_a_reply_after_settlement_finds_nothing() -> None:
    window = SendWindow(random.Random(1))
    (p,) = sent(window, 1)
    window.answer(p, 0, None)
    assert window.find(1) is None


def test_never_sent_is_unreachable_not_unknown() -> None:
    window = SendWindow(random.Random(1))
    window.admit(pending(deadline=1.0))
    ((_, error),) = window.expire(2.0)
    assert type(error) is Unreachable
    assert error.retryable


@each_row("kind", [Failed, Refused, NotFound, Unknown, Unreachable])
def test_errors_carry_code_retryable_and_hint(kind: type[RaftMQError]) -> None:
    error = kind("why", code=9, retryable=True, hint="do this", message_ids=("a",))
    assert (error.code, error.retryable, error.hint, str(error)) == (9, True, "do this", "why")
    copy = error.about(("b",))
    assert type(copy) is kind
    assert (copy.code, copy.hint, copy.message_ids) == (9, "do this", ("b",))


def test_opaque_wraps_with_the_sequence() -> None:
    window = SendWindow(random.Random(1))
    window._next = 0x7FFFFFFF
    first, second = sent(window, 2)
    assert window.find(0x7FFFFFFF) is first
    assert window.find(0) is second
