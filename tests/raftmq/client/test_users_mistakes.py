"""Mistakes of a program are told at once, in the words that its author wrote, and harm no other send."""

from __future__ import annotations

import asyncio
import logging
import math
import re
import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from raftmq.client import Client, Refused, Resolution, Tls, Unreachable, aconnect, connect
from raftmq.client.consuming.send_back import seconds_of
from raftmq.client.discovery import find_servers
from raftmq.local.tls.certificates import CA, new_ca, new_node, write_pair
from raftmq_wire.codec import FLAG_RESPONSE, encode_frame
from tests.support.pace import at_most
from tests.support.patience import with_times
from tests.support.plain_server import Listen, hanging_up, serving
from tests.support.rows import each_row

HALF = "\ud800"
"""Half a pair of surrogates: a str that has no bytes."""


@pytest.mark.parametrize("batch", [False, True])
def test_a_waiting_send_in_a_callback_of_its_own_producer_is_an_error(fake_in_thread: Any, batch: bool) -> None:
    fake_in_thread.create("orders", 1)
    seen: list[BaseException] = []
    done = threading.Event()
    with connect(fake_in_thread.servers) as mq, mq.producer() as p:

        def again(_: Any) -> None:
            try:
                p.send_batch("orders", [b"second"]) if batch else p.send("orders", b"second")
            except RuntimeError as error:
                seen.append(error)
            done.set()

        p.send_soon("orders", b"first").add_done_callback(again)
        assert done.wait(at_most(20))
        p.send("orders", b"third")
    assert "inside a callback" in str(seen[0])
    assert fake_in_thread.bodies("orders") == [b"first", b"third"]


@each_row(
    ("options", "said"),
    [
        ({"ordering_key": 7}, "ordering_key= is a str, not 7"),
        ({"ordering_key": HALF}, "ordering_key= is not Unicode"),
        ({"queue_id": "3"}, "queue_id= is an int, not str"),
        ({"tag": HALF}, "a property is not Unicode"),
        ({"properties": {7: "x"}}, "the name of a property must be a str, not int"),
        ({"properties": "x"}, "properties= is a dict of str, not str"),
        ({"delay": "5s"}, "delay= is a number of seconds or a timedelta, not '5s'"),
        ({"deliver_at": "noon"}, "deliver_at= is a datetime or an int of milliseconds since 1970, not str"),
        ({"colour": "blue"}, r"^send\(\) has no option colour; it has key, tag, "),
    ],
)
async def test_a_wrong_option_is_refused_at_once_and_ruins_no_other_send(
    fake: Any, options: dict[str, Any], said: str
) -> None:
    fake.create("orders", 1)
    async with aconnect(fake.servers) as mq, mq.producer() as p:
        before = [await p.send_soon("orders", b"%d" % n) for n in range(5)]
        with pytest.raises((TypeError, ValueError, Refused), match=said):
            await p.send_soon("orders", b"wrong", **options)
        after = [await p.send_soon("orders", b"%d" % n) for n in range(5, 10)]
        await asyncio.gather(*before, *after)
    assert fake.bodies("orders") == [b"%d" % n for n in range(10)]


WRONG_CALLS: list[tuple[str, Callable[[Client], object]]] = [
    ("the servers are a str", lambda mq: connect(5)),  # type: ignore[arg-type]
    ("timeout_s= is a number of seconds, not '3'", lambda mq: connect(timeout_s="3")),  # type: ignore[arg-type]
    ("timeout_s= is a number of seconds, not True", lambda mq: connect(timeout_s=True)),
    ("timeout_s=-1: give more than 0 seconds", lambda mq: connect(timeout_s=-1)),
    ("timeout_s=0: give more than 0 seconds", lambda mq: connect(timeout_s=0)),
    ("timeout_s=nan: give more than 0 seconds", lambda mq: connect(timeout_s=math.nan)),
    ("tls= is Tls", lambda mq: connect(tls="ca.crt")),  # type: ignore[arg-type]
    ("timeout_s= is a number of seconds", lambda mq: mq.producer(timeout_s="3")),  # type: ignore[arg-type]
    ("attempt_timeout_s=0", lambda mq: mq.producer(attempt_timeout_s=0)),
    ("max_messages=0: give at least 1", lambda mq: mq.producer(max_messages=0)),
    ("max_bytes= is an int", lambda mq: mq.producer(max_bytes=1.5)),  # type: ignore[arg-type]
    ("timeout_s=0", lambda mq: mq.transaction_producer("g", check=lambda _: Resolution.COMMIT, timeout_s=0)),
    ("timeout_s=-2", lambda mq: mq.staged_writes(timeout_s=-2)),
    ("timeout_s=0", lambda mq: mq.recall("orders", "x", timeout_s=0)),
    ("timeout_s=0", lambda mq: mq.pull("orders", 0, 0, timeout_s=0)),
    ("wait_s=-1: give 0 or more", lambda mq: mq.pull("orders", 0, 0, wait_s=-1)),
    ("the name of a group is a str, not 5", lambda mq: mq.consumer(5, "orders")),  # type: ignore[arg-type]
    ("the topics are a str, or several of them", lambda mq: mq.consumer("g", 5)),  # type: ignore[arg-type]
    ("the name of a topic is a str, not 5", lambda mq: mq.consumer("g", [5])),  # type: ignore[list-item]
    ("tags= is a str, not 5", lambda mq: mq.consumer("g", "orders", tags=5)),  # type: ignore[arg-type]
    ("filter= is a str, not 5", lambda mq: mq.consumer("g", "orders", filter=5)),  # type: ignore[arg-type]
    ("max_wait_s=-1", lambda mq: mq.consumer("g", "orders", max_wait_s=-1)),
    ("max_retries= is an int", lambda mq: mq.consumer("g", "orders", max_retries="3")),  # type: ignore[arg-type]
    ("'my orders' is no name of a topic", lambda mq: mq.send("my orders", b"x")),
    ("either queue_id or ordering_key", lambda mq: mq.send("orders", b"x", queue_id=0, ordering_key="a")),
]


