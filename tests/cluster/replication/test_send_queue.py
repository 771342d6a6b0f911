"""The queue of sends: who is served next when more wait than an entry takes, and who is refused in an overload."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cluster.flow.admission_limit import NO_LIMIT
from cluster.replication.fair_order import DEMOTED, IDLE_MAX, LIGHT_MS, cost_of
from cluster.replication.message_batch import Send, TopicSlot, message_size
from cluster.replication.pending_requests import NAMED_PER_UNIT, PendingEntry, place_of
from cluster.replication.send_queue import SendQueue
from raftlog.types import EntryId
from raftlog.work import METER
from raftmq_wire.kernel import TWINS
from tests.support.contexts import CONFIG
from tests.support.kernels import native_kernel

SLOTS = [TopicSlot(f"T{n}", n, 4, 4, 6, "retry", cast(Any, None)) for n in range(1, 5)]
KIB = 1024
ENTRY = 64 * KIB
PRODUCER = b"p" * 16
_numbers = count()


def _owner(send: Send) -> int | str:
    return send.user or send.connection.in_flight.address


class Client:
    """A connection."""

    def __init__(self, address: str, user: int = 0) -> None:
        self.in_flight = SimpleNamespace(address=address)
        self.user = user

    def send(self, topic: int = 1, size: int = KIB, received_ms: int = 0, done: Any = None) -> Send:
        return Send(
            connection=cast(Any, self),
            size=size,
            origin=None,
            oneway=False,
            slot=SLOTS[topic - 1],
            queue_id=0,
            flag=0,
            sys_flag=0,
            born_ms=0,
            born_host=b"",
            reconsume_times=0,
            body=bytes(size),
            properties=b"",
            tag_hash=0,
            unique_key="",
            kind=0,
            producer_id=PRODUCER,
            sequence=next(_numbers),
            low_sequence=0,
            batch=(),
            received_ms=received_ms,
            done=done,
            user=self.user,
        )

    def sends(self, number: int, topic: int = 1, size: int = KIB) -> list[Send]:
        return [self.send(topic, size) for _ in range(number)]


def queue_of(entry_bytes: int = ENTRY, messages_max: int = 4096, shared_bytes: int = NO_LIMIT) -> SendQueue:
    limits = msgspec.structs.replace(CONFIG.limits, batch_bytes_max=entry_bytes, batch_messages_max=messages_max)
    return SendQueue(limits, cast(Any, SimpleNamespace(entry_bytes=NO_LIMIT, shared_bytes=shared_bytes)))


def put(queue: SendQueue, *runs: list[Send]) -> None:
    for sends in runs:
        queue.add(sends, sum(send.size for send in sends))


def by_owner(sends: list[Send]) -> Counter[str]:
    return Counter(send.connection.in_flight.address for send in sends)


def entries(queue: SendQueue) -> Iterator[list[Send]]:
    while queue.bytes:
        yield queue.cut()


def test_what_fits_one_entry_goes_as_it_came() -> None:
    one, two = Client("10.0.0.1"), Client("10.0.0.2")
    sends = [who.send(topic) for who, topic in [(one, 1), (two, 2), (one, 2), (two, 1)]]
    queue = queue_of()
    put(queue, sends)
    assert queue.first() is sends[0]
    assert queue.cut() == sends
    assert (len(queue), queue.bytes, list(queue)) == (0, 0, [])


def test_one_owner_with_one_topic_goes_as_it_came() -> None:
    connections = [Client("10.0.0.1") for _ in range(20)]
    sends = [connections[n % 20].send() for n in range(500)]
    queue = queue_of()
    put(queue, sends)
    assert [send for entry in entries(queue) for send in entry] == sends


def test_a_client_that_sends_little_waits_for_one_entry() -> None:
    noisy, quiet = Client("10.0.0.1"), Client("10.0.0.2")
    queue = queue_of()
    put(queue, noisy.sends(1000), quiet.sends(1), noisy.sends(1000))
    assert any(send.connection is quiet for send in queue.cut())
    for _ in range(5):
        lone = quiet.send()
        put(queue, noisy.sends(50), [lone])
        assert lone in queue.cut()


def size_of(sends: list[Send]) -> int:
    return sum(message_size(send, send.slot) for send in sends)


def test_entries_are_small_while_somebody_sends_little() -> None:
    """Whoever sends little waits for what others have under way, and they have more than one entry takes anyway."""
    noisy, quiet = Client("10.0.0.1"), Client("10.0.0.2")
    queue = queue_of(shared_bytes=16 * KIB)
    put(queue, noisy.sends(1000), quiet.sends(1))
    assert not queue.has_light
    assert size_of(queue.cut()) > 48 * KIB
    assert queue.has_light
    assert size_of(queue.cut()) <= 16 * KIB
    put(queue, [noisy.send(received_ms=LIGHT_MS - 1)])
    assert size_of(queue.cut()) <= 16 * KIB
    put(queue, [noisy.send(received_ms=LIGHT_MS)])
    assert size_of(queue.cut()) > 48 * KIB
    assert not queue.has_light


def test_entries_are_large_while_all_send_much() -> None:
    one, two = Client("10.0.0.1"), Client("10.0.0.2")
    queue = queue_of(shared_bytes=16 * KIB)
    put(queue, one.sends(1000), two.sends(1000))
    for _ in range(20):
        assert size_of(queue.cut()) > 48 * KIB
        put(queue, one.sends(30), two.sends(30))
    assert not queue.has_light


def test_who_opens_more_connections_gets_no_more() -> None:
    many, one = [Client("10.0.0.1") for _ in range(200)], Client("10.0.0.2")
    queue = queue_of()
    put(queue, *(each.sends(10) for each in many), one.sends(1000))
    list_of = list(entries(queue))
    served = by_owner([send for entry in list_of[:30] for send in entry])
    assert abs(served["10.0.0.1"] - served["10.0.0.2"]) <= 16
    assert sum(map(len, list_of)) == 3000


def test_users_are_told_apart_at_one_address_and_known_at_several() -> None:
    queue = queue_of()
    put(queue, Client("10.0.0.1", 7).sends(900), Client("10.0.0.2", 7).sends(900), Client("10.0.0.1", 8).sends(900))
    list_of = list(entries(queue))
    served = Counter(send.user for entry in list_of[:15] for send in entry)
    assert abs(served[7] - served[8]) <= 16


def test_topics_of_one_owner_share_what_it_gets() -> None:
    one, other = Client("10.0.0.1"), Client("10.0.0.2")
    queue = queue_of()
    put(queue, one.sends(900, 1), one.sends(900, 2), other.sends(1200, 3))
    list_of = list(entries(queue))
    served = Counter(send.slot.topic_id for entry in list_of[:20] for send in entry)
    assert abs(served[1] - served[2]) <= 16
    assert abs(served[1] + served[2] - served[3]) <= 24


def test_large_messages_have_no_more_than_their_share() -> None:
    """One message of 1 MiB at a time: nothing of it waits when it was served, and yet it counts."""
    large, small = Client("10.0.0.1"), Client("10.0.0.2")
    queue = queue_of()
    put(queue, small.sends(600), [large.send(2, KIB * KIB)])
    served: Counter[str] = Counter()
    for n in range(300):
        sends = queue.cut()
        if n > 60:
            for send in sends:
                served[send.connection.in_flight.address] += send.size + KIB
        back = sum(send.connection is small for send in sends)
        put(queue, small.sends(back))
        if back < len(sends):
            put(queue, [large.send(2, KIB * KIB)])
    assert 0.7 <= served["10.0.0.1"] / served["10.0.0.2"] <= 1.3


def test_small_messages_count_for_what_they_cost_a_node() -> None:
    tiny, usual = Client("10.0.0.1"), Client("10.0.0.2")
    queue = queue_of()
    put(queue, tiny.sends(9000, 1, 32), usual.sends(3000, 2))
    list_of = list(entries(queue))
    served = by_owner([send for entry in list_of[:40] for send in entry])
    assert 1.5 <= served["10.0.0.1"] / served["10.0.0.2"] <= 2.5  # 1,056 and 2,048 each


def test_what_was_put_back_goes_first_and_alone() -> None:
    one, two = Client("10.0.0.1"), Client("10.0.0.2")
    queue = queue_of()
    put(queue, one.sends(100), two.sends(100))
    queue.cut()
    sends = queue.cut()
    queue.put_back(sends)
    assert queue.first() is sends[0]
    assert queue.cut() == sends
    queue.put_back(sends, alone=True)
    assert [queue.cut() for _ in sends] == [[send] for send in sends]
    assert len(queue.cut()) > 1


def test_in_an_overload_those_who_send_most_are_refused() -> None:
    noisy, quiet, own = Client("10.0.0.1"), Client("10.0.0.2"), Client("")
    copies = [own.send(3, done=print) for _ in range(900)]
    queue = queue_of()
    most, few = noisy.sends(400), quiet.sends(100)
    put(queue, few[:50], most, copies, few[50:])
    taken = queue.take_longest(100 * KIB, 64, 0)
    assert taken == most[:64]
    assert queue.take_longest(36 * KIB, 64, 0) == most[64:100]
    rest = queue.take_longest(500 * KIB, 4096, 0)
    assert rest[:200] == most[100:300], "until both have as many"
    assert [send for send in rest if send.connection is quiet] == few
    assert list(queue) == copies
    assert queue.bytes == sum(send.size for send in copies)
    assert queue.take_longest(KIB, 64, 0) == []


def test_who_has_no_more_than_a_share_is_not_refused_for_what_the_node_makes_itself() -> None:
    """Seed 957000001: the copies filled the house, and the only send of a client was refused."""
    noisy, quiet, own = Client("10.0.0.1"), Client("10.0.0.2"), Client("")
    copies = [own.send(3, done=print) for _ in range(900)]
    queue = queue_of()
    little, beside, much = quiet.sends(20), noisy.sends(20, 2), noisy.sends(400)
    put(queue, copies, little, beside, much)
    share = 300 * KIB // 3
    refused = queue.take_longest(500 * KIB, 4096, 300 * KIB)
    assert refused == much[: len(refused)]
    left = [send for send in queue if send.connection is noisy]
    assert sum(map(cost_of, left[:-1])) <= share < sum(map(cost_of, [*left, refused[-1]]))
    assert all(send in queue for send in little + beside + copies)
    assert queue.take_longest(500 * KIB, 4096, 300 * KIB) == []


def test_of_equal_owners_equally_many_are_refused() -> None:
    clients = [Client(f"10.0.0.{n}") for n in range(50)]
    queue = queue_of()
    put(queue, *(each.sends(40) for each in clients))
    refused = by_owner(queue.take_longest(1000 * KIB, 1000, 0))
    assert set(refused.values()) == {20}


@pytest.mark.parametrize("owners", [1, 2])
def test_a_demoted_topic_gets_an_eighth_while_others_want_more_and_then_all(owners: int) -> None:
    one = Client("10.0.0.1")
    other = Client("10.0.0.2") if owners == 2 else one
    queue = queue_of()
    put(queue, one.sends(900, 1), other.sends(900, 2))
    queue.demote({1})
    list_of = list(entries(queue))
    served = Counter(send.slot.topic_id for entry in list_of[:16] for send in entry)
    assert served[1] == pytest.approx(served[2] / DEMOTED, rel=0.2)
    assert {send.slot.topic_id for send in list_of[-1]} == {1}


def test_demoted_topics_are_cut_first_whoever_has_more_waiting() -> None:
    noisy, quiet = Client("10.0.0.1"), Client("10.0.0.2")
    queue = queue_of()
    usual, over, some = noisy.sends(400, 1), quiet.sends(100, 2), noisy.sends(20, 2)
    put(queue, usual, over, some)
    queue.demote({2})
    assert queue.take_longest(50 * KIB, 64, 0) == over[:50]
    refused = queue.take_longest(1000 * KIB, 100, 240 * KIB)
    kept = [send for send in queue if send.slot.topic_id == 2]
    assert all(cost <= 10 * KIB for cost in by_owner_cost(kept).values()), "an eighth of a third of 240 KiB each"
    assert kept
    assert {send.slot.topic_id for send in refused[:55]} == {2}
    assert {send.slot.topic_id for send in refused[60:]} == {1}, "and then the usual ones"


def by_owner_cost(sends: list[Send]) -> Counter[str]:
    found = Counter[str]()
    for send in sends:
        found[send.connection.in_flight.address] += cost_of(send)
    return found


def test_owners_who_are_gone_are_forgotten_while_others_go_on() -> None:
    queue = queue_of()
    put(queue, Client("noisy").sends(100), Client("other").sends(200, 2))
    for n in range(1000):
        put(queue, Client(f"address {n}").sends(1), Client("noisy").sends(62))
        queue.cut()
    assert len(queue._fair._owners) <= 3 * IDLE_MAX


def test_entries_stay_large_after_all_were_served_together() -> None:
    one, two = Client("10.0.0.1"), Client("10.0.0.2")
    queue = queue_of(shared_bytes=16 * KIB)
    put(queue, one.sends(50), two.sends(50))
    assert len(queue.cut()) + len(queue.cut()) == 100
    put(queue, one.sends(200), two.sends(200))
    assert size_of(queue.cut()) > 48 * KIB


def test_a_repetition_in_the_place_of_its_first_hides_nothing_older() -> None:
    client = Client("10.0.0.1")
    queue = queue_of()

    def put_a_repetition_first() -> list[Send]:
        first, second, again = (client.send(received_ms=ms) for ms in (1, 2, 9))
        put(queue, [first, second])
        again.sequence = first.sequence
        queue.replace(first, again)
        return [again, second]

    sends = put_a_repetition_first()
    assert (queue.cut(), queue.is_ordered) == (sends, False)
    put(queue, client.sends(2))
    queue.cut()
    assert queue.is_ordered
    again, second = put_a_repetition_first()
    assert queue.take_older(5) == [second]
    assert queue.take_all() == [again]


def test_the_index_of_names_follows_the_queue_until_it_is_empty() -> None:
    client = Client("10.0.0.1")
    queue = queue_of()
    first, second, third, fourth = [*client.sends(2), client.send(2), client.send(2)]
    put(queue, [first, second, third, fourth])
    assert queue.find(PRODUCER, first.sequence) is first
    again = client.send()
    again.sequence = second.sequence
    queue.replace(second, again)
    assert queue.find(PRODUCER, second.sequence) is again
    assert queue.hasten({"T2"})
    assert queue.find(PRODUCER, third.sequence) is third
    assert queue.cut() == [third, fourth]
    assert queue.find(PRODUCER, third.sequence) is None
    assert queue.take_all() == [first, again]
    put(queue, client.sends(1))
    assert queue.find(PRODUCER, first.sequence) is None
    (last,) = queue.cut()
    assert queue.find(PRODUCER, last.sequence) is None


def test_an_entry_is_searched_once() -> None:
    sends = Client("10.0.0.1").sends(400)
    entry = PendingEntry(EntryId(1, 1), 0, 3000)
    entry.sends = sends
    before = METER.units
    assert place_of(entry, PRODUCER, sends[-1].sequence) == 399
    first = METER.units - before
    assert place_of(entry, PRODUCER, sends[7].sequence) == 7
    assert place_of(entry, b"q" * 16, sends[7].sequence) is None
    assert METER.units - before == first == 1 + 400 // NAMED_PER_UNIT


class Order(RuleBasedStateMachine):
    """Whatever is done, nothing is lost or twice there, and sends of a connection to a topic keep their order."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = queue_of(16 * KIB, 20)
        self.clients = [Client("a"), Client("a"), Client("b", 5), Client("c", 5), Client("d")]
        self.here: set[int] = set()
        self.sizes: dict[int, int] = {}
        self.last: dict[tuple[int, int], int] = {}
        self.now_ms = 0
        self.demoted: frozenset[int] = frozenset()

    @rule(who=st.integers(0, 4), topic=st.integers(1, 4), number=st.integers(1, 40), size=st.integers(32, 9000))
    def come(self, who: int, topic: int, number: int, size: int) -> None:
        self.now_ms += 1
        sends = [self.clients[who].send(topic, size, self.now_ms) for _ in range(number)]
        put(self.queue, sends)
        self.here.update(send.sequence for send in sends)
        self.sizes.update((send.sequence, send.size) for send in sends)

    def gone(self, sends: list[Send], *, served: bool = False) -> None:
        names = {send.sequence for send in sends}
        assert len(names) == len(sends)
        assert names <= self.here
        self.here -= names
        for send in sends:
            line = self.clients.index(cast(Any, send.connection)), send.slot.topic_id
            if served:
                assert self.last.get(line, -1) < send.sequence
                self.last[line] = send.sequence

    @precondition(lambda self: self.here)
    @rule(back=st.sampled_from(["", "", "", "back", "alone"]))
    def entry(self, back: str) -> None:
        first = self.queue.first()
        sends = self.queue.cut()
        assert sends[0] is first
        if self.queue.is_ordered:
            assert first.received_ms == min(send.received_ms for send in sends)
        if len(sends) > 1:
            assert sum(message_size(send, send.slot) for send in sends) <= 16 * KIB
        assert len(sends) <= 20
        if back:
            self.queue.put_back(sends, alone=back == "alone")
        else:
            self.gone(sends, served=True)

    @rule(size=st.integers(1, 100_000), number=st.integers(1, 30), limit=st.sampled_from([0, 20_000, 200_000]))
    def refuse(self, size: int, number: int, limit: int) -> None:
        owners = len({_owner(send) for send in self.queue})
        lines = len({(_owner(send), send.slot.topic_id) for send in self.queue})
        refused = self.queue.take_longest(size, number, limit)
        assert len(refused) <= number
        usual = [send for send in refused if send.slot.topic_id not in self.demoted]
        if usual:
            left = Counter[tuple[int | str, int]]()
            for send in self.queue:
                if send.slot.topic_id in self.demoted:
                    left[_owner(send), send.slot.topic_id] += cost_of(send)
            assert all(cost <= limit // (DEMOTED * lines) for cost in left.values()), "those are cut first"
        for send in usual:
            rest = [other for other in self.queue if _owner(other) == _owner(send)]
            mine = [other for other in refused if _owner(other) == _owner(send)]
            assert sum(map(cost_of, rest + mine)) > limit // owners
        self.gone(refused)

    @rule(topics=st.sets(st.integers(1, 4)))
    def demote(self, topics: set[int]) -> None:
        self.demoted = frozenset(topics)
        self.queue.demote(self.demoted)

    @rule(age=st.integers(0, 30))
    def give_up(self, age: int) -> None:
        late = self.queue.take_older(self.now_ms - age)
        assert all(send.received_ms <= self.now_ms - age for send in late)
        self.gone(late)
        assert all(send.received_ms > self.now_ms - age for send in self.queue)

    @rule(who=st.integers(0, 4))
    def take_back(self, who: int) -> None:
        client: Any = self.clients[who]
        taken = self.queue.take_where(lambda send: send.connection is client)
        assert all(send.connection is client for send in taken)
        self.gone(taken)
        assert not any(send.connection is client for send in self.queue)

    @rule(topic=st.integers(1, 4))
    def change_topic(self, topic: int) -> None:
        names = {slot.name for send in self.queue if (slot := send.slot).topic_id == topic}
        if self.queue.is_hastened or not self.queue.hasten(names):
            return
        while self.queue.is_hastened:
            sends = self.queue.cut()
            assert {send.slot.topic_id for send in sends} == {topic}
            self.gone(sends, served=True)
        assert not any(send.slot.topic_id == topic for send in self.queue)

    @rule(data=st.data())
    def search(self, data: st.DataObject) -> None:
        """The first search makes the index, which later changes of the queue keep."""
        for number in data.draw(st.lists(st.sampled_from(sorted(self.sizes) or [0]), max_size=8)):
            there = next((send for send in self.queue if send.sequence == number), None)
            assert self.queue.find(PRODUCER, number) is there
            assert self.queue.find(b"q" * 16, number) is None

    @precondition(lambda self: self.here)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        old = data.draw(st.sampled_from(sorted(self.queue, key=lambda send: send.sequence)))
        self.now_ms += 1
        new = cast(Any, old.connection).send(old.slot.topic_id, old.size + 10, self.now_ms)
        new.sequence = old.sequence
        self.queue.replace(old, new)
        self.sizes[new.sequence] = new.size
        assert any(send is new for send in self.queue)

    @rule()
    def all_of_them(self) -> None:
        sends = self.queue.take_all()
        self.gone(sends, served=True)
        assert not self.here

    @invariant()
    def counts(self) -> None:
        there = [send.sequence for send in self.queue]
        assert sorted(there) == sorted(self.here)
        assert len(self.queue) == len(there)
        assert self.queue.bytes == sum(self.sizes[name] for name in there)

    @invariant()
    def costs(self) -> None:
        for owner in self.queue._fair._owners.values():
            for line in owner.lines.values():
                assert line.cost == sum(map(cost_of, line.sends))
            assert owner.cost == sum(line.cost for line in owner.lines.values())


TestOrder = Order.TestCase
TestOrder.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(1, 2), st.sampled_from([KIB, 20_000])),
        min_size=1,
        max_size=40,
    )
)
def test_both_kernels_cut_alike(shape: list[tuple[int, int, int]]) -> None:
    clients = [Client("a"), Client("a"), Client("b")]
    queue = queue_of()
    put(queue, [clients[who].send(topic, size) for who, topic, size in shape])
    both = [cut(queue.waiting.copy(), ENTRY, 30) for cut in (TWINS["cut"], native_kernel().cut)]
    assert both[0] == both[1]
