"""The search for secrets sees through the usual encodings, wherever the secret stands in what is encoded."""

from __future__ import annotations

import base64
import json
from urllib.parse import quote, quote_plus, urlencode

from tests.support.rows import each_row
from tests.support.secret_forms import found_in

SECRET = 'a "planted" secret/of+9?&=\\~~~1f0c9a77'
AROUND = [(before, after) for before in range(4) for after in range(4)]


@each_row(("before", "after"), AROUND)
def test_base64_at_any_place(before: int, after: int) -> None:
    text = b"x" * before + SECRET.encode() + b"\xff" * after
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        assert found_in(b"<" + encode(text) + b">", {"it": SECRET.encode()}) == ["it"]
        assert found_in(encode(text.replace(b"planted", b"Planted")), {"it": SECRET.encode()}) == []


@each_row(
    "content",
    [
        SECRET.encode(),
        quote(SECRET).encode(),
        quote(SECRET, safe="").encode(),
        quote_plus(SECRET).encode(),
        urlencode({"secret": SECRET}).encode(),
        json.dumps({"secret": SECRET}).encode(),
        SECRET.encode().hex().encode(),
        SECRET.encode("utf-16"),
    ],
)
def test_other_encodings(content: bytes) -> None:
    assert found_in(b"before " + content + b" after", {"other": b"another", "it": SECRET.encode()}) == ["it"]
