"""EVICT on three whole nodes: what retention takes from them stays in the tier, and nothing goes before it is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.broker.message_queries import MessageQueries
from cluster.broker.reads.message_lookup import KeyQuery, QueryResult, StoredMessage
from cluster.broker.refusal import Reason, Refused
from cluster.tier.scrub.scrubber import ScrubOptions
from jepsen_like.sim.machines.tier_store import CALM, Weather
from raftmq_wire.codec import encode_frame
from raftmq_wire.codes import RequestCode, ResponseCode
from statemachine.index_file.index_reader import drive, open_index
from statemachine.payload import ITEM
from statemachine.trim import Kept
from tests.support.sim_cluster import SimNode, codes, send_frame
from tests.support.tiered_cluster import EVICTING, FOLDER, Tiered


@pytest.fixture
def evicting() -> Iterator[Callable[..., Tiered]]:
    """Nodes that keep two segments or three."""
    with ExitStack() as running:
        yield lambda seed, **named: running.enter_context(Tiered(seed, **EVICTING, **named))


def ask_key(made: Tiered, node: SimNode, key: str) -> list[StoredMessage] | Refused:
    """A node's answer to a query for a UNIQ_KEY."""
    access = node.running.serving.tier_access
    assert access is not None
    queries = MessageQueries(node.running.serving.services, node.running.serving.broker.rights, access.keys)
    answers: list[QueryResult | Refused] = []
    client: Any = SimpleNamespace(closed=False, owner="client", work_waits=lambda more: None)
    query = KeyQuery(key, unique=True, count_max=9)
    node.run(lambda: queries.by_key(client, "t", query, answers.append, lambda error: pytest.fail(str(error))))
    made.sim.loop.run_until(lambda: bool(answers), 60, "an answer")
    return answers[0] if isinstance(answers[0], Refused) else answers[0].messages


def wait_evicted(made: Tiered) -> None:
    """Waits until as much is evicted as the rules say."""

    def done() -> bool:
        state = made.leader_state()
        here = state.applied_mark.end_position - state.trim_position
        return here <= (1 << 15) + (1 << 14) and state.sweep is None

    made.sim.loop.run_until(done, 300, "an EVICT")


def in_tier(made: Tiered) -> dict[tuple[int, int], list[int]]:
    """The queue offsets that the index files of the tier list."""
    found: dict[tuple[int, int], list[int]] = {}
    state = made.leader_state()
    for row in state.tier.rows:
        data = next((made.object(part.name) for part in row.parts if part.name.startswith("index/")), None)
        if data is None:
            continue

        def read(at: int, length: int, data: bytes = data) -> bytes:
            return data[at : at + length]

        index = drive(open_index(len(data)), read)
        for topic_id, topic in state.topics_by_id.items():
            for queue_id in range(topic.queues):
                run = drive(index.queue(topic_id, queue_id), read)
                if run is not None:
                    items = drive(index.items(run, run.first_offset, run.count), read)
                    assert len(items) == run.count * ITEM.size
                    found.setdefault((topic_id, queue_id), []).extend(
                        range(run.first_offset, run.first_offset + run.count)
                    )
    return found


def check_whole(made: Tiered) -> None:
    """Every message is listed by the tier, or is a row; on every node."""
    made.sim.settle()
    made.sim.check_equal()
    tiered = in_tier(made)
    for node in made.sim.running:
        state = node.state
        assert state.kept == Kept(0, 0)
        assert state.trim_position <= state.tier.verified_to(0)
        for topic_id, topic in state.topics_by_id.items():
            for queue_id in range(topic.queues):
                here = range(state.min_offset(topic_id, queue_id), state.max_offset(topic_id, queue_id))
                assert state.kept_offset(topic_id, queue_id) == 0
                assert sorted({*tiered.get((topic_id, queue_id), []), *here}) == list(range(here.stop))


def test_h1_what_retention_takes_stays_in_the_tier(evicting: Callable[..., Tiered]) -> None:
    made = evicting(11)
    made.send(100)
    made.upload_all()
    wait_evicted(made)
    assert made.leader_state().trim_position > 2 << 14
    made.check()
    check_whole(made)


def test_the_index_file_of_an_evicted_segment_is_repaired_from_the_store(evicting: Callable[..., Tiered]) -> None:
    made = evicting(15)
    made.send(80, keyed=True)
    made.upload_all()
    wait_evicted(made)
    leader = made.sim.leader()
    row = leader.state.tier.rows[0]
    assert row.end <= leader.state.trim_position
    name = f"{FOLDER}/{row.parts[-1].name}"
    intact = made.store.inner.objects.pop(name)
    scrubs = leader.running.keeping.tier_scrubs
    assert scrubs is not None
    made.sim.loop.call_outside(0.0, leader.run, lambda: scrubs.begin(ScrubOptions(repairs=True)))
    made.sim.loop.run_until(lambda: scrubs.view.number and not scrubs.view.running, 60, "the end of the scrub")
    assert (scrubs.view.bad, scrubs.view.repaired) == (1, 1), scrubs.view
    assert made.store.inner.objects[name] == intact


def test_nothing_is_evicted_while_the_store_refuses(evicting: Callable[..., Tiered]) -> None:
    made = evicting(12)
    made.store.weather = Weather(refused=1.0)
    made.send(80)
    made.sim.loop.run_for(10)
    assert made.leader_state().trim_position == 0
    made.store.weather = CALM
    made.upload_all(300)
    wait_evicted(made)
    check_whole(made)


