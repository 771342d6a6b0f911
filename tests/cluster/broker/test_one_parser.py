"""Every reader of properties finds the same in the same bytes: one rule, whoever asks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cluster.admin.handlers.messages import message_parts
from cluster.broker.delivery_time import Delays, is_half, level_of, producer_group_of
from cluster.broker.filters.sql import SqlFilter
from cluster.broker.filters.subscription import tag_hashes
from cluster.broker.message_copies import copied
from cluster.broker.pulls.filter_search import Verdicts
from cluster.broker.reads.message_lookup import KeyQuery, is_wanted
from cluster.broker.refusal import Refused
from cluster.broker.sends.redelivery import copied_properties
from cluster.broker.transactions.transaction_end import Decision, Ending, mismatch
from cluster.remoting.handlers.request_reply import RequesterNotes
from cluster.replication import message_batch
from cluster.replication.acks.ack_levels import Ack, ack_of
from cluster.replication.message_batch import Send
from raftmq.arrow.batches import to_batches
from raftmq.arrow.frames import parse_frames
from raftmq.client.message import decode_messages
from raftmq.commands.messages.printing import to_json
from raftmq_wire.message_format import BatchItem, Message, build_batch, encode_message, java_hash
from raftmq_wire.properties import parse_properties, property_of, values_of
from statemachine.message_index import RECORD, key_hash
from statemachine.payload import ITEM, RowKind, decode
from tests.support.contexts import CONFIG
from tests.support.intake_kit import INCARNATION, STORE_HOST, Node, request
from tests.support.kernels import native_kernel, twins

Told = Mapping[str, object]
"""What one reader finds: some of the names in `right`."""


def told(data: bytes) -> dict[bytes, bytes]:
    """The rule of RocketMQ's MessageDecoder.string2messageProperties, step by step."""
    found: dict[bytes, bytes] = {}
    at = 0
    while at < len(data):
        end = data.find(b"\x02", at)
        end = len(data) if end < 0 else end
        between = data.find(b"\x01", at, end)
        if at < between < end - 1:
            found[data[at:between]] = data[between + 1 : end]
        at = end + 1
    return found


def text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def right(data: bytes) -> dict[str, object]:
    """Everything that any reader may find."""
    found = told(data)
    tag, key = text(found.get(b"TAGS", b"")), text(found.get(b"UNIQ_KEY", b""))
    words = [word for word in dict.fromkeys(found.get(b"KEYS", b"").split(b" ")) if word]
    return {
        "tag": tag or None,
        "tag hash": java_hash(tag) if tag else 0,
        "keys": text(found[b"KEYS"]) if b"KEYS" in found else None,
        "key words": words,
        "key": key,
        "all": {text(name): text(value) for name, value in found.items()},
        "level": int(found.get(b"DELAY", b"0")),
        "half": found.get(b"TRAN_MSG", b"").lower() == b"true",
        "group": text(found.get(b"PGROUP", b"")),
        "ack": Ack.ALL if b"ACK_LEVEL" in found else Ack.LEADER if found.get(b"WAIT") == b"false" else Ack.QUORUM,
        "asks": [text(found[b"REPLY_TO_CLIENT"])] if b"REPLY_TO_CLIENT" in found else [],
    }


# --- the readers ------------------------------------------------------------------------------------------------------


def parsed(data: bytes, of: Callable[[bytes, bytes], bytes]) -> Told:
    return {"tag": text(of(data, b"TAGS\x01")) or None, "key": text(of(data, b"UNIQ_KEY\x01"))}


def kept_values(data: bytes) -> Told:
    return parsed(data, lambda properties, mark: (values_of(properties, mark) or [b""])[-1])


def indexed(data: bytes, send: Send) -> Told:
    """What the row and the index have of a send. A key that the broker gave is none of the message's own."""
    built = message_batch.build([send], entry_position=0, store_ms=0, store_host=STORE_HOST)
    (one,) = send.batch or (send,)
    key = one.unique_key.encode() if isinstance(one.unique_key, str) else one.unique_key
    records = decode(built.payload).keys
    words = right(data)["key words"]
    assert isinstance(words, list)
    wanted = [RECORD.pack(key_hash(send.slot.topic_id, word), 0)[:4] for word in [key, *words]]
    assert [records[at : at + 4] for at in range(0, len(records), RECORD.size)] == wanted, "the index"
    return {"tag hash": one.tag_hash, "key": "" if key.startswith(INCARNATION.hex().encode()) else text(key)}


