"""Promises of the whole client: public signatures, one logger, one loop, errors in words, retries that are told."""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
import socket
from pathlib import Path
from typing import Any

import pytest

import raftmq
from raftmq.client import FlushResult, RaftMQError, Refused, Retry, Unknown, Unreachable, aconnect, connect
from raftmq.client.errors import error_of
from raftmq_wire.codes import RequestCode, ResponseCode
from tests.support.plain_server import Listen
from tests.support.rows import each_row

FOLDER = Path(raftmq.__file__).parent


def public_callables() -> list[tuple[str, Any]]:
    found = []
    for name in raftmq.client.__all__:
        value = getattr(raftmq.client, name)
        found.append((name, value))
        if inspect.isclass(value):
            own = [(k, v) for k, v in vars(value).items() if inspect.isfunction(v) or isinstance(v, property)]
            found += [
                (f"{name}.{k}", v.fget if isinstance(v, property) else v) for k, v in own if not k.startswith("_")
            ]
    return found


def test_no_public_signature_says_any_or_takes_options_without_names() -> None:
    wrong = []
    for name, value in public_callables():
        try:
            signature = str(inspect.signature(value))
        except (TypeError, ValueError):
            continue
        if re.search(r"\bAny\b", signature):
            wrong.append(f"{name}{signature}")
    assert not wrong
    assert (FOLDER / "py.typed").is_file()


def test_there_is_one_logger() -> None:
    names = set()
    for file in (FOLDER / "client").rglob("*.py"):
        names |= set(re.findall(r"getLogger\((.*?)\)", file.read_text()))
    assert names == {'"raftmq"'}


@each_row("code", sorted({*ResponseCode, 4242}))
@each_row("maybe", [False, True])
def test_no_error_has_an_internal_name(code: int, maybe: bool) -> None:
    error = error_of(code, None, "send to orders", maybe=maybe)
    assert error.code == code
    said = f"{error} {error.hint}".replace("RAFTMQ_ACCESS_KEY, RAFTMQ_SECRET_KEY", "")
    assert not re.search(r"[A-Z]{2,}_[A-Z]|raftmq\.client|cluster\.", said)
    assert getattr(error, "__notes__", []) == ([error.hint] if error.hint else [])
    happened = r"send to orders: [a-z ]+ \(code \d+\)( \(an attempt may have been carried out\))?"
    assert re.fullmatch(happened, str(error)), "what to do is in the hint"


def test_denied_is_a_refusal_of_its_own() -> None:
    error = error_of(ResponseCode.NO_PERMISSION, "user shop may not write orders", "send to orders")
    assert type(error) is raftmq.Denied
    assert isinstance(error, raftmq.Refused)
    assert type(error.about(("id",))) is raftmq.Denied


def test_a_client_in_a_second_loop_says_so(fake_in_thread: Any) -> None:
    fake_in_thread.create("orders", 1)
    mq = aconnect(fake_in_thread.servers)

    async def opened() -> tuple[Any, Any]:
        await mq.send("orders", b"x")
        return mq.producer(), await mq.consumer("billing", "orders").open()

    async def tried(use: Any) -> None:
        await use()

    with asyncio.Runner() as first, asyncio.Runner() as second:
        producer, consumer = first.run(opened())
        for use in (
            lambda: mq.send("orders", b"y"),
            lambda: producer.send("orders", b"y"),
            lambda: producer.flush(),
            lambda: mq.pull("orders", 0, 0),
            lambda: mq.admin.topics(),
            lambda: consumer.poll(1),
            lambda: consumer.commit(),
            lambda: mq.close(),
        ):
            with pytest.raises(RuntimeError, match="the event loop of its first use, which is another one"):
                second.run(tried(use))
        first.run(mq.close())
    assert fake_in_thread.bodies("orders") == [b"x"]


def test_a_client_whose_loop_has_ended_says_so() -> None:
    mq = aconnect("127.0.0.1:1")

    async def first() -> None:
        mq.producer()

    async def second() -> None:
        await mq.admin.topics()

    asyncio.run(first())
    with pytest.raises(RuntimeError, match=r"which has ended: make a client with aconnect\(\) inside each asyncio.run"):
        asyncio.run(second())


async def test_a_flush_says_what_became_of_the_sends(fake: Any, step: Any) -> None:
    fake.create("orders", 1)
    fake.nodes[0].steps.extend([step(), step(store=False, code=13, remark="too large"), step()])
    async with aconnect(fake.servers) as mq, mq.producer() as p:
        futures = [await p.send_soon("orders", b"%d" % n) for n in range(3)]
        result = await p.flush()
        assert (result.stored, result.failed, result.unknown, result.all_stored) == (2, 1, 0, False)
        assert isinstance(futures[1].exception(), Refused)
        with pytest.raises(Refused, match="too large"):
            result.raise_for_errors()
        await p.send_soon("orders", b"3")
        again = await p.flush()
        assert again == FlushResult(1, 0, 0, None)
        assert again.all_stored
        again.raise_for_errors()


