"""One user cannot exhaust what all share: floods of costly and denied requests, against real nodes, beside honest sends
and an operator. The leader stays, no honest request fails, no turn of the loop is long, memory and log stay small.

FLOOD_SECONDS is the time of each flood. From 60 s on, the same number of harmless requests of the same size is played
too, and honest sends may take twice as long beside the flood as beside those."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import psutil
import pytest

from cluster.config.local_layout import NodeRecord
from raftmq.local.cluster import LocalCluster
from tests.support import floods
from tests.support.floods import ANN, KINDS, Admin, Flood, Seen, Who, harmless, play
from tests.support.user_cluster import ROOT, as_user, cluster_with_users

SECONDS = float(os.environ.get("FLOOD_SECONDS", "8"))
pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.timeout(900 + 12 * int(SECONDS))]

EVE: Who = ("eve", "the-secret-of-eve")
OTHERS: list[Who] = [(f"other{number}", f"the-secret-of-other{number}") for number in range(50)]
MIB = 1 << 20
MEMORY_MAX = 32 * MIB
"""The most that a node may grow by in a flood: what is in flight, and what the allocator keeps of it."""
LOG_MAX = 4 * MIB
TURN_MAX_S = 0.1
RULES = 500
"""Rules of the user who floods, besides those for her own topic and group; each of the others has half as many."""
WIDE = 1_024

LIKE_S = 20.0
"""Seconds for which harmless requests are played, as many a second as a flood made."""

Act = Callable[[list[NodeRecord]], Awaitable[object]]
"""Plays a flood on the nodes, of which the first leads."""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    with cluster_with_users(tmp_path, monkeypatch) as made:
        with as_user(made, ROOT) as root:
            for name, secret in (EVE, ANN, *OTHERS):
                root.admin.create_user(name, secret)
                for kind in ("Topic", "Group"):
                    root.admin.set_rule(name, f"{kind}:{name}*", ["All"])
            for name in (EVE[0], ANN[0], *(name for name, _ in OTHERS)):
                root.admin.create_topic(name, queues=4)
            root.admin.create_topic("eve-wide", queues=WIDE)
            port = made.nodes[0].broker_port
            asyncio.run(floods.give_rules(port, EVE, [f"Topic:far-{number}" for number in range(RULES)]))
            for who in OTHERS:
                asyncio.run(floods.give_rules(port, who, [f"Topic:far-{number}" for number in range(RULES // 2)]))
            root.admin.set_auth_mode("enforce")
        yield made


def sizes(cluster: LocalCluster) -> dict[int, tuple[int, int]]:
    """Node -> bytes in memory, and bytes of its log."""
    found = {}
    for node in cluster.nodes:
        logs = sum(path.stat().st_size for path in node.home.rglob("node.log*"))
        found[node.id] = psutil.Process(node.pid).memory_info().rss, logs
    return found


def say(what: str) -> None:
    print(what, flush=True)  # noqa: T201 - the figures are what the long runs are made for


async def beside(cluster: LocalCluster, act: Act, like: Act | None = None) -> None:
    """Plays a flood beside honest requests, and judges what is left of the cluster. `like`: harmless requests."""
    leader = cluster.wait_leader()
    nodes = sorted(cluster.nodes, key=lambda node: node.id != leader)
    async with AsyncExitStack() as open_ones:
        admins = [await open_ones.enter_async_context(Admin(node.admin_port)) for node in nodes]
        for admin in admins:
            await admin.log_in(ROOT)

        async def played(part: Act) -> tuple[Seen, Seen]:
            sent, asked = Seen([], []), Seen([], [])
            async with (
                floods.honest_sends(nodes[0].broker_port, sent),
                floods.until_done(asked, admins[0].commands),
            ):
                await part(nodes)
            for what, seen in (("sends", sent), ("commands", asked)):
                p50 = sorted(seen.took_ms)[len(seen.took_ms) // 2]
                say(f"{len(seen.codes)} {what}: p50 {p50:.1f}, p99 {seen.p99_ms():.1f}, max {max(seen.took_ms):.0f} ms")
            return sent, asked

        await played(lambda _: asyncio.sleep(1))
        before, turns = sizes(cluster), [await admin.longest_turns() for admin in admins]
        sent, asked = await played(act)
        after = sizes(cluster)
        for node, (memory, log) in after.items():
            grown, said = memory - before[node][0], log - before[node][1]
            say(f"node {node}: {grown / MIB:+.0f} MiB, log {said / 1024:+.0f} KiB")
            assert said < LOG_MAX
            assert grown < MEMORY_MAX
        for admin, was in zip(admins, turns, strict=True):
            longer = {what: s for what, s in (await admin.longest_turns()).items() if s > was.get(what, 0.0)}
            say(f"longest turns: {sorted(longer.items(), key=lambda item: -item[1])[:2]}")
            assert not [what for what, s in longer.items() if s > TURN_MAX_S]
        assert set(sent.codes) == {0}
        assert set(asked.codes) == {200}
        assert len(sent.codes) > 10
        assert cluster.wait_leader() == leader
        if like is not None and SECONDS >= 60:
            calm, _ = await played(like)
            assert sent.p99_ms() <= 2 * calm.p99_ms()


async def compared(cluster: LocalCluster, parts: list[tuple[Who, Flood]], *, seconds: float = SECONDS) -> None:
    """Plays these floods, each on all nodes in turn, and then as many harmless requests a second as they made."""
    bursts: list[int] = []

    async def act(nodes: list[NodeRecord]) -> None:
        ports = [nodes[at % len(nodes)].broker_port for at in range(len(parts))]
        played = (play(port, flood, seconds) for port, (_, flood) in zip(ports, parts, strict=True))
        bursts.extend(await asyncio.gather(*played))
        say(f"{sum(bursts)} bursts, {sum(n * f.requests for n, (_, f) in zip(bursts, parts, strict=True))} requests")
        assert min(bursts) > 1

    async def like(nodes: list[NodeRecord]) -> None:
        ports = [nodes[at % len(nodes)].broker_port for at in range(len(parts))]
        each = zip(ports, parts, bursts, strict=True)
        await asyncio.gather(
            *(play(port, harmless(who, flood), LIKE_S, every_s=seconds / n) for port, (who, flood), n in each)
        )

    await beside(cluster, act, like)


@pytest.mark.parametrize("name", KINDS)
async def test_one_flood_leaves_leader_sends_memory_and_log_alone(cluster: LocalCluster, name: str) -> None:
    who = ROOT if KINDS[name] is floods.lists_of_rules else EVE
    await compared(cluster, [(who, KINDS[name](who))])


async def test_strangers_at_the_http_api_leave_the_operator_his_place(cluster: LocalCluster) -> None:
    begun = 0

    async def act(nodes: list[NodeRecord]) -> None:
        nonlocal begun
        begun = await floods.hold_places(nodes[0].admin_port, SECONDS)
        say(f"{begun} requests begun")

    async def like(nodes: list[NodeRecord]) -> None:
        await floods.hold_places(nodes[0].admin_port, LIKE_S, what=floods.WHOLE, every_s=SECONDS / begun)

    await beside(cluster, act, like)


async def test_guesses_and_tokens_at_the_http_api(cluster: LocalCluster) -> None:
    counts: list[int] = []

    async def act(nodes: list[NodeRecord]) -> None:
        port = nodes[0].admin_port
        guesses = (floods.guess_logins(port, SECONDS) for _ in range(4))
        tokens = (floods.change_tokens(port, SECONDS, EVE) for _ in range(4))
        counts.extend(await asyncio.gather(*guesses, *tokens))
        say(f"guesses and changes: {counts}")

    async def like(nodes: list[NodeRecord]) -> None:
        port = nodes[0].admin_port
        every = [SECONDS / count for count in counts]
        guesses = (floods.guess_logins(port, LIKE_S, right=True, every_s=each) for each in every[:4])
        tokens = (
            floods.change_tokens(port, LIKE_S, who, looks=True, every_s=each)
            for who, each in zip(OTHERS, every[4:], strict=False)
        )
        await asyncio.gather(*guesses, *tokens)

    await beside(cluster, act, like)


async def test_three_floods_at_once(cluster: LocalCluster) -> None:
    """Five times as long as the others."""
    three = (floods.wide_heartbeat, floods.resets, floods.denied_names)
    await compared(cluster, [(EVE, kind(EVE)) for kind in three], seconds=5 * SECONDS)


async def test_one_user_does_all_things_at_once_from_50_connections(cluster: LocalCluster) -> None:
    made = [kind(EVE) for kind in KINDS.values()]
    await compared(cluster, [(EVE, made[at % len(made)]) for at in range(50)])


async def test_50_users_do_one_thing_each(cluster: LocalCluster) -> None:
    kinds = list(KINDS.values())
    await compared(cluster, [(who, kinds[at % len(kinds)](who)) for at, who in enumerate(OTHERS)])
