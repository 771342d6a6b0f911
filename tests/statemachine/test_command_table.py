"""The table of commands: each once, with the bytes, the level and the family that it has for good."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jepsen_like.fakes.memory_kv import MemoryKV
from raftlog.format_versions import BASELINE
from statemachine import command_table, commands
from statemachine.access.access_commands import (
    RemoveUser,
)
from statemachine.broker_state import BrokerState
from statemachine.command_table import COMMANDS, unpack
from statemachine.commands import (
    Command,
    CommandReader,
    CommandResult,
    Invalid,
    Unknown,
    extend,
    level_of,
    name_of,
    pack,
    pack_bare,
)
from statemachine.delivery.half_messages import OwnHalves
from statemachine.families import FAMILIES
from statemachine.removal_slices import DeleteTopic, Expire
from statemachine.tier import MoveSegment, TierPart, TierState
from statemachine.topics.topics import CreateTopic
from tests.support.command_samples import ASKED, COMMAND_SAMPLES, FILE, SAMPLES, Sample
from tests.support.rows import each_row

PARTS = [TierPart("log/0", 1_000, b"d" * 16, 7)]


def kinds(of: type[Command] = Command) -> Iterator[type[Command]]:
    """Every class of commands that the packages define."""
    for kind in of.__subclasses__():
        if kind.__module__.startswith("statemachine.") and kind.__struct_config__.tag is not None:
            yield kind
        yield from kinds(kind)


def test_each_command_is_applied_by_one_family() -> None:
    registered = Counter(kind for family in FAMILIES for kind in family.COMMANDS)
    assert set(registered.values()) == {1}
    assert set(registered) == set(kinds()) == set(COMMANDS.values())
    assert len(COMMANDS) == len(registered), "names are given once"


@each_row("sample", COMMAND_SAMPLES, ids=lambda sample: name_of(type(sample)))
def test_a_state_applies_it(sample: Command, new_log: Any) -> None:
    log, state = new_log(), BrokerState(MemoryKV())
    ((result,),) = state.apply([log.command(sample)]).results
    assert isinstance(result, CommandResult)
    assert state.applied.index == 0


def test_there_is_a_sample_of_each_command() -> None:
    assert Counter(type(each) for each in COMMAND_SAMPLES) == Counter(COMMANDS.values()), f"a line each in {FILE}"


@each_row("sample", SAMPLES, ids=lambda sample: name_of(type(sample.command)))
def test_bytes_and_levels_stay(sample: Sample) -> None:
    assert pack([sample.command]).hex() == sample.packed.hex()
    assert sample.level == sample.command.LEVEL


@each_row("sample", COMMAND_SAMPLES, ids=lambda sample: name_of(type(sample)))
def test_a_command_is_read_as_it_was_packed(sample: Command) -> None:
    (found,) = unpack(pack([sample]))
    assert type(found) is type(sample)
    assert pack([found]) == pack([sample])


def test_parts_of_a_segment_are_packed_like_the_rest() -> None:
    packed = msgpack.unpackb(pack([MoveSegment(0, TierState.UPLOADED, 1, None, PARTS)]))
    assert packed == [["tier_state", 0, 2, 1, None, [["log/0", 1_000, b"d" * 16, 7]]]]


def test_commands_need_the_highest_of_their_levels() -> None:
    assert level_of([]) == level_of([Expire(1)]) == BASELINE
    assert level_of([Expire(1), OwnHalves([]), RemoveUser(ASKED, 1)]) == 13


def test_arguments_have_no_default_and_cannot_be_changed() -> None:
    for kind in COMMANDS.values():
        assert kind.__struct_config__.frozen
        assert not kind.__struct_defaults__, "one that is missing would be taken for given"


WRONG: list[Any] = [None, True, -1, 1.5, 2**64 - 1, "", "\n", b"", [], [[]], [1, 2, 3, 4, 5, 6], {}, {"a": 1}, {1: 2}]


@each_row("sample", COMMAND_SAMPLES, ids=lambda sample: name_of(type(sample)))
def test_what_is_wrong_spoils_no_other_command(sample: Command) -> None:
    name, *arguments = msgpack.unpackb(pack([sample]))[0]
    wrong = [[name, *arguments, None], [name, *arguments[:-1]]]
    wrong += [[name, *arguments[:at], each, *arguments[at + 1 :]] for at in range(len(arguments)) for each in WRONG]
    run = [each for one in wrong for each in (one, ["expire", 1])]
    found = unpack(msgpack.packb(run))
    assert found[1::2] == [Expire(1)] * len(wrong)
    assert {type(each) for each in found[::2]} <= {type(sample), Invalid}
    count = len(arguments)
    assert found[0] == Invalid(name, f"{name} takes {count} arguments, not {count + 1}")
    assert found[2] == Invalid(name, f"{name} takes {count} arguments, not {count - 1}")


def test_an_unknown_name_is_found_as_it_is() -> None:
    packed = msgpack.packb([["fly", 1], [5], [None, 1], [b"expire", 1], ["expire", 1]])
    assert unpack(packed) == [Unknown("fly"), Unknown(5), Unknown(None), Unknown(b"expire"), Expire(1)]


class Narrow(Command, tag="expire", frozen=True):
    """A version that knows less."""

    before_ms: int


def test_a_reader_knows_its_own_commands_alone() -> None:
    reader = CommandReader([Narrow])
    assert reader.unpack(pack([Expire(1), DeleteTopic("t")])) == [Narrow(1), Unknown("delete_topic")]


@given(st.lists(st.sampled_from(COMMAND_SAMPLES), max_size=40), st.lists(st.sampled_from(COMMAND_SAMPLES), max_size=40))
def test_packed_commands_are_extended_without_packing_them_again(before: list[Command], more: list[Command]) -> None:
    assert extend(pack(before), more) == pack([*before, *more])
    assert extend(b"", more) == pack(more)
    assert extend(pack(before * 2_000), more) == pack([*before * 2_000, *more])
    assert commands.join(len(before) + len(more), (pack_bare(before), pack_bare(more))) == pack([*before, *more])


def test_levels_that_no_node_would_unpack_are_not_packed() -> None:
    deep: dict[str, Any] = {}
    for _ in range(1_100):
        deep = {"a": deep}
    with pytest.raises(ValueError, match="recursion"):
        pack([CreateTopic({"name": "t", "attributes": deep}, if_absent=True)])


def test_the_table_reads_what_the_state_applies() -> None:
    assert command_table.unpack(b"") == []
    with pytest.raises(ValueError, match="array"):
        command_table.unpack(b"\x91\x90")
