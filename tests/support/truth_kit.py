"""Groups of brokers that copy the truth of the first one, for tests of statemachine/."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from jepsen_like.fakes.memory_kv import MemoryKV
from raftlog.types import FIRST_GROUP, Entry, EntryType
from statemachine import commands
from statemachine.access.access_commands import (
    ChangeUser,
    CreateUser,
    Origin,
    PutToken,
    RemoveRules,
    RemoveToken,
    RemoveUser,
    RotateAuthKey,
    SetAuthKey,
    SetAuthMode,
    SetRules,
)
from statemachine.access.quotas import SetQuotas
from statemachine.broker_state import BrokerState
from statemachine.cluster_wide.broker_groups import AddBrokerGroup, DrainBrokerGroup, RetireBrokerGroup
from statemachine.cluster_wide.cluster_level import Finalize
from statemachine.cluster_wide.settings import SetConfig
from statemachine.commands import Command, CommandResult
from statemachine.consuming.groups import PutGroup, Subscribe
from statemachine.levels import LEVEL
from statemachine.removal_slices import DeleteGroup, DeleteTopic
from statemachine.topics.topics import CreateTopic
from statemachine.truth import CopyTruth, JournalNames, TruthPage

ASKED = Origin(1_000, "ann", "10.0.0.1")
KEY = "key-1"
SECOND = AddBrokerGroup(2, "raftmq-g02", ("raftmq", 3))


class BrokerLog:
    """A group of brokers, usually at the newest level: its state, and the log that feeds it. Its version knows one
    level more than there is."""

    def __init__(self, log: Any, group: int = FIRST_GROUP, level: int = LEVEL) -> None:
        self.log, self.group = log, group
        self.kv = MemoryKV()
        self.restart()
        self.run(Finalize(level))

    def run(self, *run: Command) -> list[CommandResult]:
        """The results of these commands, in one entry."""
        return self.state.apply([self.log.command(*run)]).results[0]

    def one(self, command: Command) -> CommandResult:
        """The result of a command in an entry of its own."""
        return self.run(command)[0]

    def by(self, author: str, *run: Command) -> Entry:
        """An entry of these commands that a person asked for, not applied yet."""
        return self.log.add(EntryType.CHANGE, commands.pack_change(author, commands.pack(run)))

    def restart(self) -> None:
        """Reads the state from its rows again."""
        self.state = BrokerState(self.kv, known_level=LEVEL + 1, group=self.group)

    def make_ready(self, names: int = 100) -> int:
        """Carries out the slices of the beginning of the journal; returns their number."""
        slices = 0
        while not self.state.truth_journal.is_ready:
            assert self.one(JournalNames(names)).ok
            slices += 1
        return slices


def copy(page: TruthPage, after: int) -> CopyTruth:
    """The command that copies a page, which follows that version."""
    return CopyTruth(after, page.version, page.rows)


def copy_all(first: BrokerLog, other: BrokerLog, bytes_max: int = 1_000) -> int:
    """Copies all that the group has not copied; returns the number of pages."""
    pages, more = 0, True
    while more:
        after = other.state.truth.copied
        page = first.state.truth.after(after, bytes_max)
        if page.version == after:
            break
        assert other.one(copy(page, after)) == (True, "", page.version)
        pages, more = pages + 1, page.more
    return pages


def drawn_change(first: BrokerLog, rng: Random) -> Command:
    """A change of the truth, about one of few names."""
    state = first.state
    topic, group, user = f"t{rng.randrange(4)}", f"g{rng.randrange(3)}", rng.randint(1, 6)
    digest = bytes([rng.randrange(4)]) * 32
    resource = rng.choice(["Topic:a", "Topic:b*", "*"])
    draws: list[Callable[[], Command]] = [
        lambda: CreateTopic({"name": topic, "perm": rng.choice([2, 4, 6])}, rng.random() < 0.3),
        lambda: CreateTopic({"name": topic, "read_queues": rng.randint(1, 9)}, False),
        lambda: CreateTopic({"name": topic, "place": [[rng.randint(1, 4), rng.randint(1, 9), 4]]}, False),
        lambda: DeleteTopic(topic),
        lambda: PutGroup({"name": group, "retry_max_times": rng.randrange(9), "attributes": {"a": "b"}}, False),
        lambda: PutGroup({"name": group, "consume_broadcast_enable": rng.random() < 0.5}, False),
        lambda: Subscribe(group, [("t0", "TAG", "*", rng.randrange(9))]),
        lambda: DeleteGroup(group, rng.random() < 0.5),
        lambda: CreateUser(ASKED, state.access.next_id, rng.choice("ab"), rng.random() < 0.5, True, b"s", KEY),
        lambda: ChangeUser(ASKED, user, {rng.choice(["super", "enabled"]): rng.random() < 0.5}),
        lambda: ChangeUser(ASKED, user, {"secret": [bytes([rng.randrange(9)]), state.access.key_id or KEY]}),
        lambda: RemoveUser(ASKED, user),
        lambda: SetRules(ASKED, user, [(1, resource, ["Pub"], ["10.0.0.0/8"], rng.random() < 0.5)]),
        lambda: RemoveRules(ASKED, user, None, rng.choice([None, resource])),
        lambda: PutToken(ASKED, user, digest, rng.randrange(9), "laptop"),
        lambda: RemoveToken(ASKED, digest),
        lambda: SetAuthMode(ASKED, rng.choice(["off", "observe", "enforce"])),
        lambda: SetAuthKey(ASKED, KEY),
        lambda: RotateAuthKey(ASKED, rng.choice([KEY, "key-2"])),
        lambda: SetConfig(state.settings.version, 1_000, "ann", "", {f"a.k{rng.randrange(3)}": rng.randrange(4)}),
        lambda: AddBrokerGroup(
            rng.randint(2, 4), f"n{rng.randrange(4)}", None if state.broker_groups.by_number else ("n", 3)
        ),
        lambda: DrainBrokerGroup(rng.randint(2, 4), rng.random() < 0.6),
        lambda: SetQuotas(
            [(rng.choice(["user=*", "topic=t0"]), rng.choice([None, {"send_messages": rng.randint(1, 3)}]))], 5, "ann"
        ),
        lambda: RetireBrokerGroup(4),
        lambda: JournalNames(rng.choice([1, 2, 5])),
    ]
    return rng.choice(draws)()
