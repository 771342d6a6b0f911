"""A queue as other people fill it: sound messages, and between each two a bad one of another kind.

Every reader of other people's messages must bring the sound ones, whatever lies between them.
"""

from __future__ import annotations

import socket
import struct
import time
import zlib
from typing import Final, NamedTuple

import raftmq
from raftmq_wire.codec import encode_frame
from raftmq_wire.codes import RequestCode
from raftmq_wire.message_format import PROPERTIES_BYTES_MAX, BatchItem, build_batch
from tests.support.pace import at_most

COMPRESSED: Final = 0x1
ZLIB, LZ4, ZSTD, NOBODYS = 0 << 8, 1 << 8, 2 << 8, 5 << 8
KEY: Final = "shared"
"""A key that every message has."""
BOMB_BYTES: Final = 300 << 20


class Item(NamedTuple):
    """A message as a producer sends it. `in_batch`: as the only message of a batch, whose properties may be any
    bytes."""

    body: bytes = b"?"
    properties: bytes = f"KEYS\x01{KEY}\x02".encode()
    sys_flag: int = 0
    born_ms: int = 1_700_000_000_000
    in_batch: bool = False


def with_properties(*more: bytes, in_batch: bool = False) -> Item:
    """Returns an item with the shared key and these properties."""
    return Item(b"?", Item().properties + b"".join(more), in_batch=in_batch)


def bomb() -> bytes:
    """Returns 300 MiB of zeros, compressed: one MiB, so many times, and their Adler-32."""
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    block = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    checksum = struct.pack(">HH", BOMB_BYTES % 65521, 1)
    return zlib.compress(b"")[:2] + block * (BOMB_BYTES >> 20) + packer.flush() + checksum


UNDECODABLE: Final = {
    "a body that is not zlib": Item(b"not zlib", sys_flag=COMPRESSED | ZLIB),
    "a body that is cut short": Item(zlib.compress(b"x" * 500)[:-6], sys_flag=COMPRESSED | ZLIB),
    "a body that is not LZ4": Item(b"not lz4", sys_flag=COMPRESSED | LZ4),
    "a body that is not ZSTD": Item(b"not zstd", sys_flag=COMPRESSED | ZSTD),
    "a body of an unknown kind": Item(b"whose?", sys_flag=COMPRESSED | NOBODYS),
    "a bomb": Item(bomb(), sys_flag=COMPRESSED | ZLIB),
}
NO_ROOM: Final = "properties that leave no room"
"""The one message that nobody can copy: its copy has to name its origin, too."""
ODD: Final = {
    "a body that is no text": Item(b"\xff\xfe\x00"),
    "a body that inflates": Item(zlib.compress(b"long " * 99), sys_flag=COMPRESSED | ZLIB),
    "properties that are no text": with_properties(b"name\x01\xff\xfe\x02", in_batch=True),
    "a name that is no text": with_properties(b"\xff\x01value\x02", in_batch=True),
    "a value with a separator": with_properties(b"odd\x01a\x01b\x02"),
    "a property twice": with_properties(b"twice\x01a\x02twice\x01b\x02"),
    "a property without a value": with_properties(b"bare\x02\x01nameless\x02"),
    NO_ROOM: with_properties(b"long\x01" + b"v" * (PROPERTIES_BYTES_MAX - 150) + b"\x02"),
    "a tag that commands the terminal": with_properties(b"TAGS\x01\x1b[2J\n\x02"),
    "a tag that is no text": with_properties(b"TAGS\x01\xff\x02", in_batch=True),
    "keys that are no text": Item(properties=f"KEYS\x01{KEY} ".encode() + b"\xff\x02", in_batch=True),
    "keys of blanks and lines": Item(properties=f"KEYS\x01\n\t {KEY}  \r\n\x02".encode()),
    "an origin that is none": with_properties(b"REAL_TOPIC\x01%%\x02RETRY_TOPIC\x01\xe2\x80\xae no topic\x02"),
    "a host of another family": Item(sys_flag=0x30),
    "a producer before all others": Item(born_ms=0),
    "a producer after all time": Item(born_ms=(1 << 63) - 1),
}
BAD: Final = {**UNDECODABLE, **ODD}
SOUND: Final = [b"sound-%03d" % number for number in range(len(BAD) + 1)]


def fill(mq: raftmq.Client, topic: str, part: slice = slice(None)) -> None:
    """Sends a sound message to queue 0, a bad one, a sound one, and so on; `part`: only these kinds of bad ones."""
    host, _, port = mq.admin.members()["0"].rpartition(":")
    with socket.create_connection((host, int(port)), timeout=at_most(20)) as link:
        send(link, topic, Item(SOUND[part.start or 0]))
        for sound, bad in [*zip(SOUND[1:], BAD.values(), strict=True)][part]:
            send(link, topic, bad)
            send(link, topic, Item(sound))


def send(link: socket.socket, topic: str, item: Item) -> None:
    """Sends one item, and waits until it is stored."""
    body, properties = item.body, item.properties.decode(errors="replace")
    if item.in_batch:
        body, properties = build_batch([BatchItem(0, item.body, item.properties)]), ""
    ext = {"a": "strangers", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": str(item.sys_flag), "h": "0"}
    ext |= {"g": str(item.born_ms), "i": properties, "j": "0", "k": "false", "m": str(item.in_batch).lower()}
    code = RequestCode.SEND_BATCH_MESSAGE if item.in_batch else RequestCode.SEND_MESSAGE_V2
    for _ in range(50):
        link.sendall(encode_frame(code, 1, 0, ext=ext, body=body))
        reply = _read(link)
        if b'"code":0,' in reply:
            return
        assert b'"code":2,' in reply or b'"code":14,' in reply, reply
        time.sleep(0.1)
    raise AssertionError(reply)


def _read(link: socket.socket) -> bytes:
    (size,) = struct.unpack(">i", link.recv(4, socket.MSG_WAITALL))
    return link.recv(size, socket.MSG_WAITALL)