async def test_a_flush_counts_what_may_be_stored(fake: Any, step: Any) -> None:
    fake.create("orders", 1)
    for node in fake.nodes:
        node.steps.extend([step(code=None)] * 50)
    async with aconnect(fake.servers) as mq, mq.producer(timeout_s=0.3) as p:
        futures = [await p.send_soon("orders", b"%d" % n) for n in range(3)]
        result = await p.flush()
        assert (result.stored, result.failed, result.unknown) == (0, 0, 3)
        assert all(isinstance(f.exception(), Unknown) for f in futures)
        with pytest.raises(Unknown) as caught:
            result.raise_for_errors()
        assert caught.value.__notes__[-1] == "and 2 more sends of this producer were not stored, or may not be"


async def test_retries_are_told_with_address_and_cause(fake: Any, step: Any) -> None:
    fake.create("orders", 1)
    told: list[Retry] = []
    address = fake.nodes[0].address
    fake.nodes[0].steps.extend([step(store=False, code=2, remark="too many sends"), step(close=True)])
    async with aconnect(fake.servers, on_retry=told.append) as mq:
        await mq.send("orders", b"x")
    assert fake.bodies("orders") == [b"x"]
    assert told[0] == Retry("send to orders", address, "says: too many sends", 2, 1)
    assert (told[1].address, told[1].cause, told[1].requests) == (address, "closed the connection", 1)


async def test_a_server_that_hangs_up_on_plain_text_may_take_tls_alone(listens: Listen) -> None:
    host, port = await listens(hangs_up=True)
    async with aconnect(f"{host}:{port}") as mq:
        with pytest.raises(Unreachable) as caught:
            await mq.view.call(RequestCode.GET_MAX_OFFSET, {}, what="offset", timeout_s=0.3)
    assert "tls=Tls(ca=FILE)" in caught.value.hint


async def test_a_call_that_is_repeated_is_told(fake: Any) -> None:
    fake.create("orders", 1)
    told: list[Retry] = []

    def busy(connection: Any, opaque: int, ext: dict[str, str], body: bytes) -> None:
        del fake.handlers[int(RequestCode.GET_MAX_OFFSET)]
        connection.reply(opaque, 2, remark="busy for a moment")

    fake.handlers[int(RequestCode.GET_MAX_OFFSET)] = busy
    async with aconnect(fake.servers, on_retry=told.append) as mq:
        assert await mq.admin.max_offset("orders", 0) == 0
    assert [str(retry) for retry in told] == [
        "last offset of orders queue 0: the leader says: busy for a moment",
    ]


def test_an_on_retry_that_fails_harms_nothing(fake_in_thread: Any, step: Any, caplog: pytest.LogCaptureFixture) -> None:
    fake_in_thread.create("orders", 1)
    fake_in_thread.nodes[0].steps.append(step(store=False, code=2, remark="busy"))

    def fails(_: Retry) -> None:
        raise LookupError("the program's own")

    with connect(fake_in_thread.servers, on_retry=fails) as mq:
        assert mq.send("orders", b"x").queue_offset == 0
    assert "on_retry failed" in caplog.text
    with pytest.raises(TypeError, match="on_retry is a function of a Retry, not str"):
        connect(fake_in_thread.servers, on_retry="print")  # type: ignore[arg-type]


async def test_an_unknown_send_names_the_address_and_the_cause(fake: Any, step: Any) -> None:
    fake.create("orders", 1)
    for node in fake.nodes:
        node.steps.extend([step(close=True)] * 200)
    async with aconnect(fake.servers, timeout_s=0.5) as mq:
        with pytest.raises(Unknown, match=f"{re.escape(fake.nodes[0].address)} closed the connection"):
            await mq.send("orders", b"x")


async def test_what_is_wrong_is_logged_long_before_the_deadline(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        closed = f"127.0.0.1:{listening.getsockname()[1]}"
    with caplog.at_level(logging.INFO, "raftmq"):
        async with aconnect(closed, timeout_s=60) as mq:
            producer = mq.producer()
            sending = asyncio.create_task(producer.send("orders", b"x"))
            while f"no leader found yet: {closed} refuses connections" not in caplog.messages:
                await asyncio.sleep(0.01)
            assert not sending.done()
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            producer.pipeline.abandon()


def test_errors_are_raftmq_errors() -> None:
    for error in (Unreachable, Unknown, Refused, raftmq.Denied, raftmq.NotFound, raftmq.Failed):
        assert issubclass(error, RaftMQError)
