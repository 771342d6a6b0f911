"""`raftmq messages find --key`: it says when there may be more messages than it shows."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from raftmq.cli import run as run_line
from raftmq.client.message import FoundMessages, Message
from raftmq.commands.messages import message as command


class Connected:
    """A client whose query finds what it is made with."""

    def __init__(self, found: FoundMessages) -> None:
        self.admin, self.found = self, found

    def __enter__(self) -> Connected:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def query_messages(self, topic: str, key: str, **options: Any) -> FoundMessages:
        return self.found


STORED_MS = int(datetime.datetime(2026, 5, 1, 12, 0, 0, 500_000, datetime.UTC).timestamp() * 1000)


def found(count: int, more: bool) -> FoundMessages:
    made = FoundMessages(
        Message(
            topic="orders",
            body=b"x",
            queue_id=0,
            queue_offset=at,
            position=at,
            message_id="",
            key="",
            tag="",
            properties={},
            born_ms=0,
            store_ms=STORED_MS,
        )
        for at in range(count)
    )
    made.more = more
    return made


@pytest.mark.parametrize(
    ("count", "more", "says"),
    [
        (8, False, ""),
        (8, True, "there may be more than these 8: --until 2026-05-01T12:00:01Z shows older ones\n"),
        (
            12,
            True,
            "there may be more than these 12: --until 2026-05-01T12:00:01Z shows older ones, or a larger --max\n",
        ),
    ],
)
def test_it_says_that_there_may_be_more(
    count: int, more: bool, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "connect", lambda servers: Connected(found(count, more)))
    assert run_line(["message", "--topic", "orders", "--key", "k", "--max", "12", "--json"]) == 0
    told = capsys.readouterr()
    assert (told.err, told.out.count("\n")) == (says, count)
