"""The blocking client: threads, bounds, the end of an iteration."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from raftmq.client import NotFound, connect
from tests.support.pace import at_most


def test_send_read_commit(fake_in_thread: Any) -> None:
    fake = fake_in_thread
    with connect(fake.servers) as mq:
        mq.admin.create_topic("orders", queues=4)
        sent = [mq.send("orders", b"%d" % n, key=str(n), tag="new") for n in range(20)]
        sent += mq.send_batch("orders", [b"20", b"21"])
        with mq.consumer("billing", "orders", start="earliest", follow=False) as c:
            got = list(c)
            c.commit()
        assert mq.pull("orders", sent[0].queue_id, 0).messages[0].message_id == sent[0].message_id
        assert sum(o.committed or 0 for o in mq.admin.offsets("billing", "orders")) == 22
    assert {m.message_id for m in got} == {r.message_id for r in sent}
    assert {(m.queue_id, m.queue_offset, m.position) for m in got} == {r[1:4] for r in sent}


def test_threads_share_a_producer_and_the_bound(fake_in_thread: Any) -> None:
    fake = fake_in_thread
    fake.create("orders", 1)
    futures: list[Any] = []
    with connect(fake.servers) as mq:
        with mq.producer(max_messages=7) as p:

            def work(name: bytes) -> None:
                futures.extend([p.send_soon("orders", name + b"%03d" % n) for n in range(100)])

            threads = [threading.Thread(target=work, args=(name,)) for name in (b"a", b"b", b"c")]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert all(f.done() and f.exception() is None for f in futures)
    stored = fake.bodies("orders")
    assert len(stored) == 300
    for name in (b"a", b"b", b"c"):
        assert [b for b in stored if b.startswith(name)] == [name + b"%03d" % n for n in range(100)]
    assert [a.sequence for a in fake.sends] == list(range(1, 301))


def test_errors_reach_the_calling_thread(fake_in_thread: Any) -> None:
    fake_in_thread.auto_create = False
    with connect(fake_in_thread.servers) as mq:
        with pytest.raises(NotFound):
            mq.send("nowhere", b"x")
        with pytest.raises(NotFound), mq.consumer("g", "nowhere"):
            pass


def test_a_closed_client_says_so(fake_in_thread: Any) -> None:
    mq = connect(fake_in_thread.servers)
    mq.close()
    mq.close()
    with pytest.raises(RuntimeError, match="closed"):
        mq.send("orders", b"x")


def test_a_blocking_call_in_a_callback_is_an_error_not_a_hang(fake_in_thread: Any) -> None:
    fake_in_thread.create("orders", 1)
    seen: list[Exception] = []
    done = threading.Event()
    with connect(fake_in_thread.servers) as mq:

        def again(_: Any) -> None:
            try:
                mq.admin.topics()
            except RuntimeError as error:
                seen.append(error)
            done.set()

        with mq.producer() as p:
            p.send_soon("orders", b"x").add_done_callback(again)
            assert done.wait(at_most(10))
    assert "wait for itself" in str(seen[0])
