"""Errors of object stores: which may be retried, and after which a write may have been carried out."""

from __future__ import annotations

import socket

import pytest

from cluster.config.storage_sections import TierSection
from cluster.tier.store import errors
from cluster.tier.store.store_by_url import open_store
from tests.support.plain_server import Listen

FINAL = (errors.NotFound, errors.AlreadyExists, errors.Conflict, errors.Denied, errors.Unsupported)
REFUSED_FOR_NOW = (errors.Throttled, errors.Full)
UNKNOWN = (errors.Unreachable, errors.BadAnswer)


def test_only_what_nobody_answered_properly_is_unknown() -> None:
    for kind in (*FINAL, *REFUSED_FOR_NOW, *UNKNOWN):
        assert (kind.retryable, kind.outcome_unknown) == (kind not in FINAL, kind in UNKNOWN)


def test_a_message_ends_with_what_to_change() -> None:
    assert str(errors.Denied("the key is unknown", "set AWS_ACCESS_KEY_ID")).endswith("; set AWS_ACCESS_KEY_ID")
    assert str(errors.NotFound("there is no x")) == "there is no x"


def refusing_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


async def why_unreachable(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> str:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    store = open_store("s3://bucket/prefix", TierSection(endpoint=endpoint, region="us-east-1"))
    with pytest.raises(errors.Unreachable) as raised:
        await store.head("a")
    await store.close()
    return str(raised.value)


async def test_why_nobody_answers_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's first line is the same for all of these; what the system said stands at the bottom of its text."""
    port = refusing_port()
    refused = await why_unreachable(monkeypatch, f"http://127.0.0.1:{port}")
    request = f"HEAD http://127.0.0.1:{port}/bucket/prefix/a"
    assert refused == f"a: Connection refused ({request}); check tier.endpoint, the network, and that the store runs"
    unknown = await why_unreachable(monkeypatch, "http://no-such-host.invalid")
    assert unknown.startswith("a: ")
    assert "error sending request" not in unknown
    assert "HEAD http://no-such-host.invalid/" in unknown


async def test_an_endpoint_without_tls_is_said(monkeypatch: pytest.MonkeyPatch, listens: Listen) -> None:
    _, port = await listens(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    assert "no TLS connection" in await why_unreachable(monkeypatch, f"https://127.0.0.1:{port}")
