"""A state fed from its log, for tests of statemachine/."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from jepsen_like.fakes.memory_kv import MemoryKV
from raftlog.types import FIRST_GROUP, Entry
from statemachine import commands
from statemachine.broker_state import BrokerState
from statemachine.commands import CommandResult
from statemachine.topics.topics import CreateTopic


class FedState:
    """A state with topic 1 of two queues, and the log that feeds it."""

    def __init__(self, log: Any) -> None:
        self.log = log
        self.kv = MemoryKV()
        self.state = BrokerState(self.kv)
        self.run(CreateTopic({"name": "t", "read_queues": 2, "write_queues": 2}, True))

    def run(self, *run: commands.Command) -> list[CommandResult]:
        """The results of these commands, in one entry."""
        return self.state.apply([self.log.command(*run)]).results[0]

    def raw(self, *command: object) -> CommandResult:
        """The result of one command, valid or not, with these name and arguments."""
        return self.state.apply([self.log.raw(list(command))]).results[0][0]


def applied_in_groups(
    entries: Sequence[Entry], grouping: int, group: int = FIRST_GROUP
) -> tuple[BrokerState, MemoryKV]:
    """The log of a group of brokers applied in runs of drawn lengths, with starts in between; the state and its
    rows."""
    kv = MemoryKV()
    state, rng, at = BrokerState(kv, group=group), Random(grouping), 0
    while at < len(entries):
        size = rng.choice([1, 2, 5, 20])
        state.apply(entries[at : at + size])
        at += size
        if rng.random() < 0.2:
            state = BrokerState(kv, group=group)
    return state, kv
