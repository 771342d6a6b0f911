"""Attempts to join by a process that reaches a peer port and knows all names, but not the cluster's secret."""

from __future__ import annotations

import asyncio
import random

from cluster.peer.connections import CONTROL
from cluster.peer.handshake import NONCE_BYTES, PROOF_BYTES, with_keys
from cluster.peer.wire import encode_message, pack
from cluster.runtime.key_file import key_id
from cluster.runtime.peer_frames import Kind
from jepsen_like.client_kit.frames import FrameConnection
from jepsen_like.sim.machines.loop import SimLoop
from jepsen_like.sim.machines.machine import CLUSTER, CLUSTER_KEY, GROUP_ID, PEER_PORT, uuid_of
from raftlog.messages import Heartbeat, Message, RequestVote
from raftlog.types import EntryId, NodeId

STEP = 1 << 20
"""Number of the term that the attempts claim: not so far ahead that a node would reject it from a real peer."""
STRANGER = NodeId(99)


class Stranger(FrameConnection):
    """The connection of an unknown process: it says hello and continues as if the node had accepted it. `heard`: the
    bytes that the node sends."""

    def __init__(self) -> None:
        super().__init__()
        self.heard = b""

    def data_received(self, data: bytes) -> None:
        self.heard += data


def say(rng: random.Random, to: NodeId, who: NodeId, *, proves: bool) -> list[bytes]:
    """Returns the frames of an attempt: `who` says hello, with a key or without, sends a proof that it cannot know, and
    then a vote request in a far term and a leader's heartbeat."""
    hello = [str(CLUSTER), GROUP_ID, who, str(uuid_of(who)), to, CONTROL, 7, "10.0.9.9", PEER_PORT]
    if proves:
        hello = with_keys(hello, rng.randbytes(NONCE_BYTES), [key_id(CLUSTER_KEY)])
    messages: list[Message] = [
        RequestVote(who, to, STEP, EntryId(STEP - 1, 1 << 40), False, True),
        Heartbeat(who, to, STEP, 1 << 40, 1),
    ]
    frames = [pack(Kind.HELLO, hello)]
    if proves:
        frames.append(pack(Kind.PROOF, [rng.randbytes(PROOF_BYTES)]))
    return [*frames, *(part for message in messages for part in encode_message(message))]


async def intrude(loop: SimLoop, rng: random.Random, host: str, to: NodeId) -> None:
    """Makes one attempt, in the name of a member or of an unknown node. Raises OSError."""
    who = STRANGER if rng.random() < 0.5 else NodeId(1 + to % 3)
    stranger = Stranger()
    await loop.create_connection(lambda: stranger, host, PEER_PORT)
    for frame in say(rng, to, who, proves=rng.random() < 0.7):
        stranger.transport.write(frame)
        await asyncio.sleep(rng.choice((0.0, 0.01)))
    await asyncio.sleep(0.5)
    stranger.transport.close()
