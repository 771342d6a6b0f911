"""Sends frames on the channel between groups of brokers.

A guest, which knows the cluster's secret, claims to be a node of some group and sends wrong frames. It dials nodes, and
nodes dial it, because the maps that it sends contain its address. It sends no change that a node of another group could
rightly propose, and no address but its own. Nothing else that it sends may end a node, move leadership, or stay in a
node's memory without bound.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
import uuid
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgpack

from cluster.peer import handshake
from cluster.peer.connections import GROUP
from cluster.peer.wire import VERSION, pack, unpack
from cluster.runtime.key_file import key_id
from cluster.runtime.peer_frames import Kind, WireError
from jepsen_like.client_kit.frames import HOST
from jepsen_like.hostile import almost_valid_values
from raftlog.types import GROUPS_MAX
from statemachine.levels import LEVEL

SPOKEN = (
    *(Kind.GROUPS, Kind.TRUTH, Kind.TRUTH_REPLY, Kind.ACT, Kind.ACT_REPLY, Kind.MEMBERS, Kind.MEMBERS_REPLY),
    Kind.DEMANDS,
)
OTHERS = tuple(kind for kind in Kind if kind not in SPOKEN)
_HEAD = struct.Struct(">iBBH")
_PAUSE_S = 2.0
"""Seconds for which a guest waits for an answer, and for which it keeps a connection of a node."""
_FIRST_OWN = 10
"""The lowest number of the groups that the guest invents."""


class GroupGuest:
    """A guest that sends frames in the name of nodes of groups, both of groups that exist and of invented ones."""

    def __init__(self, cluster: str, key: bytes | None, seed: int) -> None:
        """`cluster`: the cluster's uuid. `key`: the newest key of its secret; None if it has none."""
        self._cluster, self._key, self._rng = cluster, key, random.Random(seed)
        self.counts: Counter[str] = Counter()
        """Kind of a frame -> how often it was sent."""
        self._server: asyncio.Server | None = None
        self._port = 0
        self._kept: set[asyncio.StreamWriter] = set()
        """The connections that nodes have opened to the guest."""

    async def start(self) -> None:
        """Listens at the address that its maps name."""
        self._server = await asyncio.start_server(self._dialled, HOST, 0)
        self._port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        """Stops listening, and ends the connections of nodes."""
        if self._server is not None:
            self._server.close()
        for writer in self._kept:
            writer.transport.abort()

    # --- as the node that dials --------------------------------------------------------------------------------------

    async def visit(self, port: int, to: int, groups: Sequence[int]) -> None:
        """Dials a node and sends frames for up to _PAUSE_S seconds. `groups`: the numbers of the cluster's groups."""
        rng = self._rng
        try:
            reader, writer = await asyncio.open_connection(HOST, port)
        except OSError:
            return
        try:
            async with asyncio.timeout(_PAUSE_S):
                group = rng.choice((*groups, *range(_FIRST_OWN, GROUPS_MAX + 1), GROUPS_MAX + 1, 0))
                hello = self._hello(group, rng.choice((0, to)))
                if rng.random() < 0.2:
                    hello[rng.randrange(len(hello))] = self._value()
                frame = self._packed(Kind.HELLO, hello)
                early = rng.random()
                writer.write(frame + (self._some_frames(group) if early < 0.2 else b""))
                self.counts["HELLO with more" if early < 0.2 else "HELLO"] += 1
                if self._key is not None:
                    challenge = await _frame_of(reader)
                    if _kind(challenge) != Kind.CHALLENGE:
                        return
                    proof = handshake.dialler_proof(self._key, frame[4:], challenge)
                    with_proof = rng.random() < 0.5
                    writer.write(pack(Kind.PROOF, [proof]) + (self._some_frames(group) if with_proof else b""))
                    self.counts["PROOF with more" if with_proof else "PROOF"] += 1
                if _kind(await _frame_of(reader)) != Kind.WELCOME:
                    return
                self.counts["let in"] += 1
                while not writer.is_closing():
                    writer.write(self._some_frames(group))
                    await writer.drain()
                    await asyncio.sleep(rng.choice((0.0, 0.001, 0.02)))
        except (OSError, TimeoutError, WireError, EOFError):
            pass
        finally:
            writer.transport.abort()

    def _hello(self, group: int, to: int) -> list[Any]:
        node = self._rng.choice((1, 2, 3, 77))
        who = [self._cluster, group, node, str(uuid.UUID(int=1000 * group + node)), to, GROUP, 5, HOST, self._port]
        if self._key is None:
            return who
        return [*handshake.with_keys(who, self._rng.randbytes(32), [key_id(self._key)]), LEVEL, LEVEL]

    # --- as the node that is dialled ---------------------------------------------------------------------------------

    async def _dialled(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        rng = self._rng
        self._kept.add(writer)
        with contextlib.suppress(OSError, TimeoutError, WireError, EOFError):
            async with asyncio.timeout(_PAUSE_S):
                hello = await _frame_of(reader)
                self.counts["dialled"] += 1
                if rng.random() < 0.2:
                    writer.write(self._noise())
                who = [self._cluster, rng.choice((1, 77)), str(uuid.UUID(int=7)), rng.choice((2, 10, 11, 64))]
                if rng.random() < 0.3:
                    who[rng.randrange(4)] = self._value()
                proof: Any = rng.randbytes(32)
                if self._key is not None:
                    challenge = pack(Kind.CHALLENGE, [rng.randbytes(32), key_id(self._key)])
                    writer.write(challenge)
                    await _frame_of(reader)
                    with contextlib.suppress(ValueError, TypeError, OverflowError):
                        proof = handshake.acceptor_proof(self._key, hello, challenge[4:], who)
                writer.write(self._packed(Kind.WELCOME, [*who, proof]) + self._some_frames(who[3]))
                self.counts["WELCOME with more"] += 1
                while not writer.is_closing():
                    writer.write(self._some_frames(who[3]))
                    await writer.drain()
                    await asyncio.sleep(0.02)
        writer.transport.abort()
        self._kept.discard(writer)

    # --- what is said ------------------------------------------------------------------------------------------------

    def _some_frames(self, group: Any) -> bytes:
        return b"".join(self._frame(group) for _ in range(self._rng.choice((1, 1, 3, 40))))

    def _frame(self, group: Any) -> bytes:
        rng, chance = self._rng, self._rng.random()
        if chance < 0.03:
            self.counts["noise"] += 1
            return self._noise()
        kind = rng.choice(OTHERS) if chance < 0.06 else rng.choice(SPOKEN)
        header, payload = self._content(kind, group)
        if header and rng.random() < 0.15:
            header[rng.randrange(len(header))] = self._value()
        if payload and rng.random() < 0.1:
            payload = payload[: rng.randrange(len(payload))]
            self.counts["cut short"] += 1
        elif rng.random() < 0.02:
            payload += rng.randbytes(rng.choice((1, 70_000, 2 << 20)))
            self.counts["too long"] += 1
        self.counts[kind.name] += 1
        return self._packed(kind, header, payload)

    def _content(self, kind: Kind, group: Any) -> tuple[list[Any], bytes]:
        rng = self._rng
        number = rng.choice((rng.randrange(200), rng.randrange(200), 1 << 62, -1))
        match kind:
            case Kind.GROUPS:
                return [], self._map(group)
            case Kind.TRUTH:
                return [number, rng.choice((0, 1, 1 << 40, -1)), LEVEL], b""
            case Kind.TRUTH_REPLY:
                rows: list[Any] = [
                    [rng.randrange(12), "t", rng.choice((None, {}, [1], b"x"))] for _ in range(rng.choice((0, 1, 900)))
                ]
                return [number, rng.randrange(1 << 20), rng.random() < 0.5], msgpack.packb(rows)
            case Kind.ACT:
                commands: list[Any] = rng.choice(
                    ([], ["x"], [["no_such_command", "t"]], [["create_topic", 5]], [[[[]]]])
                )
                return [number, rng.choice(("ann", "", "a" * 5000))], msgpack.packb(commands)
            case Kind.ACT_REPLY:
                return [number, rng.randrange(5), rng.randrange(99), "x"], msgpack.packb([[True, "", None]])
            case Kind.MEMBERS:
                return [number, rng.choice(("g", "", "g" * 3000))], b""
            case Kind.MEMBERS_REPLY:
                ids = ["c" * rng.choice((1, 200, 5000))] * rng.choice((0, 1, 3000))
                return [number, rng.random() < 0.5], msgpack.packb(ids)
            case Kind.DEMANDS:
                demand = rng.choice((0.5, 0.0, -1.0, 1e308, float("nan"), float("inf"), 1, "1"))
                row = [
                    "topic=*",
                    rng.choice(("topic=t", "x" * 2_000, "")),
                    rng.choice(("send_messages", "no such")),
                    demand,
                ]
                return [], msgpack.packb([row] * rng.choice((0, 1, 900, 1_100)))
            case _:
                return [number, 1, number, number], rng.randbytes(20)

    def _map(self, group: Any) -> bytes:
        """Returns a packed map of some groups: one, all or none. Records of the cluster's own groups get an old epoch,
        so that nodes do not believe them. Some maps have wrong names or members.
        """
        rng = self._rng
        chosen = rng.choice(([group], [*range(_FIRST_OWN, GROUPS_MAX + 1)], [*range(1, GROUPS_MAX + 1)], [64, 10], []))
        records, is_good = [], rng.random() < 0.6
        for each in chosen:
            is_real = type(each) is int and each < _FIRST_OWN
            members = [
                [node, HOST, self._port, f"{HOST}:{self._port}", {"broker": f"{HOST}:{self._port}"}]
                for node in range(1, rng.choice((2, 4, 10)))
            ]
            # For groups that exist, only old epochs are sent. Nodes would rightly believe a newer one.
            epoch = [0, 0] if is_real else [rng.randrange(1 << 30), rng.randrange(9)]
            name, away = f"made-up-{each}x", list[int]()
            if not is_good:
                name = rng.choice((name, "raftmq", "raftmq-1", "n" * 200, ""))
                away = rng.choice(([], [1], [9, 1]))
            records.append([each, name, epoch, 1, members, away, LEVEL])
        packed: bytes = msgpack.packb(records)
        return packed

    def _value(self) -> Any:
        each = almost_valid_values.value(self._rng)
        if type(each) is int:
            return max(-(1 << 63), min(each, (1 << 64) - 1))
        return each[:2000] if isinstance(each, str | bytes) else None

    def _noise(self) -> bytes:
        rng = self._rng
        return rng.choice(
            (
                rng.randbytes(rng.randrange(300)),
                struct.pack(">i", rng.choice((-1, 0, 3, 1 << 21, (1 << 31) - 1))) + rng.randbytes(40),
                _HEAD.pack(4 + 1, Kind.GROUPS, VERSION, 1) + rng.choice((b"\xc1", b"\xc0", b"\x80", b"\xdf")),
                _HEAD.pack(4, Kind.GROUPS, VERSION + 1, 0),
                _HEAD.pack(9, Kind.GROUPS, VERSION, 60_000) + b"abcde",
            )
        )

    @staticmethod
    def _packed(kind: Kind, header: list[Any], payload: bytes = b"") -> bytes:
        try:
            packed: bytes = msgpack.packb(header, use_bin_type=True)
        except (OverflowError, ValueError, TypeError):
            packed = msgpack.packb([str(each)[:50].encode("utf-8", "replace") for each in header])
        packed = packed[:65_000]
        return _HEAD.pack(4 + len(packed) + len(payload), kind, VERSION, len(packed)) + packed + payload


async def _frame_of(reader: asyncio.StreamReader) -> bytes:
    """Returns the next frame without its length. Raises EOFError."""
    size = int.from_bytes(await reader.readexactly(4), "big")
    return await reader.readexactly(size)


def _kind(frame: bytes) -> int:
    return unpack(frame, 0, len(frame))[0]
