"""A checkpoint from a peer: proved before it is adopted, refused when anything about it is wrong."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from cluster.peer.fetch import Fetched, FetchError, Refused, Status
from cluster.recovery import manifest as manifests
from cluster.recovery.opening import StateLostError
from cluster.recovery.peer_state import StateFetch, state_source
from raftlog.types import NodeId
from statemachine.digest import digest

Place = Any


class Peers:
    """Stands for a FetchClient: sources by node id, asked directly."""

    def __init__(self, sources: dict[int, Any]) -> None:
        self.sources = sources
        self.asked: list[list[Any]] = []

    async def fetch(self, peer: int, what: str, arguments: list[Any], timeout_ms: int) -> Fetched:
        self.asked.append(arguments)
        if self.sources.get(peer) is None:
            raise FetchError(NodeId(peer), what, None, "no answer")
        try:
            return self.sources[peer](arguments)
        except Refused as error:
            raise FetchError(NodeId(peer), what, error.status, str(error)) from None


@pytest.fixture
def pair(place: Place, tmp_path: Any) -> tuple[Place, Any]:
    """A node without a usable state, and the source of a peer with the same log."""
    place.run(30, checkpoint=True)
    place.run(10)
    peer = tmp_path / "peer"
    shutil.copytree(place.path, peer)
    shutil.rmtree(place.path / "checkpoints")
    shutil.rmtree(place.path / "state")
    from cluster.recovery.checkpoints import Checkpoints

    return place, state_source(place.fs, Checkpoints(place.fs, peer, 1))


def fetch(place: Place, peers: Peers) -> Any:
    from raftlog.storage.node_dir import open_node_dir

    directory = open_node_dir(place.fs, place.path)
    try:
        work = StateFetch(place.fs, place.path, 1, directory.log)
        return asyncio.run(work.run(peers, [NodeId(2), NodeId(3)])), work.refusals  # type: ignore[arg-type]
    finally:
        directory.close(clean=False)


def test_a_lost_state_comes_from_a_peer(pair: tuple[Place, Any], replay_all: Any) -> None:
    place, source = pair
    with pytest.raises(StateLostError):
        place.open()
    checkpoint, refusals = fetch(place, Peers({3: source}))
    assert checkpoint.manifest.mark.index == 40
    assert "node 2 does not give state" in refusals[0]
    parts = place.open()
    assert parts.recovery.status(parts.keeper.run).state_source == "peer"
    replay_all(parts)
    assert digest(parts.kv) == place.expected(40)
    parts.close(clean=True)


@pytest.mark.parametrize("wrong", ["byte", "short", "manifest", "sums", "log"])
def test_what_is_not_sound_is_refused(pair: tuple[Place, Any], wrong: str, tmp_path: Any, new_place: Any) -> None:
    place, source = pair

    name = source(["list"]).fields[0][0]
    told = manifests.decode(source(["manifest", name]).payload, 1, Path("x"))
    assert told is not None
    forged = told._replace(sums={**told.sums, "cq": 1})

    def lying(arguments: list[Any]) -> Fetched:
        if wrong == "sums":
            mark = forged.mark
            if arguments == ["list"]:
                return Fetched([[forged.name, mark.index, mark.term, mark.header_crc]], b"")
            if arguments[0] == "manifest":
                return Fetched([], manifests.encode(forged, 1))
            return source(["file", name, *arguments[2:]])
        answer = source(arguments)
        if arguments[0] == "file" and arguments[2].endswith(".sst") and wrong in ("byte", "short"):
            data = bytearray(answer.payload)
            data[len(data) // 2] ^= 1
            return Fetched([], bytes(data) if wrong == "byte" else b"")
        if arguments[0] == "manifest" and wrong == "manifest":
            return Fetched([], answer.payload[:-1] + bytes([answer.payload[-1] ^ 1]))
        if arguments == ["list"] and wrong == "log":
            return Fetched([[name, index, term, crc ^ 1] for name, index, term, crc in answer.fields], b"")
        return answer

    checkpoint, refusals = fetch(place, Peers({2: lying}))
    assert checkpoint is None
    assert any("node 2" in refusal for refusal in refusals)
    assert place.checkpoints().names() == []
    checkpoint, _ = fetch(place, Peers({2: lying, 3: source}))
    assert checkpoint is not None


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["list", 1],
        ["manifest", "../../etc"],
        ["file", "x", "CURRENT", 0, 10],
        ["file", None, "CURRENT", 0, 10],
        ["file", "name", "../CHECKPOINT", 0, 10],
        ["file", "name", "CURRENT", -1, 10],
        ["file", "name", "CURRENT", 0, 0],
    ],
)
def test_a_source_gives_nothing_but_files_of_checkpoints(pair: tuple[Place, Any], arguments: list[Any]) -> None:
    _, source = pair
    name = source(["list"]).fields[0][0]
    with pytest.raises((Refused, ValueError)):
        source([name if one == "name" else one for one in arguments])


def test_a_checkpoint_that_went_meanwhile_is_missing(pair: tuple[Place, Any], tmp_path: Any) -> None:
    _, source = pair
    name = source(["list"]).fields[0][0]
    shutil.rmtree(tmp_path / "peer" / "checkpoints")
    with pytest.raises(Refused) as refused:
        source(["manifest", name])
    assert refused.value.status is Status.MISSING