def by_a_send(data: bytes, *, short: bool) -> Told:
    """A send over remoting, by the kernel in use or the long way of Python. Waiting messages have other rows."""
    wanted, node = right(data), Node()
    frame = request(data.decode(), ascii_only=False)
    if short:
        sends = node.read(frame)
    else:
        node.long_way(frame, 4, len(frame))
        sends = list(node.queue.waiting)
    if wanted["half"] and not wanted["group"]:
        assert not sends
        return {}
    (send,) = sends
    found: dict[str, object] = {"half": send.kind == RowKind.HALF, "ack": send.ack or Ack.QUORUM}
    if send.schedule is None:
        found |= {"level": 0, **indexed(data, send)}
    elif not found["half"]:
        found["level"] = send.schedule.queue_id + 1
    return found


def by_a_batch(data: bytes, *, native: bool) -> Told:
    node = Node() if native else Node().in_python()
    body = build_batch([BatchItem(0, b"b", data)])
    wanted, slot = right(data), node.slots["orders"]
    try:
        (one,) = node.sends.split_batch(slot, body, 0)
    except Refused as refused:
        if "TRAN_MSG" in refused.remark:
            return {"half": True}
        return {"half": False, "level": wanted["level"] or "refused"}
    send = node.read(request("", body, code=320, ext={"m": "true"}))[0] if native else None
    found = indexed(data, send) if send is not None else {"tag hash": one.tag_hash}
    return {**found, "half": False, "level": 0}


def stored(data: bytes) -> bytes:
    return encode_message(Message("orders", b"body", data))


def by_a_copy(data: bytes, copies_of: Callable[[bytes, bytes], Any]) -> Told:
    message = stored(data)
    (copy,) = copies_of(message, ITEM.pack(0, len(message), 0, 5, 0))
    again = copied(Message("orders", b"body", data), data)
    assert again.unique_key == copy.unique_key
    return {"key": text(copy.unique_key), "tag hash": again.tag_hash}


def by_sql(data: bytes) -> Told:
    """Asks a filter for each value that stands somewhere; the one that is selected is what SQL92 takes."""
    found: dict[str, object] = {}
    for name in ("TAGS", "color"):
        selected = [
            value
            for value in VALUES
            if value and "\x01" not in value and Verdicts().judge(SqlFilter(f"{name} = '{value}'"), 1, data) is True
        ]
        assert len(selected) <= 1
        found[name] = selected[0] if selected else None
    told_all = right(data)["all"]
    assert isinstance(told_all, dict)
    assert found["color"] == (told_all.get("color") if told_all.get("color") in VALUES_OF_SQL else None), "color"
    tag = told_all.get("TAGS")
    return {"tag": found["TAGS"]} if tag is None or tag in VALUES_OF_SQL else {}


def by_the_tag_filter(data: bytes) -> Told:
    """A subscription to the message's tag selects the row of a send; one to another tag does not."""
    tag = right(data)["tag"]
    row = copied(Message("orders", b"body", data), data).tag_hash
    if not isinstance(tag, str) or "|" in tag or tag.strip() != tag or tag == "*":
        return {}
    hashes = tag_hashes(tag)
    assert hashes is not None
    return {"tag hash": row} if row in hashes else {"tag hash": "no subscription"}


def by_the_client(data: bytes) -> Told:
    (one,) = decode_messages(stored(data))
    return {"tag": one.tag, "keys": one.key, "key": one.message_id, "all": one.properties}


def by_the_command_line(data: bytes) -> Told:
    shown = to_json(decode_messages(stored(data))[0])
    return {"tag": shown["tag"], "keys": shown["key"]}


def by_http(data: bytes) -> Told:
    async def breathe() -> None:
        """The page has its turn."""

    call: Any = SimpleNamespace(breathe=breathe)
    parts = asyncio.run(message_parts(call, Message("orders", b"body", data), 100))
    return {"all": json.loads(b"".join(parts))["properties"]}


