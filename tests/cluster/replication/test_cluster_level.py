"""The level of a message: its own word, else its topic's, else the node's."""

from __future__ import annotations

import pytest

from cluster.config.service_sections import ModesSection
from cluster.replication.acks.ack_levels import Ack, LevelError, ack_of, default_level, level_named, name_of
from tests.support.rows import each_row


@pytest.mark.parametrize(
    ("role", "flush", "level"),
    [
        ("SYNC_MASTER", "SYNC_FLUSH", Ack.QUORUM_FSYNC),
        ("SYNC_MASTER", "ASYNC_FLUSH", Ack.QUORUM),
        ("ASYNC_MASTER", "SYNC_FLUSH", Ack.LEADER),
        ("ASYNC_MASTER", "ASYNC_FLUSH", Ack.LEADER),
    ],
)
def test_rocketmqs_keys(role: str, flush: str, level: Ack) -> None:
    modes = ModesSection(broker_role=role, flush_disk_type=flush)  # type: ignore[arg-type]
    assert default_level(modes) is level


def test_the_default_is_the_promise_and_costs_the_hot_path_nothing() -> None:
    assert default_level(ModesSection()) is Ack.QUORUM_FSYNC
    assert not Ack.QUORUM_FSYNC


@each_row(
    ("properties", "level"),
    [
        (b"", Ack.QUORUM),
        (b"KEYS\x01a\x02WAIT\x01true\x02", Ack.QUORUM),
        (b"WAIT\x01false\x02", Ack.LEADER),
        (b"KEYS\x01a\x02WAIT\x01false\x02", Ack.LEADER),
        (b"ACK_LEVEL\x01all\x02", Ack.ALL),
        (b"ACK_LEVEL\x01quorum+fsync\x02WAIT\x01false\x02", Ack.QUORUM_FSYNC),
        (b"MY_ACK_LEVEL\x01leader\x02NO_WAIT\x01false\x02", Ack.QUORUM),
        (b"x\x01ACK_LEVEL\x02", Ack.QUORUM),
        (b"ACK_LEVEL\x01\x02", Ack.QUORUM),  # without a value it is not there
    ],
)
def test_a_messages_own_word_goes_first(properties: bytes, level: Ack) -> None:
    assert ack_of(properties, Ack.QUORUM) == level


@pytest.mark.parametrize("properties", [b"ACK_LEVEL\x01al\x02", b"ACK_LEVEL\x01\xff\x02"])
def test_a_level_that_does_not_exist_is_refused_and_those_that_do_are_named(properties: bytes) -> None:
    with pytest.raises(LevelError, match=r"one of leader, quorum, quorum\+fsync, all"):
        ack_of(properties, 0)


def test_names_and_levels_agree() -> None:
    assert {name_of(level) for level in Ack} == {"leader", "quorum", "quorum+fsync", "all"}
    assert all(level_named(name_of(level), "x") is level for level in Ack if level is not Ack.DEGRADED)
    assert name_of(Ack.DEGRADED) == "leader", "nobody can ask for it"
