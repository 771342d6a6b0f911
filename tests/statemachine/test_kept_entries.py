"""Entries that the version before commands were typed has applied are applied alike: the same rows and results.

The file has 45 logs of 123 drawn entries. About half of the entries of commands have something wrong in one of them: an
argument too many or too few, of another type or value, an unknown name, bytes that are no commands. Each log is a list
of [entry type, payload, log time, results, sums]. `results` are [ok, code, CRC of repr(value)] for each command; None
if the entry stopped the node, and then `sums` tells if an unknown name did. `sums` is the CRC of the sums of all rows.
"""

from __future__ import annotations

import lzma
from collections import Counter
from pathlib import Path
from typing import Any

import msgpack
import pytest

from jepsen_like.fakes.memory_kv import MemoryKV
from raftlog.errors import InvariantViolationError
from raftmq_wire.crc import crc32
from statemachine.broker_state import BrokerState
from statemachine.command_table import COMMANDS, in_entry
from statemachine.commands import Command, CommandResult, Invalid, Unknown, name_of
from tests.support.rows import each_row

KEPT = Path(__file__).parent / "data" / "kept_entries.msgpack.xz"
COMMANDS_THEN = 41
"""The number of commands that that version knew. Later ones are not in the file."""
LOGS: list[list[list[Any]]] = msgpack.unpackb(lzma.decompress(KEPT.read_bytes()))


def told(result: CommandResult) -> list[Any]:
    """The value of what is invalid is a text for people. Topics have got a place since, which is empty here."""
    value = repr(result.value).replace(", place={})", ")")
    return [result.ok, result.code, crc32(value.encode()) if result.code != "invalid" else 0]


def is_as_before(before: list[Any], now: list[Any]) -> bool:
    """A command that names what does not exist, or what exists already, and has another wrong argument, is invalid now
    (docs/adr/0099). It changes nothing either way."""
    return now == before or (now == [False, "invalid", 0] and not before[0])


@each_row("number", range(len(LOGS)))
def test_entries_are_applied_as_before(new_log: Any, number: int) -> None:
    log, kv = new_log(), MemoryKV()
    state = BrokerState(kv)
    for kind, payload, log.now_ms, results, sums in LOGS[number]:
        tail, count = log.tail, len(log.entries)
        entry = log.add(kind, payload)
        if results is None:
            with pytest.raises(InvariantViolationError) as stopped:
                state.apply([entry])
            assert ("unknown command" in str(stopped.value)) is sums
            log.tail, state = tail, BrokerState(kv)  # the log goes on without this entry
            del log.entries[count:]
            continue
        now = [told(result) for result in state.apply([entry]).results[0]]
        assert len(now) == len(results)
        wrong = [(at, *pair) for at, pair in enumerate(zip(results, now, strict=True)) if not is_as_before(*pair)]
        assert not wrong, payload
        assert crc32(repr(sorted(state.sums.totals.items())).encode()) == sums, payload


def test_the_entries_have_each_command_valid_and_not() -> None:
    """The others are among the effects of MESSAGES."""
    found = Counter[tuple[str, str]]()
    for kind, payload, _, results, _ in [row for rows in LOGS for row in rows]:
        if results is None:
            continue
        for command, result in zip(in_entry(kind, payload), results, strict=False):
            assert not isinstance(command, Unknown)
            name = name_of(type(command)) if isinstance(command, Command) else command.name
            found[name, result[1] if isinstance(command, Command) else "not its class"] += 1
            assert not isinstance(command, Invalid) or not result[0]
    valid = {name for name, code in found if code == ""}
    assert valid == {name for name, code in found if code == "not its class"}
    assert len(valid) == COMMANDS_THEN
    assert valid <= set(COMMANDS)
    assert sum(results is None for rows in LOGS for *_, results, _ in rows) > 500, "stopped the node"
