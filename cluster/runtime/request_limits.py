"""Limits of one request: ranges of its numbers, lengths of its texts, numbers of its items.

Remoting and HTTP share this table: the types into which their bodies are decoded are made of these types, and so is
/openapi.json. A request outside a range is refused where it is decoded, before any work. Apply does not know these
limits, so that entries of earlier releases keep their meaning.
"""

from __future__ import annotations

from typing import Annotated, Final, Protocol

import msgspec

from raftlog.work import charge_bytes
from raftmq_wire.message_format import PROPERTIES_BYTES_MAX
from raftmq_wire.names import NAME
from statemachine.commands import TEXT_LENGTH_MAX

INT32_MAX: Final = (1 << 31) - 1
INT64_MAX: Final = (1 << 63) - 1
UINT32_MAX: Final = (1 << 32) - 1

Unsigned31 = Annotated[int, msgspec.Meta(ge=0, le=INT32_MAX)]
Unsigned32 = Annotated[int, msgspec.Meta(ge=0, le=UINT32_MAX)]
Unsigned63 = Annotated[int, msgspec.Meta(ge=0, le=INT64_MAX)]
Signed64 = Annotated[int, msgspec.Meta(ge=-INT64_MAX - 1, le=INT64_MAX)]
RetryTimes = Annotated[int, msgspec.Meta(ge=-1, le=INT32_MAX)]
"""The number of retries; -1 stands for the client's default."""
QueueCount = Annotated[int, msgspec.Meta(ge=1, le=65_535)]
QueueId = Annotated[int, msgspec.Meta(ge=0, le=65_534)]
Perm = Annotated[int, msgspec.Meta(ge=0, le=15)]

NUMBER_DIGITS_MAX: Final = 20
"""The most characters of an integer that a header holds as text, sign included: 64 bits need no more. A longer text is
not parsed."""
TEXT_MAX: Final = 4096
KEY_LENGTH_MAX: Final = PROPERTIES_BYTES_MAX
"""The most letters of a key of a message, which is in its properties."""
HANDLE_LENGTH_MAX: Final = 2 * KEY_LENGTH_MAX
"""The most letters of a recall handle: base64 of a message's unique key and a few names and numbers."""
TOPIC_LENGTH_MAX: Final = 256
GROUP_LENGTH_MAX: Final = 120

NAME_PATTERN: Final = f"^{NAME.pattern}$"
NewTopic = Annotated[str, msgspec.Meta(min_length=1, max_length=TOPIC_LENGTH_MAX, pattern=NAME_PATTERN)]
"""A name for a new topic; `limits.topic_length_max` may be lower."""
NewGroup = Annotated[str, msgspec.Meta(min_length=1, max_length=GROUP_LENGTH_MAX, pattern=NAME_PATTERN)]
TopicName = Annotated[str, msgspec.Meta(max_length=TOPIC_LENGTH_MAX)]
GroupName = Annotated[str, msgspec.Meta(max_length=GROUP_LENGTH_MAX)]
ClientId = Annotated[str, msgspec.Meta(max_length=512)]
Word = Annotated[str, msgspec.Meta(max_length=64)]
"""The name of an enum's value, or its ordinal."""
Text = Annotated[str, msgspec.Meta(max_length=TEXT_MAX)]
Note = Annotated[str, msgspec.Meta(max_length=TEXT_LENGTH_MAX)]
"""The author of a change, or its reason."""
ExpressionText = Annotated[str, msgspec.Meta(max_length=64 * 1024)]
"""The filter expression of a subscription."""
_PORT = "([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
_HOST_PORT = rf"([a-zA-Z0-9]([a-zA-Z0-9.-]*[a-zA-Z0-9])?|\[[0-9a-fA-F:.]+\]):{_PORT}"
Address = Annotated[str, msgspec.Meta(max_length=300, extra_json_schema={"pattern": f"^{_HOST_PORT}$"})]
"""host:port. A malformed one is refused with an explanation of its own, so the pattern appears only in the OpenAPI
document."""
AddressOrNone = Annotated[str, msgspec.Meta(max_length=300, extra_json_schema={"pattern": f"^({_HOST_PORT})?$"})]
Uuid = Annotated[str, msgspec.Meta(max_length=64, extra_json_schema={"format": "uuid"})]

ATTRIBUTES_MAX: Final = 64
Attributes = Annotated[
    dict[Annotated[str, msgspec.Meta(max_length=255)], Text], msgspec.Meta(max_length=ATTRIBUTES_MAX)
]
RETRY_POLICY_BYTES_MAX: Final = 16 * 1024
"""The most bytes of a group's retry policy, in the form in which it is stored."""
GROUP_BODY_BYTES_MAX: Final = 64 * 1024
"""The most bytes of the body of a request that creates or changes a group."""

OTHER_BODY_BYTES_MAX: Final = 512 << 10
"""The most bytes of the body of a request without messages and without a limit of its own. Such a body is parsed twice
in one turn of the loop, to check rights and by its handler, which took 35 ms for 4 MiB. It has room for the locks of
4,000 queues whose topics have names of 80 letters."""
STAGED_BYTES_MAX: Final = 4 << 20
"""The most bytes of messages in one request that stages them."""

QUEUES_MAX: Final = 1024
"""The most queues of a topic; RocketMQ's own benchmark topic is the largest in use."""
ANSWER_QUEUES_MAX: Final = 10_000
"""The most queues in one answer that has no pages, and the most that one scrape of the metrics looks at: the loop looks
up so many in a tenth of a second."""
HEARTBEAT_GROUPS_MAX: Final = 1024
"""The most consumer groups in a heartbeat, and the most producer groups."""
HEARTBEAT_SUBSCRIPTIONS_MAX: Final = 1024
"""The most topics of one group in a heartbeat."""


READ_BYTES: Final = 64 << 10


class Reader(Protocol):
    """The part of a stream of asyncio or aiohttp that `read_at_most` needs."""

    async def read(self, n: int, /) -> bytes:
        """Returns at most `n` bytes as soon as there are some; b"" at the end."""


class TooLongError(Exception):
    """The answer is longer than any valid one."""


async def read_at_most(answer: Reader, most: int) -> list[bytes]:
    """Reads an answer to its end, in parts. Raises TooLongError as soon as it is longer than `most` bytes."""
    parts, size = [], 0
    while part := await answer.read(READ_BYTES):
        charge_bytes(len(part))
        size += len(part)
        if size > most:
            raise TooLongError(f"its answer is longer than {most} bytes")
        parts.append(part)
    return parts
