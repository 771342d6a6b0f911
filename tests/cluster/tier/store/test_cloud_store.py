"""The S3 adapter against a server in another process, and a proxy between them that breaks answers."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import pytest

from cluster.config.storage_sections import TierSection
from cluster.tier.store.errors import (
    AlreadyExists,
    BadAnswer,
    Conflict,
    Denied,
    NotFound,
    StoreError,
    Throttled,
    Unreachable,
    Unsupported,
)
from cluster.tier.store.object_store import ObjectStore, probe
from cluster.tier.store.store_by_url import CloudLimits, check_url, keys_of, open_store
from raftmq_wire.errors import LocalError
from tests.support import s3_server
from tests.support.pace import at_most
from tests.support.rows import each_row
from tests.support.s3_server import BUCKET, BreakingProxy

RACER = """
import asyncio, random, sys
from cluster.config.config import TierSection
from cluster.tier.store.store_by_url import open_store
from cluster.tier.store.errors import Conflict
from cluster.tier.store.retrying_store import RequestCounts
from cluster.tier.store.retrying_store import RetryingStore, RetryPolicy

async def main(url, endpoint, keys, increments):
    inner = open_store(url, TierSection(endpoint=endpoint, region="us-east-1", credentials_file=keys))
    store, done = RetryingStore(inner, RetryPolicy(), random.Random(), RequestCounts()), 0
    while done < increments:
        now = await store.get("counter", 100)
        try:
            await store.replace("counter", str(int(now.data) + 1).encode(), now.tag)
            done += 1
        except Conflict as conflict:
            assert not conflict.maybe_ours, "the test cannot count what is unknown"
    await store.close()