@each_row(("said", "call"), WRONG_CALLS)
def test_a_wrong_argument_is_refused_by_the_call_that_has_it(
    fake_in_thread: Any, said: str, call: Callable[[Client], object]
) -> None:
    """Unchecked, it failed on the client's own event loop, and whoever waited there waited for ever."""
    fake_in_thread.create("orders", 1)
    with connect(fake_in_thread.servers) as mq, pytest.raises((TypeError, ValueError), match=re.escape(said)):
        call(mq)
    assert fake_in_thread.bodies("orders") == []


async def test_a_batch_names_its_own_options(fake: Any) -> None:
    fake.create("orders", 1)
    async with aconnect(fake.servers) as mq:
        with pytest.raises(TypeError, match=r"^send_batch\(\) has no option delay; it has key, tag, "):
            await mq.send_batch("orders", [b"x"], delay=5)  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="a topic is a str, not int"):
            await mq.send(7, b"x")  # type: ignore[arg-type]


def test_the_blocking_client_names_the_options_that_its_caller_wrote(fake_in_thread: Any) -> None:
    fake_in_thread.create("orders", 1)
    with connect(fake_in_thread.servers) as mq:
        with pytest.raises(TypeError, match=r"^send\(\) has no option colour; it has key, tag, "):
            mq.send("orders", b"x", colour="blue")  # type: ignore[call-arg]
        with pytest.raises(TypeError, match=r"^send_batch\(\) has no option colour; it has key, tag, "):
            mq.send_batch("orders", [b"x"], colour="blue")  # type: ignore[call-arg]


def test_a_retry_after_a_text_names_what_was_given() -> None:
    with pytest.raises(TypeError, match="after= is a number of seconds or a timedelta, not '5s'"):
        seconds_of("5s")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("url", "instead"),
    [
        ("http://127.0.0.1:9876", '"127.0.0.1:9876"'),
        ("https://mq.example.com:8080/path", '"mq.example.com:9876"'),
        ("tcp://[::1]:9876", '"[::1]:9876"'),
    ],
)
def test_a_url_is_no_address(url: str, instead: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"is a URL; write host:port, for example {instead}")):
        find_servers(url)


def test_a_path_is_no_part_of_an_address() -> None:
    with pytest.raises(ValueError, match="is not host:port"):
        find_servers("mq/one:9876")


@pytest.mark.parametrize("follow", [True, False])
async def test_polling_a_consumer_that_is_not_open_is_an_error(fake: Any, follow: bool) -> None:
    fake.create("orders", 1)
    async with aconnect(fake.servers) as mq:
        consumer = mq.consumer("billing", "orders", follow=follow)
        with pytest.raises(RuntimeError, match="not open"):
            await consumer.poll(0.01)
        with pytest.raises(RuntimeError, match="not open"):
            await consumer.seek("earliest")


async def test_commit_of_a_consumer_that_is_not_open_is_an_error(fake: Any) -> None:
    fake.create("orders", 1)
    async with aconnect(fake.servers) as mq:
        consumer = mq.consumer("billing", "orders")
        with pytest.raises(RuntimeError, match="not open"):
            await consumer.commit()
        async with consumer:
            await consumer.commit()
    public = {name for name in dir(consumer) if not name.startswith("_")}
    assert public.isdisjoint({"log_failure", "pace", "try_to_commit"})


