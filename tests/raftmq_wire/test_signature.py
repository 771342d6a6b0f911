"""Signatures of requests: the bytes that RocketMQ's clients sign, and every change of them."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftmq_wire.codec import Header, ext_of
from raftmq_wire.signature import ACCESS_KEY, SIGNATURE, UNIQUE_QUERY, V4_9_3, Credentials, content, is_right, sign

SECRET = b"12345678"


def test_values_are_signed_in_the_order_of_their_names_and_then_the_body() -> None:
    ext = {"b": "topic", "a": "group", SIGNATURE: "old", ACCESS_KEY: "user", "Z": "26"}
    assert content(ext, b"body") == b"user26grouptopicbody"
    expected = base64.b64encode(hmac.new(SECRET, b"user26grouptopicbody", hashlib.sha1).digest()).decode()
    assert sign(SECRET, content(ext, b"body")) == expected


def test_clients_up_to_4_9_3_leave_a_field_out() -> None:
    ext = {"topic": "t", UNIQUE_QUERY: "true"}
    assert content(ext, b"", version=V4_9_3) == b"t"
    assert content(ext, b"", version=V4_9_3 + 1) == b"truet"


def test_numbers_and_booleans_are_signed_as_the_client_wrote_them() -> None:
    import msgspec

    header = Header(310, extFields=msgspec.Raw(b'{"e":0,"k":false,"m":true,"AccessKey":"u","n":null}'))
    assert content(ext_of(header), b"") == b"u0falsetrue"


@given(st.dictionaries(st.text("abAB", min_size=1), st.text(max_size=5), max_size=5), st.binary(max_size=20))
def test_what_credentials_sign_is_right(ext: dict[str, str], body: bytes) -> None:
    signed = Credentials("user", SECRET.decode()).signed(ext, body)
    assert is_right(SECRET, content(signed, body), signed[SIGNATURE])
    assert not is_right(b"another", content(signed, body), signed[SIGNATURE])
    assert not is_right(SECRET, content(signed, body + b"x"), signed[SIGNATURE])
    assert not is_right(SECRET, content({**signed, "c": "x"}, body), signed[SIGNATURE])


@pytest.mark.parametrize("signature", ["", "x", "ü", "A" * 10_000])
def test_what_is_no_signature_is_wrong(signature: str) -> None:
    assert not is_right(SECRET, b"content", signature)


def test_credentials_do_not_show_the_secret() -> None:
    assert repr(Credentials("user", "the-secret")) == "Credentials('user')"