def by_arrow(data: bytes) -> Told:
    """What `read_arrow`, exports and Spark's source have as columns."""
    (batch,) = to_batches(parse_frames(stored(data)), "orders", ["tag", "keys", "message_id", "properties"])
    (row,) = batch.to_pylist()
    return {"tag": row["tag"], "keys": row["keys"], "key": row["message_id"], "all": dict(row["properties"])}


def by_columns(data: bytes, split: Callable[..., Any]) -> Told:
    import numpy as np

    names = (b"TAGS", b"KEYS", b"UNIQ_KEY")
    columns, _ = split(data, np.array([0]), np.array([len(data)]), names, True)
    tag, keys, key = [text(value) if present[0] & 1 else None for present, _, value in columns]
    return {"tag": tag, "keys": keys, "key": key or ""}


def by_delays(data: bytes) -> Told:
    delayed = Delays(CONFIG.timer).of(data, 0)
    return {"level": delayed.schedule.queue_id + 1 if delayed is not None else 0}


def by_marks(data: bytes) -> Told:
    """The small questions of the send path and of transactions."""
    key = str(right(data)["key"])
    party: Any = None
    ending = Ending(0, 0, producer_group_of(data), key, Decision.COMMIT, party)
    assert mismatch(ending, Message("orders", b"", data)) == "", "the end of a transaction"
    return {
        "level": level_of(data),
        "half": is_half("orders", data),
        "group": producer_group_of(data),
        "ack": ack_of(data, Ack.QUORUM),
    }


def by_requests(data: bytes) -> Told:
    noted: list[str] = []
    notes: Any = SimpleNamespace(note=lambda client, *_: noted.append(client))
    frame: Any = SimpleNamespace(path=SimpleNamespace(forwarded=False), user=0)
    RequesterNotes(notes).note(frame, text(data))
    return {"asks": noted}


def by_key(data: bytes) -> Told:
    """A candidate that the index names is found by its last key, so by what is indexed. Nobody can ask for a word that
    is not UTF-8."""
    wanted, message = right(data), Message("orders", b"", data)
    words = wanted["key words"]
    assert isinstance(words, list)
    found = [
        word
        for word in words
        if is_wanted(message, "orders", KeyQuery(text(word), False, 1)) or text(word).encode() != word
    ]
    key = str(wanted["key"])
    return {"key words": found, "key": key if not key or is_wanted(message, "orders", KeyQuery(key, True, 1)) else "no"}


def by_a_redelivery(data: bytes) -> Told:
    """The copy of a failed message is the message, with its own origin and no delay."""
    found = parse_properties(copied_properties(Message("orders", b"body", data)))
    assert found.pop("RETRY_TOPIC") == "orders"
    assert found.pop("ORIGIN_MESSAGE_ID")
    assert "DELAY" not in found
    delay = right(data)["all"]
    assert isinstance(delay, dict)
    return {"all": found | {name: value for name, value in delay.items() if name == "DELAY"}}


READERS: dict[str, Callable[[bytes], Told]] = {
    "property_of": lambda data: parsed(data, property_of),
    "values_of": kept_values,
    "parse_properties": lambda data: {"all": parse_properties(data)},
    "a send": lambda data: by_a_send(data, short=True),
    "a send, the long way": lambda data: by_a_send(data, short=False),
    "a batch": lambda data: by_a_batch(data, native=True),
    "a batch, the long way": lambda data: by_a_batch(data, native=False),
    "copies": lambda data: by_a_copy(data, twins()["copies_of"]),
    "SQL92": by_sql,
    "tag filter": by_the_tag_filter,
    "client": by_the_client,
    "command line": by_the_command_line,
    "HTTP": by_http,
    "Arrow": by_arrow,
    "columns": lambda data: by_columns(data, twins()["split_properties"]),
    "delays": by_delays,
    "marks": by_marks,
    "requests": by_requests,
    "key lookup": by_key,
    "redelivery": by_a_redelivery,
}
NATIVE: dict[str, Callable[[bytes], Told]] = {
    "native property_of": lambda data: parsed(data, native_kernel().property_of),
    "native copies": lambda data: by_a_copy(data, native_kernel().copies_of),
    "native columns": lambda data: by_columns(data, native_kernel().split_properties),
}
OF_TEXT = ("a send", "a send, the long way")
"""Readers of properties that come as text; those of the others are bytes of any kind."""


