"""The file of learnt limits: JSON with the numbers of messages and bytes a second that each topic usually stays below,
by hour, and a digest of these.

`raftmq spark traffic` writes it, `raftmq quota import` reads it, and the leader that puts it in force computes the
digest once more from the rows that the cluster has stored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from raftmq_wire.names import NAME

VERSION: Final = 2
TOPICS_MAX: Final = 2_000
"""The most topics of a file."""
DAY, WEEK = 24, 168
"""The numbers of hours for which a topic may have values: those of a day, or those of a week from Monday on (UTC)."""
VALUE_MAX: Final = 2**62
FILE_BYTES_MAX: Final = 32 * 1024 * 1024

_HOUR_MS = 3_600_000
_MONDAY = 72
"""The hours between the Monday before 1970-01-01 (a Thursday) and the beginning of 1970-01-01."""

U63 = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
Number = Annotated[int, Meta(ge=0, le=VALUE_MAX)]


def hour_of(log_ms: int, hours: int) -> int:
    """Returns the index, from 0 to `hours` - 1, of the value that applies at the log time `log_ms`. `hours`: DAY or
    WEEK."""
    return (log_ms // _HOUR_MS + _MONDAY) % hours


class TopicLimits(NamedTuple):
    """The messages and bytes a second that one topic usually stays below, with one value for each hour of the day or
    week."""

    messages: Annotated[Sequence[Number], Meta(min_length=DAY, max_length=WEEK)]
    bytes: Annotated[Sequence[Number], Meta(min_length=DAY, max_length=WEEK)]


class LearntOrigin(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The origin of a file: the cluster whose messages were counted, the time when the file was made and until which it
    is valid, and the span of the messages."""

    cluster: Annotated[str, Meta(max_length=64)]
    """The id of the cluster from whose messages the limits were learnt."""
    made_ms: U63
    """Wall clock at which the file was made, in milliseconds."""
    first_ms: U63
    last_ms: U63
    """`first_ms` and `last_ms`: store times of the first and the last message from which the limits were learnt."""
    expires_ms: U63
    """Wall clock, in milliseconds, from which on the file is no longer imported."""


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    v: int
    origin: LearntOrigin
    topics: dict[str, TopicLimits]
    digest: Digest


class LearntFile(NamedTuple):
    """The contents of a file."""

    origin: LearntOrigin
    topics: Mapping[str, TopicLimits]

    @property
    def digest(self) -> str:
        """The SHA-256 of the file's contents without the digest, in hexadecimal digits."""
        rows = ((topic, each.messages, each.bytes) for topic, each in sorted(self.topics.items()))
        *_, digest = digests(self.origin, rows)
        return digest


def digests(origin: LearntOrigin, rows: Iterable[tuple[str, Sequence[int], Sequence[int]]]) -> Iterator[str]:
    """Computes the digest of a file with these rows (topic, messages, bytes), which must be sorted by topic. Yields ""
    after each row, so that the caller can pause, and at last the digest."""
    found = hashlib.sha256(msgspec.msgpack.encode([VERSION, *msgspec.structs.astuple(origin)]))
    for topic, messages, size in rows:
        found.update(msgspec.msgpack.encode([topic, list(messages), list(size)]))
        yield ""
    yield found.hexdigest()


def encode_file(file: LearntFile) -> bytes:
    """Returns the bytes of a file."""
    topics = {topic: [list(each.messages), list(each.bytes)] for topic, each in sorted(file.topics.items())}
    told = {"v": VERSION, "origin": file.origin, "digest": file.digest, "topics": topics}
    packed: bytes = msgspec.json.encode(told)
    return packed + b"\n"


def decode_file(data: bytes) -> LearntFile:
    """Returns the contents of a file. Raises ValueError that says what is wrong with it."""
    if len(data) > FILE_BYTES_MAX:
        raise ValueError(f"it has more than {FILE_BYTES_MAX} bytes")
    try:
        found = msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise ValueError(f"it is torn, or no file of learnt limits: {error}") from None
    version = found.get("v") if isinstance(found, dict) else None
    if version != VERSION:
        raise ValueError(f"its version is {version!r:.20}, and this raftmq reads {VERSION}")
    try:
        file = msgspec.convert(found, _File)
    except msgspec.ValidationError as error:
        raise ValueError(f"it is no file of learnt limits: {error}") from None
    if not 1 <= len(file.topics) <= TOPICS_MAX:
        raise ValueError(f"it has {len(file.topics)} topics, and 1 to {TOPICS_MAX} are possible")
    for topic, limits in file.topics.items():
        if not NAME.fullmatch(topic):
            raise ValueError(f"{topic!r:.100} is no name of a topic")
        if len(limits.messages) not in (DAY, WEEK) or len(limits.bytes) != len(limits.messages):
            raise ValueError(f"topic {topic} has neither {DAY} nor {WEEK} hours")
    read = LearntFile(file.origin, file.topics)
    if read.digest != file.digest:
        raise ValueError("it is torn or was changed: its digest is not that of its contents")
    return read
