"""One survivor goes on alone: what the plan says, what has to be typed, what is made, how half of it is finished."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from cluster.backup import unsafe_recovery
from cluster.backup.unsafe_recovery import look_at, recover
from raftlog.errors import IdentityError
from raftlog.membership import UNSAFE_RECOVER, Membership
from raftlog.storage.files import identity as identities
from raftlog.storage.files import vote_withheld
from raftlog.storage.files.fs import OsFileSystem
from raftlog.storage.files.vote_withheld import VoteWithheld
from raftlog.storage.members import members_at_opening
from raftlog.storage.node_dir import open_node_dir
from raftlog.types import NOBODY, HardState
from raftmq_wire.errors import LocalError

NOW_MS = 1_800_000_000_000


def members_of(data: Path) -> Membership:
    opened = open_node_dir(OsFileSystem(), data)
    try:
        return members_at_opening(data, opened.identity, opened.log.genesis, opened.log, None, -1)[-1]
    finally:
        opened.close(clean=True)


def listing(data: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(data)): (path.stat().st_size, path.read_bytes()[:8192])
        for path in sorted(data.rglob("*"))
        if path.is_file() and path.name != "LOCK"
    }


def test_the_plan_says_what_is_there_and_changes_nothing(stopped: Any) -> None:
    before = listing(stopped.data)
    told = look_at(stopped.data)
    assert (told.tail.index, told.tail.term) == (stopped.expected["last_index"], stopped.expected["last_term"])
    assert told.applied_index == told.committed_index == told.tail.index
    assert (told.sound, told.withheld, told.members) == (True, "", None)
    assert len(told.losses) == 1
    assert f"every entry after {told.tail.index}" in told.losses[0]
    assert listing(stopped.data) == before


def test_what_is_not_known_to_be_committed_is_told(stopped: Any) -> None:
    stopped.grow(3)
    index = look_at(stopped.data).tail.index
    told = look_at(stopped.data)._replace(committed_index=index - 2)
    assert f"{index - 1}..{index}" in told.losses[1]


def test_a_survivor_becomes_the_only_voter_of_a_new_cluster(stopped: Any) -> None:
    before = look_at(stopped.data)
    made = recover(stopped.data, str(before.identity.cluster_uuid), NOW_MS)
    after = look_at(stopped.data)
    assert members_of(stopped.data) == made
    assert (made.reason, made.index) == (UNSAFE_RECOVER, before.tail.index + 1)
    assert [tuple(voter) for voter in made.voters] == [(1, before.identity.node_uuid)]
    assert after.identity.cluster_uuid == made.cluster_uuid != before.identity.cluster_uuid
    assert [tuple(each) for each in after.identity.origin] == [(before.identity.cluster_uuid, before.tail.index)]
    assert after.tail.term == after.term > before.term


def test_terms_that_ran_away_are_given_up_with_the_old_cluster(stopped: Any, monkeypatch: Any) -> None:
    opened = open_node_dir(OsFileSystem(), stopped.data)
    opened.hard_state_store.save(HardState(2**63 - 2, NOBODY, 0))
    last = opened.log.tail.term
    opened.close(clean=True)
    before = look_at(stopped.data)
    with monkeypatch.context() as patch:  # interrupted when the new cluster's first entry is on disk
        patch.setattr(unsafe_recovery, "_settle_term", lambda *_: (_ for _ in ()).throw(OSError(5, "pulled")))
        with pytest.raises(LocalError):
            recover(stopped.data, str(before.identity.cluster_uuid), NOW_MS)
    made = recover(stopped.data, str(before.identity.cluster_uuid), NOW_MS)
    after = look_at(stopped.data)
    assert after.identity.cluster_uuid == made.cluster_uuid
    assert (before.term, after.term, after.tail.term) == (2**63 - 2, last + 1, last + 1)


def test_a_second_survivor_of_a_group_does_not_come_into_the_same_cluster(stopped: Any, tmp_path: Path) -> None:
    """Both would lead the group. One of another group comes, and so does this one once the first is moved away."""
    typed = str(look_at(stopped.data).identity.cluster_uuid)
    one, two = (Path(shutil.copytree(stopped.data, tmp_path / "data" / name / "data")) for name in ("n1", "n2"))
    into = recover(one, typed, NOW_MS).cluster_uuid
    before = listing(two)
    with pytest.raises(LocalError, match=f"node 1 is the survivor of group 1 in cluster {into} already") as caught:
        recover(two, typed, NOW_MS, into)
    assert f"move {one.parent} away first" in caught.value.fix
    assert listing(two) == before
    identity = identities.load(OsFileSystem(), one)
    (one / "IDENTITY").unlink()
    identities.save(OsFileSystem(), one, identity._replace(group_id=2))
    assert recover(two, typed, NOW_MS, into).cluster_uuid == into


@pytest.mark.parametrize("typed", ["", "yes", "00000000-0000-0000-0000-000000000000"])
def test_the_wrong_id_does_nothing(stopped: Any, typed: str) -> None:
    before = listing(stopped.data)
    with pytest.raises(LocalError, match=r"(?s)belongs to cluster .*required.*--plan"):
        recover(stopped.data, typed, NOW_MS)
    assert listing(stopped.data) == before


def test_interrupted_it_is_refused_until_it_is_finished(stopped: Any) -> None:
    typed = str(look_at(stopped.data).identity.cluster_uuid)
    in_the_way = stopped.data / "IDENTITY.tmp"  # where the new identity is written first
    in_the_way.mkdir()
    with pytest.raises(LocalError, match="Is a directory"):
        recover(stopped.data, typed, NOW_MS)
    in_the_way.rmdir()
    with pytest.raises(
        IdentityError, match=r"(?s)goes on as cluster .*was interrupted.*raftmq unsafe-recover .* --plan"
    ):
        members_of(stopped.data)
    half = look_at(stopped.data)
    made = recover(stopped.data, typed, NOW_MS)
    assert members_of(stopped.data) == made
    assert made.index == half.tail.index == look_at(stopped.data).tail.index


def test_a_withheld_vote_is_told_and_ends(stopped: Any) -> None:
    found = look_at(stopped.data)
    withheld = VoteWithheld("both marks were damaged", 1400, 2)
    vote_withheld.withhold(OsFileSystem(), stopped.data, withheld, found.identity.group_id)
    assert "both marks were damaged" in look_at(stopped.data).losses[-1]
    recover(stopped.data, str(found.identity.cluster_uuid), NOW_MS)
    assert look_at(stopped.data).withheld == ""


def test_a_damaged_log_cannot_go_on_alone(stopped: Any) -> None:
    typed = str(look_at(stopped.data).identity.cluster_uuid)
    last = sorted((stopped.data / "log").glob("*.seg"))[-1]
    with last.open("r+b") as file:
        os.pwrite(file.fileno(), b"\xff" * 8, 4096 + 200)
    assert "the end of it is damaged" in look_at(stopped.data).losses[-1]
    with pytest.raises(LocalError, match=r"(?s)cannot go on alone.*no node left to repair it from.*raftmq restore"):
        recover(stopped.data, typed, NOW_MS)


def test_rot_in_a_sealed_file_is_told_and_a_missing_file_is_refused(stopped: Any) -> None:
    typed = str(look_at(stopped.data).identity.cluster_uuid)
    sealed = sorted((stopped.data / "log").glob("*.seg"))[2]
    with sealed.open("r+b") as file:
        os.pwrite(file.fileno(), b"\xff" * 8, 4096 + 20_000)
    assert f"messages of its own log: {sealed} is damaged at position" in look_at(stopped.data).losses[-1]
    sealed.unlink()
    with pytest.raises(LocalError, match=r"(?s)cannot go on alone.*is damaged in entries"):
        recover(stopped.data, typed, NOW_MS)


def test_a_directory_that_holds_no_node(tmp_path: Path, stopped: Any) -> None:
    with pytest.raises(LocalError, match=r"(?s)holds no node.*DIR --plan"):
        look_at(tmp_path)
    (tmp_path / "n2").mkdir()
    stopped.data.rename(tmp_path / "n2" / "data")
    with pytest.raises(LocalError, match=r"(?s)are in .*n2/data.*unsafe-recover .*n2/data --plan"):
        look_at(tmp_path)