@pytest.mark.parametrize("wrong", [True, False, "1", 1.0])
async def test_the_id_of_a_queue_is_an_int(fake: Any, wrong: Any) -> None:
    fake.create("orders", 2)
    async with aconnect(fake.servers) as mq:
        with pytest.raises(TypeError, match="queue_id= is an int, not"):
            await mq.send("orders", b"x", queue_id=wrong)
        with pytest.raises(TypeError, match="queue_id= is an int, not"):
            await mq.pull("orders", wrong, 0)
        async with mq.consumer("billing", "orders") as consumer:
            with pytest.raises(TypeError, match="queue_id= is an int, not"):
                await consumer.seek(0, queue_id=wrong)


async def test_poll_gives_one_message_or_none(fake: Any) -> None:
    fake.create("orders", 1)
    fake.fill("orders", 0, [b"a", b"b"])
    async with aconnect(fake.servers) as mq, mq.consumer("billing", "orders", follow=False) as consumer:
        got = [await consumer.poll(20), await consumer.poll(20)]
        assert await consumer.poll(20) is None
    assert [message.body for message in got if message is not None] == [b"a", b"b"]


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


async def test_a_send_that_reached_nobody_names_addresses_and_causes(listens: Listen) -> None:
    """One port refuses, one speaks another protocol."""
    closed = f"127.0.0.1:{free_port()}"
    host, port = await listens(b"HTTP/1.1 400 Bad Request\r\n\r\n", after=b"{")
    other = f"{host}:{port}"
    async with aconnect(f"{closed};{other}", timeout_s=1.0) as mq:
        with pytest.raises(Unreachable) as caught:
            await mq.send("orders", b"x")
    assert f"{closed} refuses connections" in str(caught.value)
    assert f"{other} answers nothing sensible ({other} speaks HTTP: it is not the port of clients" in str(caught.value)


async def test_a_client_without_tls_and_one_with_it_are_told_which_the_port_speaks(tmp_path: Path) -> None:
    ca = new_ca()
    write_pair(ca, tmp_path, CA)
    write_pair(new_node(ca, "c", "n", ["127.0.0.1"]), tmp_path, "node-1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "node-1.crt", tmp_path / "node-1.key")

    with hanging_up(context) as secure:
        async with aconnect(secure, timeout_s=1.0) as mq:
            with pytest.raises(Unreachable) as caught:
                await mq.send("orders", b"x")
    assert f"{secure} takes TLS alone, and this client speaks plain text" in str(caught.value)
    assert "tls=Tls(ca=FILE)" in caught.value.hint

    async def plainly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (await reader.read(1)) != b"\x16":
            writer.write(encode_frame(0, 1, FLAG_RESPONSE))
        writer.close()

    tls = Tls(ca=str(tmp_path / "ca.crt"))
    async with serving(plainly) as (host, port), aconnect(f"{host}:{port}", timeout_s=1.0, tls=tls) as mq:
        with pytest.raises(Unreachable) as caught:
            await mq.send("orders", b"x")
    assert "speaks plain text, and this client speaks TLS" in str(caught.value)
    assert "Connect without tls=" in caught.value.hint


async def test_a_server_that_hangs_up_on_everybody_is_said_to_speak_neither(listens: Listen) -> None:
    host, port = await listens()
    async with aconnect(f"{host}:{port}", timeout_s=1.0) as mq:
        with pytest.raises(Unreachable) as caught:
            await mq.send("orders", b"x")
    assert "answers nothing sensible" in str(caught.value)
    assert "TLS alone" not in str(caught.value)


async def test_a_long_search_for_a_leader_says_why_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    closed = f"127.0.0.1:{free_port()}"
    with caplog.at_level(logging.WARNING, "raftmq"):
        async with aconnect(closed, timeout_s=1.0, environment=with_times(say_why_after_s=0.2)) as mq:
            with pytest.raises(Unreachable):
                await mq.send("orders", b"x")
    assert f"no leader found yet: {closed} refuses connections" in caplog.messages


@pytest.mark.parametrize(
    ("max_retries", "ordered", "reconsumed", "said"),
    [
        (1, False, 0, "retry 1 follows"),
        (1, False, 1, "a dead letter after 1 retries"),
        (1, True, 1, "a dead letter after 1 retries"),
        (None, True, 40, "retry 41 follows"),
        (None, False, 16, "retry 17 follows, or a dead letter if the group allows no more"),
    ],
)
async def test_the_log_says_what_becomes_of_a_failed_message(
    fake: Any,
    caplog: pytest.LogCaptureFixture,
    max_retries: int | None,
    ordered: bool,
    reconsumed: int,
    said: str,
) -> None:
    fake.create("orders", 1)
    fake.fill("orders", 0, [b"a"])
    async with aconnect(fake.servers) as mq:
        (message,) = (await mq.pull("orders", 0, 0)).messages
        consumer = mq.consumer("billing", "orders", max_retries=max_retries, ordered=ordered)
        with caplog.at_level(logging.WARNING, "raftmq"):
            consumer._log_failure(msgspec.structs.replace(message, reconsume_times=reconsumed))
    assert caplog.messages[-1].endswith(f"failed, {said}")