def compare(data: bytes, readers: Mapping[str, Callable[[bytes], Told]]) -> None:
    wanted = right(data)
    for name, reader in readers.items():
        found = reader(data)
        assert {key: wanted[key] for key in found} == found, name


# --- the bytes --------------------------------------------------------------------------------------------------------

NAMES = ("TAGS", "KEYS", "UNIQ_KEY", "color", "REPLY_TO_CLIENT", "xTAGS", "TAGSx", "", "ü", "\x01TAGS")
VALUES = ("", "a", "b", "a b  c", "\x01", "a\x01b", "ü", "KEYS\x01a", "red")
VALUES_OF_SQL = {value for value in VALUES if value and "\x01" not in value}
ACTED_ON = (
    *(("DELAY", value) for value in ("", "1", "5", "0", "007")),
    *(("TRAN_MSG", value) for value in ("", "true", "TRUE", "false", "truer")),
    *(("PGROUP", value) for value in ("", "g", "h")),
    *(("ACK_LEVEL", value) for value in ("", "all")),
    *(("WAIT", value) for value in ("", "true", "false")),
)
entries = (
    st.tuples(st.sampled_from(NAMES), st.sampled_from(VALUES)).map("\x01".join)
    | st.sampled_from(ACTED_ON).map("\x01".join)
    | st.sampled_from(("", "TAGS", "KEYS", "\x01"))
)
texts = st.tuples(st.lists(entries, max_size=6).map("\x02".join), st.sampled_from(("", "\x02"))).map("".join)
PIECES = (b"TAGS\x01", b"KEYS\x01", b"UNIQ_KEY\x01", b"color", b"\x01", b"\x02", b"a", b"\xff", b"\xc3")
broken = st.lists(st.sampled_from(PIECES), max_size=12).map(b"".join) | st.binary(max_size=12)


@settings(deadline=None)
@given(texts.map(str.encode))
@example(
    b"TAGS\x01a\x02KEYS\x01k\x02UNIQ_KEY\x01U\x02color\x01a\x02TAGS\x01b\x02KEYS\x01l\x02UNIQ_KEY\x01V\x02color\x01b"
)
@example(b"TAGS\x01a\x02TAGS\x01\x02UNIQ_KEY\x01U\x02UNIQ_KEY\x01\x02KEYS\x01k\x02KEYS\x01")
@example(b"DELAY\x011\x02DELAY\x015\x02TRAN_MSG\x01true\x02TRAN_MSG\x01false\x02WAIT\x01false\x02WAIT\x01true\x02")
def test_all_readers_find_the_same(data: bytes) -> None:
    compare(data, READERS)


@settings(deadline=None)
@given(broken)
@example(b"TAGS\x01a\x02TAGS\x01\xff")
def test_all_readers_of_bytes_find_the_same(data: bytes) -> None:
    compare(data, {name: reader for name, reader in READERS.items() if name not in OF_TEXT})


@settings(deadline=None)
@given(texts.map(str.encode) | broken)
def test_the_native_kernel_finds_the_same(data: bytes) -> None:
    native_kernel()
    compare(data, NATIVE)


def test_a_reader_of_its_own_is_noticed() -> None:
    """One that takes the first entry, as many did, and one that takes an empty value for one."""
    data = b"TAGS\x01a\x02TAGS\x01b\x02TAGS\x01\x02"
    first: dict[str, Callable[[bytes], Told]] = {"first": lambda data: {"tag": text(values_of(data, b"TAGS\x01")[0])}}
    empty: dict[str, Callable[[bytes], Told]] = {"empty": lambda data: {"tag": text(data.rsplit(b"TAGS\x01")[-1][:-1])}}
    for planted in (first, empty):
        with pytest.raises(AssertionError, match=next(iter(planted))):
            compare(data, READERS | planted)
