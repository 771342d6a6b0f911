"""What every way of the receive stage is given beside the bytes of a read, and what msgspec decodes headers into.

mypyc cannot compile the structs: it leaves `type` where their annotations were.
"""

from __future__ import annotations

import msgspec


class Slot:
    """A topic."""

    __slots__ = ("name", "next_queue", "queues", "writable")

    def __init__(self, name: str, queues: int) -> None:
        self.name, self.queues, self.writable, self.next_queue = name, queues, True, 0


class Context:
    """What a node knows: its topics, limits and counters."""

    __slots__ = (
        "body_max",
        "frame_max",
        "inflight",
        "prefix",
        "properties_max",
        "sequence",
        "suffix",
        "tags",
        "topics",
    )

    def __init__(self) -> None:
        self.topics = {"bench": Slot("bench", 4)}
        self.body_max, self.properties_max, self.frame_max = 4 << 20, 32767, 16 << 20
        self.suffix = b"MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02CLUSTER\x01DefaultCluster\x02"
        self.inflight = self.sequence = 0
        self.prefix = bytes(16)
        self.tags: dict[bytes, int] = {}


class Header(msgspec.Struct, gc=False):
    """Of any request: `extFields` stays raw."""

    code: int
    opaque: int = 0
    flag: int = 0
    version: int = 0
    language: str | int = "JAVA"
    remark: str | None = None
    extFields: msgspec.Raw = msgspec.Raw(b"{}")


class SendHeader(msgspec.Struct, gc=False):
    """The ext fields of code 310, by their letters."""

    b: str
    a: str = ""
    c: str = "TBW102"
    d: int = 4
    e: int = -1
    f: int = 0
    g: int = 0
    h: int = 0
    i: str = ""
    j: int | None = 0
    l: int | None = None  # noqa: E741 - the protocol's letter
    m: bool | None = False


def java_hash(text: str) -> int:
    """As `String.hashCode`, of characters of one UTF-16 unit."""
    found = 0
    for char in text:
        found = (31 * found + ord(char)) & 0xFFFFFFFF
    return found - (1 << 32) if found & 0x80000000 else found
