"""Attacks by clients that connect to a peer port and are not nodes. They send wrong frames under an invented id or
under the id of a member.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid

from cluster.peer.connections import BULK, CONTROL
from cluster.peer.wire import pack
from cluster.runtime.peer_frames import Kind
from jepsen_like.client_kit.frames import HOST
from jepsen_like.client_kit.wire import Target, ask_http, listen_anywhere, was_dialled
from jepsen_like.hostile.attack import Arena, Attack, RoundReport

_GUEST = 77
_TERM, _COMMIT = (1 << 63) - 2, 1 << 40
_WAIT_S = 0.6


async def strangers(arena: Arena, node: Target, report: RoundReport) -> None:
    """Sends votes, heartbeats, terms and fetches in the name of an invented node. Checks that the attacked node does
    not dial the address in these frames.
    """
    listener, port = listen_anywhere()
    who = (_GUEST + next(arena.serial) % 900, str(uuid.UUID(int=arena.rng.getrandbits(128), version=4)), port)
    await _say_all(arena, node, report, *who)
    report.demand(not was_dialled(listener), f"node {node.id} dialled an address that a stranger had named")


async def impostors(arena: Arena, node: Target, report: RoundReport) -> None:
    """Sends the frames of `strangers` in the name of another member, whose uuid is known from GET /v1/members."""
    other = next(target for target in arena.targets.values() if target is not node)
    answer, known = await ask_http(other.admin_port, "GET", "/v1/members"), {}
    with contextlib.suppress(ValueError, KeyError, TypeError):
        known = {member["id"]: member["uuid"] for member in json.loads(answer.body)["members"]}
    await _say_all(arena, node, report, other.id, known.get(other.id, str(uuid.UUID(int=7))), other.peer_port)


async def _say_all(arena: Arena, node: Target, report: RoundReport, me: int, node_uuid: str, port: int) -> None:
    said = []
    for kind, header in _words(me, node.id):
        for channel in (CONTROL, BULK):
            hello = [arena.cluster, 1, me, node_uuid, node.id, channel, arena.rng.getrandbits(40), HOST, port]
            said.append(_say(node.peer_port, pack(Kind.HELLO, list(hello)) + pack(kind, header)))
    report.sent += len(said)
    report.closed += sum(await asyncio.gather(*said))


def _words(me: int, to: int) -> list[tuple[Kind, list[object]]]:
    last = [_TERM - 1, _COMMIT]
    return [
        (Kind.REQUEST_VOTE, [me, to, _TERM, last, False, True]),
        (Kind.REQUEST_VOTE, [me, to, _TERM, last, True, True]),
        (Kind.HEARTBEAT, [me, to, _TERM, _COMMIT, 0]),
        (Kind.HEARTBEAT, [me, to, 1, _COMMIT, 0]),
        (Kind.APPEND_ENTRIES, [me, to, _TERM, 0, 0, _COMMIT]),
        (Kind.APPEND_ENTRIES_REPLY, [me, to, _TERM, False, _COMMIT, last]),
        (Kind.TIMEOUT_NOW, [me, to, _TERM]),
        (Kind.INSTALL_SNAPSHOT, [me, to, _TERM, _COMMIT, last]),
        (Kind.FETCH, [1, "tail", []]),
        (Kind.FETCH, [1, "state", []]),
    ]


async def _say(port: int, data: bytes) -> bool:
    """Sends the bytes on a new connection and waits up to _WAIT_S seconds. Returns True if the node closes or refuses
    the connection.
    """
    try:
        async with asyncio.timeout(_WAIT_S):
            reader, writer = await asyncio.open_connection(HOST, port)
            try:
                writer.write(data)
                while await reader.read(4096):
                    pass
            finally:
                writer.transport.abort()
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


ATTACKS = (
    Attack("strangers", "a made-up node on the peer port: votes, heartbeats, fetches, an address to dial", strangers),
    Attack("impostors", "the same under the id and uuid of another member", impostors),
)
