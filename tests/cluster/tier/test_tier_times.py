"""Times and positions of messages that have left the nodes: clients are answered as if all were still there."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

import msgspec
import pytest

from cluster.broker.message_queries import MessageQueries
from cluster.broker.reads.message_lookup import StoredMessage
from cluster.broker.refusal import Refused
from cluster.broker.rights import Party
from jepsen_like.sim.machines.tier_store import Weather
from raftmq_wire.codec import encode_frame
from raftmq_wire.codes import RequestCode, ResponseCode
from statemachine.access.users import NOBODY
from statemachine.index_file.index_reader import drive, open_index
from statemachine.payload import ITEM
from tests.support.tiered_cluster import EVICTING, Tiered

QUEUE = 0


class Asked:
    """Nodes that have evicted a part of the topic, and a client of their leader."""

    def __init__(self, made: Tiered) -> None:
        self.made = made
        self.leader = made.sim.leader()
        self.state = self.leader.state
        self.topic_id = self.state.topics["t"].id
        self.items = self._items()
        """(position, store time) by queue offset: of all messages, wherever they lie."""
        self._opaque = 1000

    def _items(self) -> list[tuple[int, int]]:
        found: dict[int, tuple[int, int]] = {}
        queue = self.topic_id, QUEUE
        for row in self.state.tier.rows:
            data = next(self.made.object(part.name) for part in row.parts if part.name.startswith("index/"))

            def read(at: int, length: int, data: bytes = data) -> bytes:
                return data[at : at + length]

            index = drive(open_index(len(data)), read)
            run = drive(index.queue(*queue), read)
            if run is not None:
                packed = drive(index.items(run, run.first_offset, run.count), read)
                for offset, item in enumerate(ITEM.iter_unpack(packed), run.first_offset):
                    found[offset] = item[0], item[4]
        for item in self.state.fetch(*queue, self.state.min_offset(*queue), 1 << 20):
            found[item.queue_offset] = item.position, item.store_time_ms
        assert sorted(found) == list(range(self.state.max_offset(*queue)))
        return [found[offset] for offset in sorted(found)]

    def ask(self, code: RequestCode, **ext: object) -> tuple[int, dict[str, str]]:
        """(code, fields) of the answer."""
        path = self.leader.connect()
        self._opaque += 1
        path.ask(encode_frame(code, self._opaque, 0, ext={key: str(value) for key, value in ext.items()}))
        self.made.sim.loop.run_until(lambda: self._opaque in path.replies, 60, "an answer")
        answered, _, fields = path.replies[self._opaque][0]
        return answered, msgspec.json.decode(fields) if fields else {}

    def view(self, position: int) -> StoredMessage | Refused:
        """Returns a node's answer about the message at a position."""
        access = self.leader.running.serving.tier_access
        assert access is not None
        broker = self.leader.running.serving.broker
        queries = MessageQueries(self.leader.running.serving.services, broker.rights, access.keys)
        answers: list[StoredMessage | Refused] = []
        asker = Party(NOBODY, "127.0.0.1")
        self.leader.run(
            lambda: queries.by_position(asker, position, answers.append, lambda error: pytest.fail(str(error)))
        )
        self.made.sim.loop.run_until(lambda: bool(answers), 60, "an answer")
        return answers[0]

    def by_time(self, time_ms: int, boundary: str) -> int:
        code, ext = self.ask(
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, topic="t", queueId=QUEUE, timestamp=time_ms, boundaryType=boundary
        )
        assert code == ResponseCode.SUCCESS
        return int(ext["offset"])


@pytest.fixture
def asked() -> Iterator[Asked]:
    with Tiered(31, **EVICTING) as made:
        made.send(70)
        made.upload_all()
        made.sim.loop.run_until(lambda: made.leader_state().trim_position > 0, 60, "an EVICT")
        made.sim.settle()
        yield Asked(made)


def test_times_and_positions_are_answered_from_the_tier(asked: Asked) -> None:
    times = [stored for _, stored in asked.items]
    evicted = asked.state.min_offset(asked.topic_id, QUEUE)
    assert 0 < evicted < len(times)
    for offset in (0, 1, evicted // 2, evicted - 1, evicted, len(times) - 1):
        for time_ms in (times[offset] - 1, times[offset], times[offset] + 1):
            assert asked.by_time(time_ms, "LOWER") == bisect_left(times, time_ms)
            assert asked.by_time(time_ms, "UPPER") == max(0, bisect_right(times, time_ms) - 1)
    code, ext = asked.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, topic="t", queueId=QUEUE)
    assert (code, int(ext["timestamp"])) == (ResponseCode.SUCCESS, times[0])
    for offset in (0, evicted - 1, evicted):
        position = asked.items[offset][0]
        assert asked.ask(RequestCode.VIEW_MESSAGE_BY_ID, offset=position)[0] == ResponseCode.SUCCESS
        stored = asked.view(position)
        assert isinstance(stored, StoredMessage)
        assert (stored.message.position, stored.message.queue_offset) == (position, offset)
    assert asked.ask(RequestCode.VIEW_MESSAGE_BY_ID, offset=asked.items[1][0] + 1)[0] == ResponseCode.SYSTEM_ERROR


def test_while_the_store_is_away_nobody_guesses(asked: Asked) -> None:
    asked.made.store.weather = Weather(refused=1.0)
    times = [stored for _, stored in asked.items]
    away = ResponseCode.SERVICE_NOT_AVAILABLE
    search = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
    assert asked.ask(search, topic="t", queueId=QUEUE, timestamp=times[0])[0] == away
    assert asked.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, topic="t", queueId=QUEUE)[0] == away
    assert asked.ask(RequestCode.VIEW_MESSAGE_BY_ID, offset=asked.items[0][0])[0] == away
    assert asked.by_time(times[-1], "LOWER") == bisect_left(times, times[-1]), "that one lies here"
