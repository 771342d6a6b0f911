"""A handler of a row with `Serves.CONFIRMED` is called once a majority has confirmed the leader, whatever it reads; its
answer has the commits that came before, if the row says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cluster.broker.refusal import Reason, Refused
from cluster.remoting.handler_table import RETRIES, RETRY_MS, once_confirmed
from cluster.requests.table import ROWS, SENDS, VERBS
from cluster.requests.verb import Serves, Verb
from tests.support.rows import each_row

CONFIRMED = [verb for verb in ROWS if verb.serves is Serves.CONFIRMED]
FIELDS = {"consumerGroup": "g"}


class Steps:
    """Notes what happens to a request, in order."""

    def __init__(self, node: Any, handler: Callable[[Any], None] | None = None) -> None:
        self.seen: list[str] = []
        self._node, self._handler = node, handler
        self._settle, self._read = node.settle_offsets, node.read_index
        node.settle_offsets, node.read_index = self._settling, self._reading
        node.table = once_confirmed(node, dict.fromkeys(VERBS.keys() - SENDS, self._handle))

    def _settling(self, group: str, done: Callable[[], None]) -> None:
        self.seen.append(f"settle {group}")
        self._settle(group, done)

    def _reading(self, done: Callable[[bool], None]) -> None:
        self.seen.append("confirm")
        self._read(done)

    def _handle(self, request: Any) -> None:
        self.seen.append("handle")
        (self._handler or (lambda request: request.reply(0)))(request)


def test_which_rows_read_offsets() -> None:
    """By hand, of RocketMQ's: what a group has committed (14), and how far it is (208)."""
    settling = {verb.code: verb.settles for verb in ROWS if verb.settles}
    assert settling | {14: "consumerGroup", 208: "consumerGroup"} == settling
    for verb in ROWS:
        if verb.settles:
            assert verb.serves is Serves.CONFIRMED
            assert f"{verb.settles}!" in verb.fields.split()


@pytest.mark.parametrize("verb", CONFIRMED, ids=lambda verb: verb.name)
def test_the_handler_comes_last(node: Any, verb: Verb) -> None:
    steps = Steps(node)
    assert node.ask(verb.code, **FIELDS).answer.code == 0
    assert steps.seen == [*(["settle g"] if verb.settles else []), "confirm", "handle"]


@each_row("verb", CONFIRMED, ids=lambda verb: verb.name)
def test_what_nobody_confirms_reaches_no_handler(node: Any, verb: Verb) -> None:
    steps = Steps(node)
    node.confirms = False
    request = node.ask(verb.code, **FIELDS)
    node.advance(10 * RETRIES * RETRY_MS)
    assert "handle" not in steps.seen
    assert [each.code for each in request.replies] == ([] if verb.is_silent else [14])
    assert steps.seen.count("confirm") == (1 + RETRIES if verb.is_silent else 1)


def test_other_handlers_are_called_at_once(node: Any) -> None:
    steps = Steps(node)
    others = [verb.code for verb in ROWS if verb.serves is not Serves.CONFIRMED and verb.code not in SENDS]
    for code in others:
        node.ask(code, **FIELDS)
    assert steps.seen == ["handle"] * len(others)


def test_a_group_that_is_not_named_is_refused_before_anything(node: Any) -> None:
    steps = Steps(node)
    for code in (14, 208):
        assert node.ask(code).answer.code == 29
    assert steps.seen == []


def test_a_silent_read_ends_with_its_client(node: Any, connect: Any) -> None:
    steps, gone = Steps(node), connect()
    node.confirms = False
    node.ask(14, connection=gone, **FIELDS)
    gone.close()
    node.advance(10 * RETRIES * RETRY_MS)
    assert (steps.seen.count("confirm"), node.timers) == (1, 0)


@pytest.mark.parametrize(
    ("error", "code"), [(Refused(Reason.NO_TOPIC, "none"), 17), (KeyError("a row that cannot be read"), 1)]
)
def test_a_failure_is_the_answer_to_this_request_alone(node: Any, error: Exception, code: int) -> None:
    """Reads that are confirmed together are answered in one turn."""

    def fails(request: Any) -> None:
        raise error

    Steps(node, fails)
    for each in (14, 30):
        assert node.ask(each, **FIELDS).answer.code == code
