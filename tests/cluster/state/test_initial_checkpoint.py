"""A checkpoint from a peer: proved before it is adopted, refused when anything about it is wrong; the log follows."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from cluster.repair.fetch import LOG, STATE, Fetched, FetchError, FetchRefused, Status
from cluster.repair.initial_checkpoint import StateFetch, note_answer
from cluster.repair.log_source import log_source, state_source
from cluster.state import manifest as manifests
from cluster.state import suspect_state
from cluster.state.checkpoints import Checkpoints
from cluster.state.state_opening import StateLostError
from raftlog.storage.node_dir import open_node_dir
from raftlog.types import NOBODY, HardState, NodeId
from statemachine.rows.digest import digest
from tests.support.rows import each_row

Place = Any


class Checkpointer:
    """The part of a running node that a source needs."""

    def __init__(self, checkpoints: Checkpoints) -> None:
        self.checkpoints = checkpoints
        self.frozen = False
        self.wanted = False
        self.held: list[str] = []

    def hold(self, name: str) -> None:
        self.held.append(name)

    def want_checkpoint(self) -> None:
        self.wanted = True


class Peers:
    """Stands for a FetchClient: sources by node id, asked directly; {STATE: source, LOG: source} or one of STATE."""

    busy_pause_s = 0.0

    def __init__(self, sources: dict[int, Any]) -> None:
        self.sources = sources
        self.asked: list[list[Any]] = []

    async def fetch(self, peer: int, what: str, arguments: list[Any], timeout_ms: int) -> Fetched:
        self.asked.append(arguments)
        source = self.sources.get(peer)
        source = source.get(what) if isinstance(source, dict) else source
        if source is None:
            raise FetchError(NodeId(peer), what, None, "no answer")
        try:
            return source(arguments)
        except FetchRefused as error:
            raise FetchError(NodeId(peer), what, error.status, str(error)) from None


def served(place: Place, path: Path) -> Any:
    return state_source(place.fs, Checkpointer(Checkpoints(place.fs, path, 1)))


@pytest.fixture
def pair(place: Place, tmp_path: Any) -> tuple[Place, Any]:
    """A node without a usable state, and the source of a peer with the same log."""
    place.run(30, checkpoint=True)
    place.run(10)
    peer = tmp_path / "peer"
    shutil.copytree(place.path, peer)
    lose_state(place)
    return place, served(place, peer)


def lose_state(place: Place) -> None:
    shutil.rmtree(place.path / "checkpoints")
    shutil.rmtree(place.path / "state")


class Running:
    """A peer that runs: its log and its checkpoints."""

    def __init__(self, place: Place, path: Path) -> None:
        self.directory = open_node_dir(place.fs, path)
        self.last = self.directory.log.tail.index
        self.sources = {STATE: served(place, path), LOG: log_source(self.directory.log, lambda: self.last)}


@pytest.fixture
def ahead(place: Place, tmp_path: Path, new_place: Any) -> Any:
    """A node that ended at entry 30 without a state, and a peer whose checkpoints are all above."""
    place.run(30, checkpoint=True)
    peer = new_place(tmp_path / "other")
    shutil.rmtree(peer.path)
    shutil.copytree(place.path, peer.path)
    peer.run(300, term=2)
    peer.run(10, term=3)
    running = Running(place, peer.path)
    yield place, running
    running.directory.close(clean=False)


def fetch(place: Place, peers: Peers) -> Any:
    directory = open_node_dir(place.fs, place.path)
    try:
        work = StateFetch(place.fs, directory)
        return asyncio.run(work.run(peers, [NodeId(2), NodeId(3)])), work.refusals  # type: ignore[arg-type]
    finally:
        directory.close(clean=True)


def test_a_log_that_ends_below_is_brought_forward(ahead: Any, replay_all: Any) -> None:
    place, running = ahead
    lose_state(place)
    checkpoint, _ = fetch(place, Peers({3: running.sources}))
    assert checkpoint.manifest.mark.index == 340
    storage = place.open()
    assert storage.directory.log.tail == running.directory.log.tail
    assert storage.directory.hard_state_store.load() == HardState(3, NOBODY, 340)
    status = storage.recovery.status(storage.checkpointer.run)
    assert (status.state_source, status.replaying) == ("peer", False)
    assert any(
        "fetched from node 3, and with it entries 31..340 of the log, which ended at 30" in reason
        for reason in status.reasons
    )
    assert digest(storage.kv) == place.expected(340)
    storage.close(clean=True)
    place.run(5, term=3)


@pytest.mark.parametrize("own", [2, 400])
def test_an_end_that_was_never_committed_gives_way(ahead: Any, own: int, replay_all: Any) -> None:
    place, running = ahead
    place.run(own, apply=0, clean=False)
    lose_state(place)
    checkpoint, refusals = fetch(place, Peers({3: running.sources}))
    assert checkpoint is not None, refusals
    storage = place.open()
    assert storage.directory.log.tail == running.directory.log.tail
    assert digest(storage.kv) == place.expected(340)
    reasons = storage.recovery.status(storage.checkpointer.run).reasons
    assert any(f"ended at {30 + own}; what this node had from 31 on was never committed" in one for one in reasons)
    storage.close(clean=True)


def test_a_checkpoint_that_needs_no_more_of_the_log_comes_first(ahead: Any, tmp_path: Path) -> None:
    place, running = ahead
    older = tmp_path / "older"
    shutil.copytree(place.path, older)
    lose_state(place)
    checkpoint, _ = fetch(place, Peers({2: running.sources, 3: served(place, older)}))
    assert (checkpoint.manifest.mark.index, checkpoint.manifest.peer) == (30, 3)


def test_a_peer_that_gives_no_log_leaves_everything_as_it_was(ahead: Any) -> None:
    place, running = ahead
    lose_state(place)
    checkpoint, refusals = fetch(place, Peers({3: {STATE: running.sources[STATE]}}))
    assert checkpoint is None
    assert "node 3 does not give log: no answer" in refusals
    assert place.checkpoints().names() == []
    with pytest.raises(StateLostError):
        place.open()


def test_a_lost_state_comes_from_a_peer(pair: tuple[Place, Any], replay_all: Any) -> None:
    place, source = pair
    with pytest.raises(StateLostError):
        place.open()
    checkpoint, refusals = fetch(place, Peers({3: source}))
    assert checkpoint.manifest.mark.index == 40
    assert "node 2 does not give state" in refusals[0]
    storage = place.open()
    assert storage.recovery.status(storage.checkpointer.run).state_source == "peer"
    replay_all(storage)
    assert digest(storage.kv) == place.expected(40)
    storage.close(clean=True)


@pytest.mark.parametrize("wrong", ["byte", "short", "manifest", "sums", "log"])
def test_what_is_not_sound_is_refused(pair: tuple[Place, Any], wrong: str, tmp_path: Any, new_place: Any) -> None:
    place, source = pair

    name = source(["list"]).fields[0][0]
    told = manifests.decode(source(["manifest", name]).payload, 1, Path("x"))
    assert told is not None
    forged = told._replace(sums={**told.sums, "cq": 1})
    if wrong == "log":
        forged = told._replace(mark=told.mark._replace(header_crc=told.mark.header_crc ^ 1))

    def lying(arguments: list[Any]) -> Any:
        if wrong in ("sums", "log"):
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
        return answer

    checkpoint, refusals = fetch(place, Peers({2: lying}))
    assert checkpoint is None
    assert any("node 2" in refusal for refusal in refusals)
    assert place.checkpoints().names() == []
    checkpoint, _ = fetch(place, Peers({2: lying, 3: source}))
    assert checkpoint is not None


@each_row(
    "arguments",
    [
        [],
        ["list", "1"],
        ["list", 1, 2],
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
    with pytest.raises((FetchRefused, ValueError)):
        source([name if one == "name" else one for one in arguments])


def test_a_rotten_checkpoint_is_given_to_nobody(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.run(30, checkpoint=True)
    place.run(10, checkpoint=True)
    newest, older = place.checkpoints().names()
    place.flip(f"checkpoints/{newest}/*.sst", 0.4)
    source = served(place, place.path)
    assert [name for name, *_ in source(["list"]).fields] == [newest, older]
    with pytest.raises(FetchRefused, match="is damaged here"):
        source(["manifest", newest])
    assert f"checkpoint {newest}" in caplog.text
    assert [name for name, *_ in source(["list"]).fields] == [older]
    assert source(["manifest", older]).payload


def test_the_older_one_is_taken_where_the_newer_is_rotten(pair: tuple[Place, Any], tmp_path: Path) -> None:
    place, source = pair
    newest, older = (name for name, *_ in source(["list"]).fields)
    (tmp_path / "peer" / "checkpoints" / newest / "CURRENT").write_bytes(b"x")
    checkpoint, refusals = fetch(place, Peers({2: source}))
    assert checkpoint.path.name == older
    assert any(f"checkpoint {newest} is damaged here: CURRENT" in one for one in refusals)


def test_a_peer_without_a_sound_one_makes_another(place: Place, replay_all: Any) -> None:
    place.run(20, checkpoint=True)
    (name,) = place.checkpoints().names()
    (place.path / "checkpoints" / name / "CURRENT").write_bytes(b"x")
    storage = place.open()
    storage.checkpointer.sync()
    source = state_source(place.fs, storage.checkpointer)
    with pytest.raises(FetchRefused, match="damaged here"):
        source(["manifest", name])
    for _ in range(2):
        with pytest.raises(FetchRefused, match="makes a checkpoint first") as told:
            source(["list"])
        assert told.value.status is Status.BUSY
    assert storage.checkpointer.due
    storage.checkpointer.drain([True])
    assert not storage.checkpointer.due
    ((name, *_),) = source(["list"]).fields
    assert source(["manifest", name]).payload
    storage.checkpointer.freeze()
    with pytest.raises(FetchRefused, match="own rows are not to be trusted"):
        source(["list"])
    storage.close(clean=False)


def test_a_peer_that_cannot_make_one_says_so_and_may_be_asked_again(place: Place) -> None:
    checkpointer = Checkpointer(place.checkpoints())
    source = state_source(place.fs, checkpointer)
    for _ in range(2):
        with pytest.raises(FetchRefused, match="makes a checkpoint first"):
            source(["list"])
        assert checkpointer.wanted
        checkpointer.wanted = False
        with pytest.raises(FetchRefused, match="could not make one") as told:
            source(["list"])
        assert told.value.status is Status.MISSING


def test_a_checkpoint_in_the_making_is_waited_for(pair: tuple[Place, Any]) -> None:
    place, source = pair
    calls = [0]

    def late(arguments: list[Any]) -> Fetched:
        calls[0] += 1
        if calls[0] < 4:
            raise FetchRefused(Status.BUSY, "it makes a checkpoint first")
        return source(arguments)

    checkpoint, refusals = fetch(place, Peers({2: late}))
    assert checkpoint is not None
    assert not any("makes" in one for one in refusals)


def test_the_answer_is_noted_for_wrong_rows_only(place: Place) -> None:
    assert not note_answer(place.fs, place.path, None, "no answer")
    suspect_state.mark_suspect(place.fs, place.path, "a block", 1)
    assert not note_answer(place.fs, place.path, None, "no answer")
    suspect_state.mark_suspect(place.fs, place.path, "its rows differ", 2, 30)
    suspect_state.mark_suspect(place.fs, place.path, "again", 3, 40)
    known = suspect_state.Suspicion("its rows differ", 2, 30)
    assert suspect_state.suspicion_of(place.fs, place.path) == known
    assert note_answer(place.fs, place.path, None, "no answer")
    assert suspect_state.suspicion_of(place.fs, place.path) == known._replace(peer_checkpoint="", said="no answer")
    (place.path / "STATE_SUSPECT").write_text("{")
    unreadable = suspect_state.suspicion_of(place.fs, place.path)
    assert unreadable is not None
    assert unreadable.sound_index == -1, "taken for the worse"


def test_a_checkpoint_that_went_meanwhile_is_missing(pair: tuple[Place, Any], tmp_path: Any) -> None:
    _, source = pair
    name = source(["list"]).fields[0][0]
    shutil.rmtree(tmp_path / "peer" / "checkpoints")
    with pytest.raises(FetchRefused) as refused:
        source(["manifest", name])
    assert refused.value.status is Status.MISSING
