"""The tables of names: scenarios, faults and families of faults."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from cluster.config.source import nearest
from jepsen_like.hostile import expensive_requests, random_attacks
from jepsen_like.live.nemeses import (
    nemesis_disk,
    nemesis_hostile,
    nemesis_members,
    nemesis_network,
    nemesis_process,
    nemesis_sequences,
)
from jepsen_like.live.nemeses.coverage_gates import FULL_S
from jepsen_like.live.nemeses.nemesis_interface import Nemesis
from raftmq_wire.errors import ExitCode, LocalError

NEMESES: dict[str, Nemesis] = {
    nemesis.name: nemesis
    for nemesis in (
        *nemesis_process.NEMESES,
        *nemesis_network.NEMESES,
        *nemesis_disk.NEMESES,
        *nemesis_sequences.NEMESES,
        *nemesis_members.NEMESES,
        *nemesis_hostile.NEMESES,
    )
}
"""Every nemesis by name."""
FAMILIES: dict[str, tuple[str, ...]] = {
    "membership": tuple(nemesis.name for nemesis in nemesis_members.NEMESES),
    "hostile": tuple(nemesis.name for nemesis in nemesis_hostile.NEMESES),
    "turns": tuple(attack.name for attack in (*expensive_requests.ATTACKS, *random_attacks.ATTACKS)),
}
"""Names that stand for several faults."""
_MEMBERS = FAMILIES["membership"]
SCENARIO_FULL_S = 180.0
"""Seconds of a full run of a scenario with one to three faults: time for each of them to be felt five times, as in a
full run of the mix (`coverage_gates.scenario_gates`), on a machine half as fast as two cores."""

FULL_POWER_LOSS_S = 300.0
"""Seconds of a full run of `power-loss`: a round has four faults, since the loss of every node comes twice, and the
cluster recovers after each. In 180 s, only 19 of the 20 faults of five rounds were played, on two cores that another
run kept busy, too.
"""


class Scenario(NamedTuple):
    """A named set of faults to deal or, if it is scripted, a story to play."""

    name: str
    does: str
    nemeses: tuple[str, ...] = ()
    waits_for: str | None = None
    """The feature that has to be built before the scenario can be run; until then it ends as unsupported."""
    subjects: tuple[str, ...] = ("raftmq", "pysyncobj")
    is_scripted: bool = False
    """True if the scenario plays fixed acts (`jepsen_like.live.stories.story_table`) instead of randomly dealt faults;
    then `--time` does not apply."""
    files_max: int | None = None
    """The number of files and connections that each node may have open; None: as many as the harness."""
    full_s: float = SCENARIO_FULL_S
    """Seconds of a full run, from which on its gates count; a scripted scenario ends by itself."""


_ALL = (
    Scenario("quiet", "no faults at all: the harness itself must find nothing"),
    Scenario("kill-one", "a follower is killed again and again", ("kill-one",)),
    Scenario("kill-leader", "the leader is killed again and again", ("kill-leader",)),
    Scenario("kill-majority", "a majority is killed at once", ("kill-majority",)),
    Scenario("kill-all", "every node is killed at once", ("kill-all",)),
    Scenario("pause", "nodes stand still and wake up again", ("pause-one", "pause-leader")),
    Scenario("partitions-halves", "a minority apart from the majority", ("partition-halves",)),
    Scenario("partitions-ring", "every node sees a majority, no two the same", ("partition-ring",)),
    Scenario("partitions-one-way", "messages pass in one direction only", ("partition-one-way",)),
    Scenario("acks-lost", "only acknowledgements are lost: entries are pushed again and taken once", ("acks-lost",)),
    Scenario("partitions-leader", "the leader isolated, and cut off again and again",
             ("isolate-leader", "flapping-leader")),
    Scenario("part-kill", "cut off a minority, kill one of the rest, make them the majority", ("part-kill",)),
    Scenario("pause-kill", "the same with pauses", ("pause-kill", "stutter-kill")),
    Scenario("swizzle", "nodes cut off one by one, let back in another order", ("swizzle",)),
    Scenario("power-loss", "unsynced writes vanish, on one node, a majority, all",
             ("power-loss-one", "power-loss-majority", "power-loss-all"), subjects=("raftmq",),
             full_s=FULL_POWER_LOSS_S),
    Scenario("rolling-restart", "one node after the other, under load", ("rolling-restart",)),
    Scenario("slow-network", "delay and jitter on every edge", ("slow-network",)),
    Scenario("slow-disk", "syncs of one node's log take far too long, or do not return",
             ("slow-disk", "held-disk"), subjects=("raftmq",)),
    Scenario("full-disk", "no space left for one node's log", ("full-disk",), subjects=("raftmq",)),
    Scenario("failing-disk", "syncs fail with EIO", ("failing-disk",), subjects=("raftmq",)),
    Scenario("clock-skew", "wall clocks jump", ("clock-skew",), subjects=("raftmq",)),
    Scenario("leader-ping-pong", "leadership handed round and round", ("leader-ping-pong",), subjects=("raftmq",)),
    Scenario("traffic-x5", "five times the load, and a leader that dies under it", ("traffic-x5", "kill-leader")),
    Scenario("membership-churn", "nodes join, leave and replace each other under load, among kills and partitions",
             (*_MEMBERS, "kill-leader", "isolate-leader"), subjects=("raftmq",), full_s=FULL_S),
    Scenario("hostile", "clients that mean harm: all attacks, a few at once, beside honest ones", FAMILIES["hostile"],
             subjects=("raftmq",), full_s=FULL_S),
    Scenario("hostile-few-files", "300 idle connections to nodes that may have 256 files and connections open",
             ("idle-connections",), subjects=("raftmq",), files_max=256),
    Scenario("report-000", "the leader killed, stopped, cut off from the store at each step of an upload: all of the"
             " log is there once, and is read from there", subjects=("raftmq",), is_scripted=True),
    Scenario("report-001", "metadata made on one leader is there on every other, after restarts without it and after"
             " 200 role switches", subjects=("raftmq",), is_scripted=True),
    Scenario("bitflip-minority", "bytes rot in files of one node after another: never served, never spread, repaired",
             subjects=("raftmq",), is_scripted=True),
    Scenario("report-002", "50 kills while the log grows to 2 GiB: restarts scan little, no queue loses a row",
             subjects=("raftmq",), is_scripted=True),
    Scenario("report-004-surge", "1.2 times the capacity arrives while a follower's disk is at its limit: the rest is"
             " refused soon, and the lag goes", subjects=("raftmq",), is_scripted=True),
    Scenario("nearly-full", "0.8 of the capacity for ten minutes: nothing is refused", subjects=("raftmq",),
             is_scripted=True),
    Scenario("slow-follower", "a follower's disk is slow: it is a finding soon, nobody waits for it, and its lag is"
             " foretold", subjects=("raftmq",), is_scripted=True),
    Scenario("failover", "100 kills of the leader: how long each client waits", subjects=("raftmq",), is_scripted=True),
    Scenario("frozen-leader", "the leader hangs 30 times: how long each client waits", subjects=("raftmq",),
             is_scripted=True),
    Scenario("isolated-leader", "the leader is cut off from the others 30 times: how long each client waits",
             subjects=("raftmq",), is_scripted=True),
    Scenario("graceful", "50 orderly stops of the leader: no send fails, and nobody waits long",
             subjects=("raftmq",), is_scripted=True),
    Scenario("group-join", "a second group of brokers joins under load, and members of both are killed: no key moves"
             " by itself", subjects=("raftmq",), is_scripted=True),
    Scenario("first-group-lost", "the group with topics, users and settings is away again and again: the other goes on",
             subjects=("raftmq",), is_scripted=True),
    Scenario("hot-topic", "a topic of one group of brokers takes most of the load: it spreads over two by itself",
             subjects=("raftmq",), is_scripted=True),
    Scenario("registry-loss", "the registry of two groups of brokers is killed, wiped, stopped, put back from a copy:"
             " no send fails and no route shrinks", subjects=("raftmq",), is_scripted=True),
    Scenario("registry-faults", "the registry's processes are killed, stopped, cut off, without power and without"
             " space: soon after each, an operation is accepted", subjects=("raftmq",), is_scripted=True),
    Scenario("group-drain", "a second group of brokers is drained and retires under load, and its leader is killed: no"
             " message is lost", subjects=("raftmq",), is_scripted=True),
    Scenario("noisy-neighbour", "somebody sends as fast as he can, without a quota and with one: it is kept, also"
             " beside faults, and others do not notice", subjects=("raftmq",), is_scripted=True),
    Scenario("quota-storm", "quotas change a hundred times a second, good ones and bad ones, among clients that do not"
             " mind the answers, and kills of the leader", subjects=("raftmq",), is_scripted=True),
)  # fmt: skip

SCENARIOS: dict[str, Scenario] = {scenario.name: scenario for scenario in _ALL}
"""Every scenario by name, including those that wait for a feature."""


def scenario_named(name: str) -> Scenario:
    """Returns the scenario of that name. Raises LocalError naming the nearest name."""
    if name not in SCENARIOS:
        raise _unknown("scenario", name, SCENARIOS)
    return SCENARIOS[name]


def nemeses_named(names: str) -> list[Nemesis]:
    """Returns the faults of a list like "kill-leader,membership". Raises LocalError for an unknown name, with the
    nearest one."""
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    if not wanted:
        raise _unknown("nemesis", names, NEMESES)
    for name in wanted:
        if name not in NEMESES and name not in FAMILIES:
            raise _unknown("nemesis", name, [*NEMESES, *FAMILIES])
    single = [each for name in wanted for each in FAMILIES.get(name, (name,))]
    return [NEMESES[name] for name in dict.fromkeys(single)]


def _unknown(kind: str, name: str, known: Iterable[str]) -> LocalError:
    names = list(known)
    match = nearest(name, names)
    return LocalError(
        f"there is no {kind} {name!r}",
        f"there are {', '.join(names)}",
        f"raftmq chaos run --{kind} {match}" if match else "raftmq chaos list",
        ExitCode.USAGE,
    )