def test_leaders_die_while_they_evict(evicting: Callable[..., Tiered]) -> None:
    made = evicting(13)
    for _ in range(4):
        made.send(40)
        made.sim.loop.run_for(0.2)
        leader = made.sim.leader()
        leader.kill(power=True)
        made.sim.leader(besides=leader)
        leader.start()
    made.upload_all(120)
    wait_evicted(made)
    check_whole(made)


def test_files_go_from_the_nodes_and_their_index_files_with_them(evicting: Callable[..., Tiered]) -> None:
    made = evicting(14)
    made.send(100)
    made.upload_all()
    wait_evicted(made)

    def gone() -> bool:
        made.send(4)
        return all(node.log.first_position > 0 for node in made.sim.running)

    for _ in range(60):
        if gone():
            break
        made.sim.loop.run_for(1)
    for node in made.sim.running:
        assert 0 < node.log.first_position <= node.state.trim_position
        made.sim.loop.run_for(3)
        spans = node.running.keeping.index_files._files
        assert spans
        assert min(span.end for span in spans) > node.log.first_position
    check_whole(made)


def test_d9_a_key_is_found_wherever_its_message_lies(evicting: Callable[..., Tiered]) -> None:
    made = evicting(15)
    made.send(100, keyed=True)
    made.upload_all()
    wait_evicted(made)
    made.sim.settle()
    for node in made.sim.running:
        where = []
        for number in range(1, 101, 9):
            found = ask_key(made, node, f"k{number}")
            assert not isinstance(found, Refused), found
            (stored,) = found
            assert stored.message.body == b"m" * 1000
            where.append(stored.message.position < node.state.trim_position)
        assert len(set(where)) == 2, "some lie here and some in the tier"
        none = ask_key(made, node, "k101")
        assert isinstance(none, Refused)
        assert "no message with key k101" in none.remark


def test_a_client_finds_a_key_in_the_tier(evicting: Callable[..., Tiered]) -> None:
    made = evicting(16)
    made.send(100, keyed=True)
    made.upload_all()
    wait_evicted(made)
    path = made.sim.leader().connect()
    ext = {"topic": "t", "key": "k1", "maxNum": "9", "beginTimestamp": "0", "endTimestamp": str(2**62)}
    path.ask(encode_frame(RequestCode.QUERY_MESSAGE, 7, 0, ext=ext))
    made.sim.loop.run_until(lambda: 7 in path.replies, 30, "an answer")
    assert codes(path, 7) == [0]


def test_while_the_store_is_away_nobody_says_that_there_is_no_message(evicting: Callable[..., Tiered]) -> None:
    made = evicting(17)
    made.send(100, keyed=True)
    made.upload_all()
    wait_evicted(made)
    made.store.weather = Weather(refused=1.0)
    found = ask_key(made, made.sim.leader(), "k1")
    assert isinstance(found, Refused)
    assert found.reason is Reason.UNAVAILABLE
    assert isinstance(ask_key(made, made.sim.leader(), "k100"), list), "that one lies here"


def test_another_store_takes_no_messages_from_the_nodes(evicting: Callable[..., Tiered]) -> None:
    """`tier.url` was changed by mistake: rows say VERIFIED, and the store has nothing."""
    made = evicting(16)
    made.send(24)
    made.upload_all()
    had = dict(made.store.inner.objects)
    made.store.inner.objects.clear()
    for node in made.sim.nodes.values():
        node.kill(power=False)
        node.start()
    made.sim.leader()
    made.send(60)
    made.sim.loop.run_for(20)
    leader = made.sim.leader()
    assert leader.state.trim_position == 0
    assert not made.store.inner.objects
    assert "has nothing of the" in leader.running.keeping.tier.view("memory:").failing
    made.store.inner.objects |= had
    made.upload_all(120)
    wait_evicted(made)
    check_whole(made)


@pytest.mark.slow
def test_a_disk_that_fills_while_the_store_is_away_refuses_writes_and_deletes_nothing(
    evicting: Callable[..., Tiered],
) -> None:
    """The alarm of the tier comes first, then that of the disk; when the store is back, space becomes free."""
    made = evicting(18)
    made.store.weather = Weather(refused=1.0)
    made.send(40)
    leader = made.sim.leader()

    def fill(percent: int) -> None:
        for node in made.sim.nodes.values():
            node.fs.space_left = (1 << 40) * (100 - percent) // 100

    fill(88)  # above disk_force_clean_percent
    made.sim.loop.run_until(lambda: leader.running.alarms.raised("tier_stuck"), 200, "the alarm of the tier")
    assert not leader.running.alarms.raised("disk_full")
    fill(92)  # above disk_refuse_writes_percent
    made.sim.loop.run_until(lambda: leader.running.alarms.raised("disk_full"), 60, "the alarm of the disk")
    path = leader.connect()
    path.ask(send_frame(9001, "t", b"m"))
    made.sim.loop.run_until(lambda: 9001 in path.replies, 30, "an answer")
    assert codes(path, 9001) == [ResponseCode.SERVICE_NOT_AVAILABLE]
    assert leader.state.trim_position == 0
    made.store.weather = CALM
    fill(88)
    made.sim.loop.run_until(lambda: leader.state.trim_position > 0, 200, "an EVICT")
    made.send(1)
    check_whole(made)
