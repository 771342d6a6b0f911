"""A pull's fields are read at once or one by one, and come out the same: whatever a client writes."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from cluster.broker.refusal import Refused
from cluster.remoting.handlers import pull as pulls
from cluster.remoting.handlers.pull import decode_pull, read_one_by_one
from tests.cluster.remoting.conftest import FakeConnection, FakeRequest
from tests.support.rows import each_row

FIELDS = {"consumerGroup": "g", "topic": "t", "queueId": "3", "queueOffset": "40", "maxMsgNums": "32", "sysFlag": "2"}
MORE = (
    *("commitOffset", "suspendTimeoutMillis", "subVersion", "maxMsgBytes", "subscription", "expressionType"),
    *("bname", "raftmqTopicId"),
)
VALUES = ("", "0", "-1", "7", "+7", " 7", "7_0", "007", "x", "TAG", "SQL92", str(2**63 - 1), str(2**63), "9" * 40, "٣")


def request_of(ext: dict[str, str]) -> FakeRequest:
    return FakeRequest(FakeConnection(), 11, ext, b"", oneway=False)


def told(ext: dict[str, str], monkeypatch: pytest.MonkeyPatch, *, at_once: bool) -> object:
    with monkeypatch.context() as patched:
        if not at_once:
            patched.setattr(pulls, "_decode", lambda _: (_ for _ in ()).throw(msgspec.ValidationError("as asked")))
        try:
            wish = decode_pull(request_of(ext))
            return wish.compares_tags(), wish[:-1]
        except Refused as refused:
            return refused.reason, refused.remark


@each_row("seed", range(20))
def test_both_ways_read_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    for _ in range(50):
        ext = {**FIELDS, "sysFlag": str(rng.randrange(16))}
        for name in rng.sample(MORE, rng.randrange(4)):
            ext[name] = rng.choice(VALUES)
        if rng.random() < 0.3:
            ext[rng.choice(list(FIELDS))] = rng.choice(VALUES)
        if rng.random() < 0.1:
            del ext[rng.choice(list(FIELDS))]
        assert told(ext, monkeypatch, at_once=True) == told(ext, monkeypatch, at_once=False), ext


def test_an_ordinary_pull_is_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(request: object) -> Any:
        raise AssertionError("one by one")

    monkeypatch.setattr(pulls, "read_one_by_one", never)
    wish = decode_pull(request_of({**FIELDS, "commitOffset": "5", "subscription": "*", "bname": "b", "lo": "false"}))
    assert (wish.group, wish.queue_id, wish.offset, wish.messages_max) == ("g", 3, 40, 32)
    with pytest.raises(AssertionError, match="one by one"):
        decode_pull(request_of({**FIELDS, "somethingNew": "1"}))


def test_a_field_that_is_missing_is_named() -> None:
    ext = dict(FIELDS)
    del ext["queueOffset"]
    with pytest.raises(Refused, match="needs field queueOffset"):
        read_one_by_one(request_of(ext))
