"""`consume --group`: what was printed is committed soon, and at the signals that end it; what was not, never."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner

from raftmq.client.message import Message
from raftmq.commands.messages import consume
from raftmq.commands.messages.printing import Printer
from raftmq.commands.stop import Stop


def message(offset: int) -> Message:
    return Message(
        topic="t",
        queue_id=0,
        queue_offset=offset,
        position=0,
        body=b"%d" % offset,
        key=None,
        tag=None,
        properties={},
        message_id="",
        born_ms=0,
        store_ms=0,
    )


class Member:
    """A consumer whose polls are the steps of a story: a message's offset, None (nothing came), or a call."""

    def __init__(self, *steps: int | Callable[[], None] | None) -> None:
        self._steps = list(steps)
        self.at_end = False
        self.handed_out = 0
        self.commits: list[int] = []

    def poll(self, timeout_s: float | None = None) -> Message | None:
        assert timeout_s is not None, "nobody waits for ever"
        if not self._steps:
            self.at_end = True
            return None
        step = self._steps.pop(0)
        if callable(step):
            step()
            return None
        if step is None:
            return None
        self.handed_out = step + 1
        return message(step)

    def commit(self) -> None:
        self.commits.append(self.handed_out)


def send(number: signal.Signals) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


@pytest.fixture
def stop() -> Iterator[Stop]:
    with Stop() as made:
        yield made


class Interrupting(Printer):
    """A printer whose reader is stuck until the signal comes."""

    def show(self, message: Message) -> None:
        send(signal.SIGTERM)()


def read(
    member: Member,
    stop: Stop,
    most: int | None = None,
    printer: type[Printer] = Printer,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    printed = printer(as_json=False, form="")
    consume.print_and_commit(member, most, stop, printed, clock)  # type: ignore[arg-type]
    return printed.count


def test_what_was_printed_is_committed_though_nothing_more_comes(stop: Stop) -> None:
    now = [100.0]
    member = Member(0, 1, None, lambda: now.__setitem__(0, 102.0), None, None, 2, lambda: now.__setitem__(0, 104.0))
    assert read(member, stop, clock=lambda: now[0]) == 3
    assert member.commits == [2, 3], "after the last message of each burst, once"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_between_two_messages(stop: Stop, number: signal.Signals) -> None:
    """Leaving the consumer's block then commits all that was handed out: all of it is printed."""
    member = Member(0, send(number), 1)
    assert read(member, stop) == 1
    assert member.handed_out == 1
    assert stop.asked


def test_a_signal_while_a_message_is_printed_interrupts(stop: Stop) -> None:
    """Its reader may be stuck; the message is not committed and comes again."""
    with pytest.raises(KeyboardInterrupt):
        read(Member(0, 1), stop, printer=Interrupting)


def test_a_second_signal_does_not_wait(stop: Stop) -> None:
    send(signal.SIGTERM)()
    assert stop.asked
    with pytest.raises(KeyboardInterrupt):
        send(signal.SIGTERM)()


def test_the_most_that_was_asked_for(stop: Stop) -> None:
    member = Member(0, 1, 2)
    assert read(member, stop, most=2) == 2
    assert member.handed_out == 2


def test_order_needs_a_group() -> None:
    result = CliRunner().invoke(consume.consume, ["orders", "--ordered"])
    assert result.exit_code == 2
    assert "--ordered needs --group" in result.output
