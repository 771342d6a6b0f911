"""rebuild where the log no longer begins with GENESIS: back to a checkpoint, whichever way it is asked for."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.state.overlay_fs import OverlayFileSystem
from cluster.state.rebuild import CHECKPOINT, SEGMENT, START, Rebuild, RebuildError, RebuildPlan
from raftlog.frame import make_entry
from raftlog.types import EntryType
from statemachine import commands
from statemachine.rows.digest import digest
from statemachine.topics.topics import CreateTopic
from statemachine.trim import Trim, encode

Place = Any


def add(storage: Any, replay: Any, kind: int, payload: bytes = b"") -> None:
    log = storage.directory.log
    entry = make_entry(
        log.tail,
        term=1,
        entry_type=kind,
        payload=payload,
        timestamp_ms=log.tail.timestamp_ms,
        group_id=1,
        segment_size=log.segment_size,
    )
    log.append([entry])
    replay(storage)


def trim(place: Place, replay: Any) -> dict[str, int]:
    """Three segments go, two checkpoints know it; returns the digest."""
    place.run(800, checkpoint=True)
    storage = place.open()
    log = storage.directory.log
    span = log.segment_at(0)
    for _ in range(2):
        span = log.segment_at(span.end_position)
    previous = log.segment_at(span.end_position).previous
    add(storage, replay, EntryType.TRIM, encode(Trim(previous.end_position, previous.index + 1, "age")))
    storage.checkpointer.checkpoint()
    add(storage, replay, EntryType.NOOP)
    storage.checkpointer.checkpoint()
    add(storage, replay, EntryType.COMMAND, commands.pack([CreateTopic({"name": "later"}, False)]))
    assert len(log.trim(storage.state.trim_position)) == 3
    log.remove_files(sorted((place.path / "log").glob("*.seg"))[:3])
    found: dict[str, int] = digest(storage.kv)
    storage.close(clean=False)
    return found


def planned(place: Place, back: str) -> RebuildPlan:
    work = Rebuild(OverlayFileSystem(), place.path, 5)
    try:
        return work.plan(back)
    finally:
        work.close()


@pytest.mark.parametrize("back", [CHECKPOINT, SEGMENT, START])
def test_it_goes_back_to_a_checkpoint_and_comes_to_the_same_rows(place: Place, replay_all: Any, back: str) -> None:
    before = trim(place, replay_all)
    newest, oldest = place.checkpoints().names()[:2]
    plan = planned(place, back)
    assert plan.checkpoint == (oldest if back == START else plan.checkpoint)
    assert plan.checkpoint in (newest, oldest)
    if back == START:
        assert "the log is trimmed and begins at index" in plan.because[-1]
    work = Rebuild(place.fs, place.path, 5)
    work.carry_out(work.plan(back))
    work.close()
    storage = place.open()
    assert storage.state.trim_position == storage.directory.log.first_position > 0
    replay_all(storage)
    assert digest(storage.kv) == before
    storage.close(clean=True)


def test_without_any_checkpoint_it_says_what_is_left_to_do(place: Place, replay_all: Any) -> None:
    trim(place, replay_all)
    for name in place.checkpoints().names():
        place.fs.remove_tree(place.path / "checkpoints" / name)
    with pytest.raises(RebuildError, match="Restore a backup into an empty directory"):
        planned(place, START)