asyncio.run(main(*sys.argv[1:4], int(sys.argv[4])))
"""


class Broken(NamedTuple):
    """A store behind the proxy; one object "a" of 1000 bytes is there."""

    store: ObjectStore
    proxy: BreakingProxy


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with s3_server.moto() as endpoint:
        yield endpoint


@pytest.fixture
async def broken(endpoint: str, tmp_path: Path) -> AsyncIterator[Broken]:
    async with BreakingProxy(endpoint) as proxy:
        store = open_store(f"s3://{BUCKET}/{uuid4().hex}", s3_server.options(proxy.endpoint, tmp_path))
        await store.create("a", bytes(1000))
        yield Broken(store, proxy)
        await store.close()


def reply(status: str, body: str = "", head: str = "") -> Callable[[bytes, bytes], bytes]:
    text = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{head}Connection: close\r\n\r\n{body}"
    return lambda request, answer: text.encode()


def error(status: str, code: str) -> Callable[[bytes, bytes], bytes]:
    return reply(status, f"<Error><Code>{code}</Code><Message>the reason</Message></Error>")


def half(request: bytes, answer: bytes) -> bytes:
    head, body = answer.split(b"\r\n\r\n", 1)
    return head + b"\r\n\r\n" + body[: len(body) // 2]


def half_that_fits(request: bytes, answer: bytes) -> bytes:
    """Returns half of an answer, with a length that agrees with what comes."""
    head, body = answer.split(b"\r\n\r\n", 1)
    kept = body[: len(body) // 2]
    return re.sub(rb"(?i)content-length: *\d+", b"Content-Length: %d" % len(kept), head) + b"\r\n\r\n" + kept


def calls(store: ObjectStore) -> dict[str, Callable[[], Awaitable[object]]]:
    async def listed() -> object:
        return [info async for info in store.list()]

    return {
        "get": lambda: store.get("a", 1000),
        "get_range": lambda: store.get_range("a", 0, 1000),
        "head": lambda: store.head("a"),
        "list": listed,
        "create": lambda: store.create("b", b"1"),
        "replace": lambda: store.replace("a", b"1", '"tag"'),
        "delete": lambda: store.delete("a"),
    }


READS = ("get", "get_range", "list")
ALL = ("get", "get_range", "head", "list", "create", "replace", "delete")


@pytest.mark.parametrize(
    ("breaks", "names", "kind"),
    [
        (error("503 Slow Down", "SlowDown"), ALL, Throttled),
        (error("429 Too Many Requests", "TooMany"), ALL, Throttled),
        (error("500 Internal Server Error", "InternalError"), ALL, Unreachable),
        (lambda request, answer: b"", ALL, Unreachable),
        (half, READS, Unreachable),
        (half_that_fits, ("get_range",), BadAnswer),
        (
            reply("200 OK", "<Error><Code>InternalError</Code></Error>"),
            ("get", "get_range", "create", "replace"),
            StoreError,
        ),
        (error("403 Forbidden", "AccessDenied"), ALL, Denied),
    ],
    ids=["slow-down", "429", "500", "reset", "half", "half-that-fits", "200-with-an-error", "403"],
)
async def test_a_broken_answer_is_a_typed_error(
    broken: Broken, breaks: Callable[[bytes, bytes], bytes | None], names: tuple[str, ...], kind: type[StoreError]
) -> None:
    broken.proxy.breaks = breaks
    for name in names:
        with pytest.raises(kind) as raised:
            await calls(broken.store)[name]()
        assert not isinstance(raised.value, NotFound | AlreadyExists | Conflict), name


async def test_an_error_in_a_successful_listing_looks_like_an_empty_folder(broken: Broken) -> None:
    """The library cannot tell: so nobody may conclude from a listing alone that an object is gone."""
    broken.proxy.breaks = reply("200 OK", "<Error><Code>InternalError</Code></Error>")
    assert [info async for info in broken.store.list()] == []


async def test_a_server_that_hangs_is_unreachable(broken: Broken, tmp_path: Path) -> None:
    broken.proxy.breaks = lambda request, answer: None
    given = s3_server.options(broken.proxy.endpoint, tmp_path)
    impatient = open_store(f"s3://{BUCKET}/hangs", given, CloudLimits(request_s=1))
    with pytest.raises(Unreachable, match="no answer in time"):
        await impatient.head("a")
    await impatient.close()


async def test_a_write_whose_answer_is_lost_was_carried_out(broken: Broken) -> None:
    broken.proxy.breaks = lambda request, answer: b""
    with pytest.raises(Unreachable) as raised:
        await broken.store.create("b", b"1")
    assert raised.value.outcome_unknown
    broken.proxy.breaks = lambda request, answer: answer
    with pytest.raises(AlreadyExists):
        await broken.store.create("b", b"1")


async def test_a_conflicting_write_under_way_is_no_answer_about_the_name(broken: Broken) -> None:
    """S3 answers 409 while another conditional write of the name goes on; it may fail, and nothing is there then."""
    broken.proxy.breaks = error("409 Conflict", "ConditionalRequestConflict")
    for name in ("create", "replace"):
        with pytest.raises(Throttled, match="under way"):
            await calls(broken.store)[name]()


@pytest.mark.parametrize(
    ("status", "code", "fix"),
    [
        ("403 Forbidden", "RequestTimeTooSkewed", "clock"),
        ("403 Forbidden", "InvalidAccessKeyId", "AWS_ACCESS_KEY_ID"),
        ("403 Forbidden", "SignatureDoesNotMatch", "secret key"),
        ("400 Bad Request", "AuthorizationHeaderMalformed", "tier.region"),
        ("301 Moved Permanently", "PermanentRedirect", "tier.region"),
        ("400 Bad Request", "ExpiredToken", "session token"),
    ],
)
async def test_a_refusal_says_what_to_change(broken: Broken, status: str, code: str, fix: str) -> None:
    broken.proxy.breaks = error(status, code)
    with pytest.raises(Denied, match=fix) as raised:
        await broken.store.get("a", 1000)
    assert code in str(raised.value) or "redirect" in str(raised.value)


async def test_an_answer_that_repeats_the_keys_is_not_repeated(broken: Broken) -> None:
    echo = "<Error><Code>SignatureDoesNotMatch</Code><AWSAccessKeyId>access-key</AWSAccessKeyId>secret-key</Error>"
    broken.proxy.breaks = reply("403 Forbidden", echo)
    with pytest.raises(Denied) as raised:
        await broken.store.get("a", 1000)
    shown = "".join(map(str, (raised.value, raised.value.__cause__)))
    assert "access-key" not in shown
    assert "secret-key" not in shown


async def test_a_server_that_answers_404_to_unknown_keys_denies(broken: Broken) -> None:
    broken.proxy.breaks = error("404 Not Found", "InvalidAccessKeyId")
    for name in ("get", "create", "delete"):
        with pytest.raises(Denied, match="AWS_ACCESS_KEY_ID"):
            await calls(broken.store)[name]()


async def test_endpoint_and_keys_may_come_from_the_environment(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("AWS_ENDPOINT_URL", endpoint),
        ("AWS_ACCESS_KEY_ID", "access-key"),
        ("AWS_SECRET_ACCESS_KEY", "secret-key"),
        ("AWS_REGION", "us-east-1"),
    ):
        monkeypatch.setenv(name, value)
    await probe(open_store(f"s3://{BUCKET}/{uuid4().hex}"), "c1", "00ff")


async def test_an_absent_bucket_is_told_from_an_absent_object(endpoint: str, tmp_path: Path) -> None:
    store = open_store("s3://nowhere/p", s3_server.options(endpoint, tmp_path))
    for call in (store.create("a", b""), store.get("a", 1)):
        with pytest.raises(NotFound, match="bucket"):
            await call


async def test_an_object_is_written_by_one_request(broken: Broken) -> None:
    """The condition of a multipart upload holds only at its end, and one that breaks off leaves parts behind."""
    del broken.proxy.requests[:]
    await broken.store.create("large", bytes(16 << 20))
    assert [line.split()[0] for line in broken.proxy.requests] == [b"PUT"]


async def test_a_server_that_ignores_conditions_is_found(broken: Broken) -> None:
    broken.proxy.asks = lambda head: re.sub(rb"(?im)^if-(none-)?match:.*\r\n", b"", head)
    with pytest.raises(Unsupported, match="If-None-Match is ignored"):
        await probe(broken.store, "c1", "0123")


@pytest.mark.parametrize(
    ("racers", "increments"), [(3, 10), pytest.param(8, 50, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_processes_that_race_lose_no_increment(endpoint: str, tmp_path: Path, racers: int, increments: int) -> None:
    url, given = f"s3://{BUCKET}/{uuid4().hex}", s3_server.options(endpoint, tmp_path)

    async def first() -> None:
        await open_store(url, given).create("counter", b"0")

    async def last() -> bytes:
        return (await open_store(url, given).get("counter", 100)).data

    asyncio.run(first())
    arguments = [url, given.endpoint, given.credentials_file, str(increments)]
    racing = [subprocess.Popen([sys.executable, "-c", RACER, *arguments]) for _ in range(racers)]
    assert [racer.wait(at_most(100)) for racer in racing] == [0] * racers
    assert asyncio.run(last()) == str(racers * increments).encode()


def test_keys_are_read_again_and_never_shown(tmp_path: Path) -> None:
    path = tmp_path / "credentials"
    path.write_text(s3_server.KEYS)
    keys = keys_of(path, "default")
    assert keys()["secret_access_key"] == "secret-key"
    path.write_text(s3_server.KEYS.replace("secret-key", "rotated") + "aws_session_token = t\n")
    assert (keys()["secret_access_key"], keys()["token"]) == ("rotated", "t")
    assert keys()["expires_at"].tzinfo is not None
    for text in ("secret-key without a section", "[default]\nsecret-key\n", "[other]\n"):
        path.write_text(text)
        with pytest.raises(ValueError, match="has no keys for the profile default") as raised:
            keys()
        assert "secret-key" not in str(raised.value)
    path.unlink()
    with pytest.raises(ValueError, match="cannot be read"):
        keys()


async def test_rotated_keys_are_used_without_a_restart(broken: Broken, tmp_path: Path) -> None:
    seen: list[bytes] = []

    def note(request: bytes, answer: bytes) -> bytes:
        seen.append(request)
        return answer

    broken.proxy.breaks = note
    given, at_once = (
        s3_server.options(broken.proxy.endpoint, tmp_path),
        CloudLimits(keys_max_age_s=0, renewed_before=timedelta()),
    )
    store = open_store(f"s3://{BUCKET}/rotated", given, at_once)
    await store.create("a", b"")
    (tmp_path / "credentials").write_text(s3_server.KEYS.replace("access-key", "second-key"))
    await store.head("a")
    assert [re.search(rb"Credential=([a-z-]+)", head)[1] for head in seen] == [b"access-key", b"second-key"]  # type: ignore[index]


@each_row(
    "url",
    [
        "",
        "s3:",
        "s3://",
        "/path",
        "file://host/path",
        "file:///",
        "http://host/b",
        "s3://b/p?x=1",
        "memory:x",
        "ftp://a",
    ],
)
def test_a_url_that_names_no_store_is_refused(url: str) -> None:
    with pytest.raises(LocalError, match=r"tier\.url"):
        check_url(url)


@each_row(
    "url",
    [
        "s3://key:secret@bucket/p",
        "s3://key:secret@[x/b",
        "s3://key:secret\u2100@bucket/p",
        "az://account/p?sig=secret",
        "s3://bucket/p#secret",
        "s3:?secret",
    ],
)
def test_keys_in_a_url_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(LocalError) as raised:
        check_url(url)
    assert "secret" not in str(raised.value)


def test_options_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="cannot be read"):
        open_store("s3://b/p", TierSection(credentials_file=str(tmp_path / "absent")))
    with pytest.raises(LocalError, match="absent"):
        open_store("s3://b/p", TierSection(ca_file=str(tmp_path / "absent")))


@pytest.mark.parametrize("url", ["s3://b/p", "gs://b/p", "az://container/p"])
def test_every_cloud_has_a_client(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    assert open_store(url, TierSection(encryption="AES256")).root == url
