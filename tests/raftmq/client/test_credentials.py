"""The user in whose name a client signs: arguments, or the environment; both halves or none."""

from __future__ import annotations

import pickle

import pytest

from raftmq.client.environment import REAL, IncompleteUser, with_credentials
from raftmq.client.producing.send_frame import FrameWriter, MessageIds, build_batch, build_single
from raftmq_wire.codec import decode_header, ext_of
from raftmq_wire.signature import ACCESS_KEY, SIGNATURE, Credentials, content, is_right
from tests.support.rows import each_row

BOTH = {"RAFTMQ_ACCESS_KEY": "shop", "RAFTMQ_SECRET_KEY": "the-secret-of-shop"}


def user_of(access_key: str, secret_key: str, environ: dict[str, str]) -> str | None:
    found = with_credentials(REAL, access_key, secret_key, environ).credentials
    return None if found is None else found.access_key


def test_arguments_come_before_the_environment() -> None:
    assert user_of("", "", {}) is None
    assert user_of("", "", BOTH) == "shop"
    assert user_of("root", "the-secret-of-root", BOTH) == "root"


@each_row(("access_key", "secret_key", "environ", "given", "missing"), [
    ("shop", "", {}, "access_key=", "secret_key="),
    ("", "the-secret", {}, "secret_key=", "access_key="),
    ("shop", "", BOTH, "access_key=", "secret_key="),
    ("", "", {"RAFTMQ_ACCESS_KEY": "shop"}, "RAFTMQ_ACCESS_KEY", "RAFTMQ_SECRET_KEY"),
    ("", "", {"RAFTMQ_SECRET_KEY": "the-secret"}, "RAFTMQ_SECRET_KEY", "RAFTMQ_ACCESS_KEY"),
])  # fmt: skip
def test_one_half_is_a_mistake_and_is_not_shown(
    access_key: str, secret_key: str, environ: dict[str, str], given: str, missing: str
) -> None:
    with pytest.raises(IncompleteUser, match="give both, or none") as caught:
        with_credentials(REAL, access_key, secret_key, environ)
    assert (caught.value.given, caught.value.missing) == (given, missing)
    assert str(caught.value).startswith(f"{given} is given, and {missing} is not")
    assert "the-secret" not in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value), "a task of Spark may raise it"


@pytest.mark.parametrize("batch", [False, True])
def test_a_signed_send_says_what_an_unsigned_one_says(batch: bool) -> None:
    ids = MessageIds(bytes(10))
    request = build_batch(ids, "T", [b"a", b"b"]) if batch else build_single(ids, "T", b"body", tag="x", key="k")
    plain = FrameWriter("g", bytes(16)).frame(request, 3, 7, 5, 1_700)
    signed = FrameWriter("g", bytes(16), Credentials("shop", "the-secret-of-shop")).frame(request, 3, 7, 5, 1_700)
    headers = [decode_header(frame[4], frame[8 : 8 + int.from_bytes(frame[5:8], "big")]) for frame in (plain, signed)]
    before, after = map(ext_of, headers)
    signature = after.pop(SIGNATURE)
    assert is_right(b"the-secret-of-shop", content(after, request.body), signature)
    assert after.pop(ACCESS_KEY) == "shop"
    assert after == before
    assert (headers[0].code, headers[0].opaque, headers[0].flag) == (
        headers[1].code,
        headers[1].opaque,
        headers[1].flag,
    )
    assert plain.endswith(request.body)
    assert signed.endswith(request.body)
