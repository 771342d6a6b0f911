"""One snapshot: whole and proved, from a peer that has it; an unsound one is refused and another peer is asked."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.repair.fetch import LOG, STATE, Fetched, FetchRefused, Status
from cluster.repair.log_source import SEGMENT
from cluster.repair.snapshot_fetch import Needless
from cluster.state import manifest as manifests
from cluster.state.checkpoints import INSTALLING
from raftlog.errors import StorageError
from raftlog.storage.node_dir import open_node_dir
from raftlog.types import NOBODY, HardState, NodeId
from tests.support.install_kit import Giver, Peers, Taker
from tests.support.rows import each_row

PIECE_BYTES = 700


@pytest.fixture
def giver() -> Giver:
    giver = Giver(100)
    giver.checkpoint()
    giver.grow(30)
    assert giver.trim(giver.log.position_of(60)) > 21
    return giver


def test_a_snapshot_takes_the_place_of_log_and_state(giver: Giver) -> None:
    taker, peers = Taker(), Peers({2: giver}, PIECE_BYTES)
    taken, take = taker.take(peers)
    assert taken is not None, take.failures
    opened = taker.install(taken)
    taker.check(opened, giver)
    assert opened.log.tail.index == 100
    assert opened.log.first_index <= 100
    assert opened.log.segment_at(opened.log.first_position).previous.index >= giver.log.first_index - 1
    assert taker.fs.listdir(taker.where.path / "checkpoints") == [opened.installed.checkpoint]  # type: ignore[union-attr]
    assert giver.checkpointer.held


def test_nothing_changes_before_it_is_committed(giver: Giver) -> None:
    taker = Taker()
    taken, _ = taker.take(Peers({2: giver}, PIECE_BYTES))
    assert taken is not None
    taken.build.close()
    opened = taker.open()
    assert opened.installed is None
    assert opened.log.tail.index == 20


def test_a_later_term_is_on_disk_before_its_entries() -> None:
    giver = Giver(50)
    giver.grow(60, term=4)
    giver.checkpoint()
    giver.trim(giver.log.position_of(80))
    taker = Taker()
    taken, _ = taker.take(Peers({2: giver}, PIECE_BYTES))
    assert taken is not None
    opened = taker.install(taken)
    taker.check(opened, giver)
    assert opened.hard_state_store.load() == HardState(4, NOBODY, 0)


def test_a_checkpoint_that_is_too_old_is_made_anew(giver: Giver) -> None:
    taker = Taker()
    taken, _ = taker.take(Peers({2: giver}, PIECE_BYTES), at_least=lambda: 110)
    assert taken is not None
    assert taken.manifest.mark.index == 130
    taker.check(taker.install(taken), giver)


def test_one_that_has_become_too_old_is_given_up_for_a_newer(giver: Giver) -> None:
    taker, peers = Taker(), Peers({2: giver, 3: giver}, PIECE_BYTES)
    needed = [21]

    def trims(peer: int, what: str, arguments: list[Any]) -> None:
        if what == STATE and arguments[0] == "file" and needed == [21]:
            giver.checkpoint()
            needed[0] = 120

    peers.before = trims
    taken, take = taker.take(peers, at_least=lambda: needed[0])
    assert taken is not None
    assert "has become too old meanwhile" in take.failures[NodeId(2)]
    assert taken.manifest.mark.index == 130
    taker.check(taker.install(taken), giver)


def test_what_is_not_needed_any_more_ends_at_once(giver: Giver) -> None:
    peers = Peers({2: giver}, PIECE_BYTES)

    def at_least() -> int:
        if any(what == LOG for _, what, _ in peers.asked):
            raise Needless("the log goes on")
        return 21

    with pytest.raises(Needless):
        Taker().take(peers, at_least=at_least)


def test_a_giver_that_goes_away_is_taken_over_from(giver: Giver) -> None:
    """The second one has the same log, and goes on with it where the first stopped."""
    other = Giver(130)
    other.checkpoint()
    for asks in range(1, 60):
        taker, peers = Taker(), Peers({2: giver, 3: other}, PIECE_BYTES)

        def dies(peer: int, what: str, arguments: list[Any], peers: Peers = peers, asks: int = asks) -> None:
            if peer == 2 and len(peers.asked) == asks:
                peers.dead.add(2)

        peers.before = dies
        taken, take = taker.take(peers)
        assert taken is not None, (asks, take.failures)
        taker.check(taker.install(taken), other if taken.peer == 3 else giver)
        if not peers.dead:
            return
        pieces = [arguments for peer, what, arguments in peers.asked if what == LOG]
        places = [start + skip for start, skip, _ in pieces]
        if taken.peer == 2:  # the checkpoint was here already
            assert len(places) <= len(set(places)) + 1, "only the piece that did not come is asked for again"
    pytest.fail("it asks more than expected")


@each_row("what", ["file", "manifest", "log", "segment", "list"])
@each_row("how", ["bit", "short", "empty"])
def test_what_is_not_sound_is_refused_and_another_is_asked(giver: Giver, what: str, how: str) -> None:
    spoiled: list[str] = []

    def spoils(peer: int, source: str, arguments: list[Any], answer: Fetched) -> Fetched:
        if peer == 3 or what not in (source, arguments[0]):
            return answer
        spoiled.append(what)
        fields, data = list(answer.fields), bytearray(answer.payload)
        if how == "bit" and data:
            data[len(data) // 2] ^= 1
        elif how == "bit":
            fields[0] = [*fields[0][:1], 10**9, *fields[0][2:]] if what == "list" else fields[0] + 1
        elif how == "short":
            fields, data = fields[:-1], data[: len(data) // 2]
        else:
            fields, data = [], bytearray()
        return Fetched(fields, bytes(data))

    taker, peers = Taker(), Peers({2: giver, 3: giver}, PIECE_BYTES)
    peers.after = spoils
    taken, take = taker.take(peers)
    assert spoiled
    assert taken is not None, take.failures
    harmless = how == "short" and what in ("log", "file")  # the rest is asked for; a cut file is told by its size
    harmless = harmless or (how == "bit" and what in ("segment", "list"))  # told wrong, and proved by what follows
    assert harmless or take.failures, "something was believed"
    taker.check(taker.install(taken), giver)


def test_other_rows_than_the_sums_tell_are_refused(giver: Giver) -> None:
    """Every byte is as the manifest says, and still wrong: the peer that made it did not know."""
    (name,) = giver.checkpoints.names()
    known = giver.checkpoints.load(name)
    assert known is not None
    forged = known.manifest._replace(sums={**known.manifest.sums, "cq": 1})

    def lies(peer: int, source: str, arguments: list[Any], answer: Fetched) -> Fetched:
        if peer == 3:
            return answer
        if arguments[0] == "list":
            return Fetched([[forged.name, *answer.fields[0][1:]]], b"")
        return answer

    def before(peer: int, what: str, arguments: list[Any]) -> None:
        if peer == 2 and what == STATE and len(arguments) > 1 and arguments[1] == forged.name:
            arguments[1] = name

    def manifest(peer: int, source: str, arguments: list[Any], answer: Fetched) -> Fetched:
        answer = lies(peer, source, arguments, answer)
        return Fetched([], manifests.encode(forged, 1)) if peer == 2 and arguments[0] == "manifest" else answer

    taker, peers = Taker(), Peers({2: giver, 3: giver}, PIECE_BYTES)
    peers.before, peers.after = before, manifest
    taken, take = taker.take(peers)
    assert "do not add up to its sums" in take.failures[NodeId(2)]
    assert taken is not None
    assert taken.peer == 3


def test_a_log_of_another_history_is_refused(giver: Giver) -> None:
    """Node 2 gives a checkpoint, and frames that are sound and chained and lead elsewhere."""
    other = Giver(21)
    other.grow(120, term=1)
    stranger = Giver(20, term=1)
    stranger.grow(110, term=3)
    peers = Peers({2: giver, 3: giver}, PIECE_BYTES)
    peers.sources[2] = {**giver.sources, LOG: stranger.sources[LOG], "segment": stranger.sources["segment"]}
    taker = Taker()
    taken, take = taker.take(peers, order=[2])
    assert taken is None
    assert take.failures
    taken, _ = taker.take(peers, order=[2, 3])
    assert taken is not None
    taker.check(taker.install(taken), giver)


def test_what_lies_there_from_another_checkpoint_is_not_used(giver: Giver) -> None:
    taker = Taker()
    first, _ = taker.take(Peers({2: giver}, PIECE_BYTES))
    assert first is not None
    first.build.close()
    folder = taker.where.path / "checkpoints" / INSTALLING
    assert taker.fs.exists(folder)
    giver.grow(20)
    giver.checkpoint()
    taken, _ = taker.take(Peers({2: giver}, PIECE_BYTES))
    assert taken is not None
    assert taken.manifest.mark.index == 150
    taker.check(taker.install(taken), giver)


def test_who_gave_the_checkpoint_need_not_give_the_log(giver: Giver) -> None:
    other = Giver(130)
    peers = Peers({2: giver, 3: other}, PIECE_BYTES)
    peers.sources[2] = {STATE: giver.sources[STATE], SEGMENT: giver.sources[SEGMENT], LOG: gone}
    taken, _ = (taker := Taker()).take(peers)
    assert taken is not None
    assert taken.peer == 2
    assert {peer for peer, what, _ in peers.asked if what == STATE} == {2}
    taker.check(taker.install(taken), giver)


def gone(arguments: list[Any]) -> Fetched:
    raise FetchRefused(Status.MISSING, "it is damaged here, too")


def test_what_was_begun_is_finished_although_there_is_something_newer(giver: Giver) -> None:
    """The peer that gave the first part gives the rest: a checkpoint of the same entries has other files elsewhere."""
    other = Giver(130)
    other.checkpoint()
    taker, peers = Taker(), Peers({2: giver, 3: other}, PIECE_BYTES)

    def dies(peer: int, what: str, arguments: list[Any]) -> None:
        if sum(arguments[0] == "file" for _, _, arguments in peers.asked) == 4:
            peers.dead.update((2, 3))

    peers.before = dies
    taken, _ = taker.take(peers)
    assert taken is None
    giver.grow(20)
    giver.checkpoint()
    again = Peers({2: giver, 3: other}, PIECE_BYTES)
    taken, _ = taker.take(again, order=[3, 2])
    assert taken is not None
    assert (taken.peer, taken.manifest.mark.index) == (2, 100)
    pieces = [tuple(arguments) for _, _, arguments in (*peers.asked, *again.asked) if arguments[0] == "file"]
    assert len(pieces) <= len(set(pieces)) + 1
    taker.check(taker.install(taken), giver)


def test_the_old_log_stays_if_a_leader_brought_it_forward_meanwhile(giver: Giver) -> None:
    whole = Giver(130)
    taker = Taker()
    taken, _ = taker.take(Peers({2: giver}, PIECE_BYTES))
    assert taken is not None
    taken.commit(taker.where, 0)
    # A node that runs appends until it is closed: its directory is not locked here.
    taker.fs.rename(taker.where.path / "INSTALL", taker.where.path / "decided")
    opened = open_node_dir(taker.fs, taker.where.path)
    opened.log.append(whole.log.read_entries(21, 121, 1 << 30))
    opened.close(clean=False)
    taker.fs.rename(taker.where.path / "decided", taker.where.path / "INSTALL")
    opened = taker.open()
    assert opened.installed is not None
    assert not opened.installed.done
    assert opened.log.tail.index == 120


def test_a_snapshot_does_not_take_the_last_of_the_disk(giver: Giver) -> None:
    taker, peers = Taker(), Peers({2: giver}, PIECE_BYTES)
    taker.fs.space_left = taker.fs.total_bytes(taker.where.path) // 20
    with pytest.raises(StorageError, match="are kept for the log"):
        taker.take(peers)
    assert not [arguments for _, _, arguments in peers.asked if arguments[0] == "file"]
    taker.fs.space_left = taker.fs.total_bytes(taker.where.path)
    taken, _ = taker.take(peers)
    assert taken is not None
