"""An object whose only copy was removed from the store: readers are told what and where, and the store has peace."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from cluster.tier.fetch.errors import PAUSE_MAX_S
from cluster.tier.scrub.scrubber import ScrubOptions
from raftmq.client.errors import Refused, error_of
from statemachine.tier import LOG_PREFIX
from tests.support.sim_cluster import SimNode
from tests.support.tier_pulls import BUSY, FOUND, Answer, pull, queues, read_all
from tests.support.tiered_cluster import EVICTING, FOLDER, Tiered


@pytest.fixture
def evicted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Tiered]]:
    """The first segments are in the tier alone."""
    with ExitStack() as running:

        def make(seed: int) -> Tiered:
            made = running.enter_context(Tiered(seed, **EVICTING))
            made.send(100)
            made.upload_all()
            made.sim.loop.run_until(lambda: made.leader_state().trim_position > 2 << 14, 300, "an EVICT")
            made.sim.loop.run_until(lambda: made.leader_state().sweep is None, 300, "its end")
            made.sim.settle()
            for node in made.sim.running:  # else the file of the segment, which is kept for a while, has it
                assert node.running.serving.tier_access is not None
                monkeypatch.setattr(node.running.serving.tier_access.reading.log, "_elsewhere", None)
            return made

        yield make


class Requests:
    """Counts what the store is asked of one object, and takes it away."""

    def __init__(self, made: Tiered, prefix: str) -> None:
        row = made.leader_state().tier.rows[0]
        (self.name,) = (f"{FOLDER}/{part.name}" for part in row.parts if part.name.startswith(prefix))
        self._objects = made.store.inner.objects
        self.count = 0
        real = made.store.get_range

        async def get_range(name: str, start: int, stop: int) -> bytes:
            self.count += name == self.name
            return await real(name, start, stop)

        made.store.get_range = get_range  # type: ignore[method-assign]
        self._data: Any = self._objects.pop(self.name)

    def put_back(self) -> None:
        self._objects[self.name] = self._data


def pulls(made: Tiered, node: SimNode, queue_id: int, seconds: int) -> Answer:
    """Like an impatient consumer: five a second."""
    for _ in range(5 * seconds):
        answer = pull(made, node, queue_id, 0)
        assert answer.code == BUSY, answer
        made.sim.loop.run_for(0.2)
    return answer


def lines(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [
        each.getMessage()
        for each in caplog.records
        if each.name.startswith("cluster.tier.fetch") and each.levelno == level
    ]


@pytest.mark.ci
@pytest.mark.parametrize("prefix", [LOG_PREFIX, "index/"])
def test_an_object_that_is_missing_is_named_and_asked_for_ever_less_often(
    evicted: Callable[[int], Tiered], caplog: pytest.LogCaptureFixture, prefix: str
) -> None:
    caplog.set_level("INFO", logger="cluster.tier.fetch")
    made = evicted(50)
    node, (_, queue_id) = made.sim.leader(), queues(made)[0]
    missing = Requests(made, prefix)
    answer = pulls(made, node, queue_id, 240)
    assert answer.remark.startswith(f"the tier does not give t queue {queue_id} offsets ")
    assert f"there is no {missing.name}" in answer.remark
    assert "raftmq tier repair" in answer.remark
    assert missing.count < 12, "1,200 pulls"
    assert len(lines(caplog, logging.WARNING)) == 2, "the object, and the queue that is read"
    missing.put_back()
    made.sim.loop.run_for(PAUSE_MAX_S)
    assert pull(made, node, queue_id, 0).code == FOUND
    assert len(lines(caplog, logging.INFO)) == 2
    assert len(lines(caplog, logging.WARNING)) == 2


def test_the_remark_says_which_offsets_and_where_to_go_on(evicted: Callable[[int], Tiered]) -> None:
    made = evicted(51)
    node, (_, queue_id) = made.sim.leader(), queues(made)[0]
    Requests(made, LOG_PREFIX)
    remark = pull(made, node, queue_id, 0).remark
    behind = int(remark.rsplit("read from offset ", 1)[1])
    assert f"t queue {queue_id} offsets 0 to {behind - 1}: " in remark
    answer = pull(made, node, queue_id, behind)
    assert (answer.code, answer.offsets[0]) == (FOUND, behind)
    error = error_of(BUSY, remark, "pull of t")
    assert isinstance(error, Refused)
    assert "raftmq tier verify" in error.hint
    assert "slower" not in error.hint
    assert "slower" in error_of(BUSY, "too many requests", "pull of t").hint


def test_what_a_scrub_has_repaired_is_read_at_once(evicted: Callable[[int], Tiered]) -> None:
    made = evicted(52)
    node, (topic_id, queue_id) = made.sim.leader(), queues(made)[0]
    missing = Requests(made, "index/")
    pulls(made, node, queue_id, 60)
    scrubs = node.running.keeping.tier_scrubs
    assert scrubs is not None
    assert node.process is not None
    made.sim.loop.call_outside(0.0, node.process.run, scrubs.begin, ScrubOptions(repairs=True))
    made.sim.loop.run_for(0.1)
    made.sim.loop.run_until(lambda: not scrubs.view.running, 60, "a scrub")
    assert scrubs.view.repaired == 1
    assert read_all(made, node, queue_id) == list(range(made.leader_state().max_offset(topic_id, queue_id)))
    assert missing.name in made.store.inner.objects
