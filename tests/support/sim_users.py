"""Users and rules on simulated nodes: makes them, signs requests, and asks."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from cluster.broker.access.user_admin import Asker
from cluster.broker.refusal import Refused
from raftmq_wire.codec import encode_frame
from raftmq_wire.codes import RequestCode
from raftmq_wire.signature import Credentials
from statemachine.cluster_wide.cluster_level import Finalize
from statemachine.levels import ACCESS_LEVEL
from tests.support.sim_cluster import ClientPath, SimCluster, codes

OPERATOR = Asker("operator", "127.0.0.1")
ROOT, SHOP, OTHER = (
    Credentials("root", "root-secret"),
    Credentials("shop", "shop-secret"),
    Credentials("shop", "wrong-one"),
)
SEND_T = [1, "Topic:T", ["Pub"], [], True]
READ_T = [[1, "Topic:T", ["Sub"], [], True], [1, "Group:g", ["Sub"], [], True]]


def key_file(folder: Path, key: bytes = b"k" * 32, mode: int = 0o600) -> Path:
    path = folder / "auth.key"
    path.write_bytes(base64.b64encode(key) + b"\n")
    path.chmod(mode)
    return path


def with_key(folder: Path, seed: int = 7, **config: Any) -> SimCluster:
    overrides: dict[str, Any] = {"auth.key_file": str(key_file(folder))} | config
    return SimCluster(seed, **overrides)


def ask_admin(sim: SimCluster, method: str, *arguments: Any, **named: Any) -> Refused | None:
    """A change of the operator on the leader; why it had no effect."""
    leader = sim.leader()
    told: list[Refused | None] = []
    leader.run(
        lambda: getattr(leader.running.serving.broker.user_admin, method)(OPERATOR, *arguments, told.append, **named)
    )
    sim.loop.run_until(lambda: told, 10, method)
    return told[0]


def begin(sim: SimCluster, mode: str = "enforce", level: int = ACCESS_LEVEL) -> None:
    """A Super, a user that may send to T, the cluster's level, and the mode; known everywhere."""
    sim.propose(sim.leader(), Finalize(level))
    sim.loop.run_until(lambda: all(node.state.level >= level for node in sim.running), 10, "the level")
    assert ask_admin(sim, "create", "root", "root-secret", is_super=True, enabled=True) is None
    assert ask_admin(sim, "create", "shop", "shop-secret", is_super=False, enabled=True) is None
    assert ask_admin(sim, "set_rules", "shop", [SEND_T]) is None
    assert ask_admin(sim, "set_mode", mode) is None
    settle(sim)


def settle(sim: SimCluster) -> None:
    version = sim.leader().state.access.version
    sim.loop.run_until(
        lambda: all(node.state.access.version == version for node in sim.running), 10, "known everywhere"
    )


def request(who: Credentials | None, code: int, opaque: int, ext: dict[str, str], body: bytes = b"") -> bytes:
    return encode_frame(code, opaque, 0, ext=ext if who is None else who.signed(ext, body), body=body)


def send(
    who: Credentials | None,
    opaque: int,
    topic: str = "T",
    body: bytes = b"m",
    born_ms: int = 1,
    *,
    session: bool = False,
) -> bytes:
    """`session`: it is the first send of our client's session, so that a second one is its repetition."""
    ext = {"a": "p", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": str(born_ms), "h": "0", "i": ""}
    ext["j"] = "0"
    if session:
        ext |= {"raftmqPid": "ab" * 16, "raftmqSeq": "1", "raftmqLow": "1"}
    return request(who, RequestCode.SEND_MESSAGE_V2, opaque, ext, body)


def pull(who: Credentials | None, opaque: int, wait_ms: int = 30_000, topic: str = "T") -> bytes:
    ext = {"consumerGroup": "g", "topic": topic, "queueId": "0", "queueOffset": "0", "maxMsgNums": "8", "sysFlag": "6"}
    ext |= {
        "commitOffset": "0",
        "suspendTimeoutMillis": str(wait_ms),
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }
    return request(who, RequestCode.PULL_MESSAGE, opaque, ext)


def answer(sim: SimCluster, path: ClientPath, opaque: int) -> int:
    sim.loop.run_until(lambda: path.replies.get(opaque), 10, f"an answer to {opaque}")
    return codes(path, opaque)[0]


def add_user(sim: SimCluster, name: str, *rules: tuple[str, list[str]]) -> Credentials:
    """Makes a user who may do the actions on the resources."""
    secret = f"{name}-secret"
    assert ask_admin(sim, "create", name, secret, is_super=False, enabled=True) is None
    if rules:
        rows = [[1, resource, actions, [], True] for resource, actions in rules]
        assert ask_admin(sim, "set_rules", name, rows) is None
    settle(sim)
    return Credentials(name, secret)
