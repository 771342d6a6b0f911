"""Attacks of a user who takes more than a fair share of what all users share: the CPU time for checking rights, the
memory for denied requests, the lines of the log, and the slots for costly requests.

The requests themselves are valid. The check of shared things (`shared_check`) and the bounds of work in one turn
(`jepsen_like.sim.machines.turn_bounds`) say what they may cost others. A number in parentheses is a request code.
"""

from __future__ import annotations

import asyncio
import json
import random
from functools import partial
from typing import Final, Protocol

from jepsen_like.client_kit.fields import send_fields, topic_fields
from jepsen_like.client_kit.frames import Answer
from jepsen_like.sim.callbacks import Report
from jepsen_like.sim.clients.client_machines import SEND_CODE, ClientHost
from jepsen_like.sim.clients.raw_client import RawConnection
from jepsen_like.sim.clients.single_request import connects
from raftmq_wire.codes import RequestCode

NAMES: Final = 4_900
"""Number of topics in one heartbeat. Checking the rights to all of them in one piece would exceed the bound of a turn.
Parsing them does not: a body may hold 5,000 objects.
"""
LONG, LONG_EACH = 50_000, 3
"""LONG: characters of a long name, of four bytes each. LONG_EACH: number of heartbeats in a row with a long name."""
DENIED: Final = 40
"""Number of denied sends in one write."""
WIDE_QUEUES, RESETS = 16, 60
"""WIDE_QUEUES: queues of the topic whose offsets are reset. RESETS: resets in one write."""
CONNECTIONS, LISTS_EACH = 4, 8
STAYS_S = 0.15
"""Time in seconds after which a client disconnects that has sent many costly requests."""


class AttackTools(Protocol):
    """Attributes of an attack (`jepsen_like.sim.users.attackers`) that the attacks of this module use."""

    own: str
    """Name of the attacker, and prefix of the names of the objects to which the attacker has rights."""
    rng: random.Random
    host: ClientHost
    report: Report
    connection: RawConnection

    async def ask(self, code: int, ext: dict[str, str], body: bytes = b"") -> Answer | None:
        """Sends a request signed by the attacker."""

    def frame(self, code: int, ext: dict[str, str], body: bytes = b"") -> bytes:
        """Returns a request signed by the attacker, whose answer is ignored."""

    def frame_on(self, connection: RawConnection, code: int, ext: dict[str, str]) -> bytes:
        """Returns a signed request, like `frame`, for another connection."""


async def names_many(attack: AttackTools) -> None:
    """Sends a heartbeat with very many topics, to all of which the attacker has a right (34)."""
    topics = [{"topic": f"{attack.own}-{number}"} for number in range(NAMES)]
    body = {"clientID": "c", "consumerDataSet": [{"groupName": f"{attack.own}-many", "subscriptionDataSet": topics}]}
    await attack.ask(RequestCode.HEART_BEAT, {}, json.dumps(body, separators=(",", ":")).encode())


async def names_long(attack: AttackTools) -> None:
    """Sends heartbeats (34), each with a different, very long name of a group."""
    for _ in range(LONG_EACH):
        name = f"{attack.rng.random()}" + "\N{GRINNING FACE}" * LONG
        body = json.dumps({"clientID": "c", "consumerDataSet": [{"groupName": name}]}, ensure_ascii=False)
        await attack.ask(RequestCode.HEART_BEAT, {}, body.encode())


async def is_denied(attack: AttackTools) -> None:
    """Sends messages (310) to many different topics of others in one write."""
    new = attack.rng.random()
    frames = [attack.frame(SEND_CODE, send_fields(f"no-{new}-{at}"), b"denied") for at in range(DENIED)]
    attack.connection.write(b"".join(frames))
    await asyncio.sleep(0)


async def asks_and_leaves(attack: AttackTools) -> None:
    """Resets the offsets of its own group many times in one write (222), and disconnects before most of it is done."""
    await _make_wide(attack)
    connection = await _dial(attack)
    if connection is not None:
        fields = {"group": f"{attack.own}-group", "topic": _wide(attack), "timestamp": "-1", "isForce": "true"}
        code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
        connection.write(b"".join(attack.frame_on(connection, code, fields) for _ in range(RESETS)))
        await asyncio.sleep(STAYS_S)
        connection.transport.abort()


async def asks_on_many(attack: AttackTools) -> None:
    """Asks for the figures of its own topic many times on each of several connections (202)."""
    await _make_wide(attack)
    connections = [made for made in [await _dial(attack) for _ in range(CONNECTIONS)] if made is not None]
    for connection in connections:
        frame = partial(attack.frame_on, connection, RequestCode.GET_TOPIC_STATS_INFO, {"topic": _wide(attack)})
        connection.write(b"".join(frame() for _ in range(LISTS_EACH)))
    await asyncio.sleep(STAYS_S)
    for connection in connections:
        connection.transport.close()


def _wide(attack: AttackTools) -> str:
    return f"{attack.own}-wide"


async def _make_wide(attack: AttackTools) -> None:
    await attack.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields(_wide(attack), WIDE_QUEUES))


async def _dial(attack: AttackTools) -> RawConnection | None:
    made = RawConnection("a greedy client", attack.host.loop, attack.report)
    return made if await connects(made, attack.rng.choice(attack.host.nodes)) else None
