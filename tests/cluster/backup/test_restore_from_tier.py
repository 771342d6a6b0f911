"""Every node is lost: a cluster is made from what lies in the tier, as of any index or time, and nothing in between."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from cluster.backup import remote
from cluster.backup.from_tier import Rebuilt, TierRestore, rebuild
from cluster.backup.replay import RestoreTarget
from cluster.backup.restore import restore
from cluster.backup.verify import verify
from cluster.runtime.events import rfc3339
from raftlog.types import EntryType
from raftmq_wire.errors import ExitCode, LocalError
from tests.cluster.backup.lost_cluster import Lost

NOW_MS = 1_800_000_000_000


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "CALLS_TOTAL_S", 0.0)


@pytest.fixture
def lost(stopped: Any, tmp_path: Path) -> Lost:
    return Lost(stopped.data, tmp_path / "store")


def rebuilt(lost: Lost, folder: Path, **wishes: Any) -> Rebuilt:
    target = RestoreTarget(wishes.pop("index", None), wishes.pop("time_ms", None))
    return rebuild(TierRestore(lost.url, target, **wishes), folder, NOW_MS)


def check(lost: Lost, made: Rebuilt, index: int) -> None:
    """It is a good backup, of that index."""
    assert verify(made.path).problems == []
    assert made.manifest.index == index
    assert made.manifest.digest == lost.model(index)
    assert made.manifest.header_crc == lost.entries[index].header_crc


def test_the_newest_copy_and_the_log_after_it(lost: Lost, tmp_path: Path) -> None:
    last = len(lost.entries) - 1
    lost.upload()
    lost.copy_state([300, 700, 1100], tmp_path / "kv")
    made = rebuilt(lost, tmp_path / "new.fetched")
    check(lost, made, last)
    assert (made.began, made.known_index) == ("the state copied at index 1100", 1100)
    new = restore(made.path, tmp_path / "new", count=3, base_port=21000, now_ms=NOW_MS)
    assert new.manifest.index == last
    assert new.manifest.cluster_uuid == lost.cluster_id != str(new.cluster_uuid)


def points(lost: Lost, seed: int, number: int) -> list[tuple[int, dict[str, int]]]:
    """(the index that is to come out, what is asked for): by index, and by time."""
    draw, found = random.Random(seed), list[tuple[int, dict[str, int]]]()
    while len(found) < number:
        index = draw.randrange(len(lost.entries))
        found.append((index, {"index": index}))
        time_ms = lost.entries[index].timestamp_ms + draw.choice((0, 1))
        below = max(each.index for each in lost.entries if each.timestamp_ms <= time_ms)
        if below + 1 < len(lost.entries):
            found.append((below, {"time_ms": time_ms}))
    return found


def compare_with_the_model(lost: Lost, folder: Path, seed: int, number: int) -> None:
    lost.upload()
    lost.copy_state([150, 600, 601, 1200], folder / "kv")
    for at, (index, wish) in enumerate(points(lost, seed, number)):
        made = rebuilt(lost, folder / f"new-{at}", **wish)
        check(lost, made, index)


def test_any_index_and_any_time(lost: Lost, tmp_path: Path) -> None:
    compare_with_the_model(lost, tmp_path, 1, 4)


@pytest.mark.slow
def test_many_indexes_and_times(lost: Lost, tmp_path: Path) -> None:
    compare_with_the_model(lost, tmp_path, 2, 60)


def test_without_a_copy_the_log_is_applied_from_genesis(lost: Lost, tmp_path: Path) -> None:
    lost.upload()
    check(lost, rebuilt(lost, tmp_path / "new", index=450), 450)
    (tmp_path / "store" / lost.cluster_id / "log").rename(tmp_path / "store" / lost.cluster_id / "strange")
    with pytest.raises(LocalError, match=r"(?s)has no copy of the state.*there is no object of its log.*--from BACKUP"):
        rebuilt(lost, tmp_path / "other", cluster_id=lost.cluster_id)


def test_a_backup_and_the_log_after_it(lost: Lost, tmp_path: Path) -> None:
    lost.upload()
    lost.copy_state([150], tmp_path / "kv")
    first = rebuilt(lost, tmp_path / "first", index=500)
    second = rebuilt(lost, tmp_path / "second", index=731, backup=first.path)
    check(lost, second, 731)
    assert second.began == f"backup {first.manifest.name}"
    with pytest.raises(LocalError, match=r"(?s)lies above index 499.*nothing can be taken back"):
        rebuilt(lost, tmp_path / "third", index=499, backup=first.path)
    other = "00000000-0000-0000-0000-00000000000f"
    with pytest.raises(LocalError, match=rf"(?s)is of cluster {lost.cluster_id}.*log of {other} does not continue"):
        rebuilt(lost, tmp_path / "third", backup=first.path, cluster_id=other)


def test_what_lies_outside_is_refused_with_what_is_there(lost: Lost, tmp_path: Path) -> None:
    lost.upload(lost.segments[2:5])
    last = lost.segments[4][1] - 1
    lost.copy_state([500, 1300], tmp_path / "kv")
    with pytest.raises(
        LocalError, match=r"(?s)has no copy of the state.*500 needs the log up to \d+, which is not there"
    ):
        rebuilt(lost, tmp_path / "new")
    lost.upload(lost.segments[:2])
    with pytest.raises(
        LocalError, match=rf"(?s)index 1200 lies beyond.*\(index {last}\).*--to-index {last} --into DIR"
    ):
        rebuilt(lost, tmp_path / "new", index=1200)
    beyond_ms = lost.entries[last].timestamp_ms + 1
    with pytest.raises(LocalError, match=rf"(?s)time {rfc3339(beyond_ms)} lies beyond.*\(index {last}\)"):
        rebuilt(lost, tmp_path / "new", time_ms=beyond_ms)
    check(lost, rebuilt(lost, tmp_path / "new", time_ms=beyond_ms - 1), last)


def test_below_the_oldest_copy(lost: Lost, tmp_path: Path) -> None:
    trim = lost.trim(4)
    lost.upload(lost.segments[4:])
    lost.copy_state([trim + 3, trim + 9], tmp_path / "kv")
    with pytest.raises(LocalError) as refused:
        rebuilt(lost, tmp_path / "new", index=trim + 2)
    assert refused.value.what == f"index {trim + 2} lies below the oldest copy of the state"
    when = rfc3339(lost.entries[trim + 3].timestamp_ms)
    assert f"the earliest moment in the tier is {when} (index {trim + 3})" in refused.value.why
    assert f" --from-tier {lost.url} --to-index {trim + 3} --into DIR    (or begin with an older" in refused.value.fix
    assert not (tmp_path / "new").exists()
    check(lost, rebuilt(lost, tmp_path / "new", index=trim + 3), trim + 3)


def test_no_copy_has_the_log_that_it_needs(lost: Lost, tmp_path: Path) -> None:
    lost.upload()
    lost.copy_state([500], tmp_path / "kv")
    for path in (tmp_path / "store" / lost.cluster_id / "log").glob("00000000000000000000-*"):
        path.unlink()
    with pytest.raises(
        LocalError, match=r"(?s)has no copy.*no copy of the state has the log .*--to-index 499 .*BACKUP"
    ):
        rebuilt(lost, tmp_path / "new", index=499)


@pytest.mark.parametrize("copied", [[], [500]])
def test_a_moment_before_the_first_entry_names_the_earliest(lost: Lost, tmp_path: Path, copied: list[int]) -> None:
    """What it tells to type is the whole command, and that works."""
    lost.upload()
    if copied:
        lost.copy_state(copied, tmp_path / "kv")
    first_ms = lost.entries[0].timestamp_ms
    assert first_ms > 0
    typed = TierRestore(lost.url, RestoreTarget(time_ms=first_ms - 1), rest=("--into", "new", "--nodes", "1"))
    with pytest.raises(LocalError) as refused:
        rebuild(typed, tmp_path / "new", NOW_MS)
    assert refused.value.what == f"time {rfc3339(first_ms - 1)} lies before the first entry of the log"
    assert refused.value.why == f"the earliest moment in the tier is {rfc3339(first_ms)} (index 0)"
    command = f"raftmq restore --from-tier {lost.url} --to-time {rfc3339(first_ms)} --into new --nodes 1"
    assert (refused.value.fix, refused.value.exit_code) == (command, ExitCode.REFUSED)
    assert not (tmp_path / "new").exists()
    last = max(each.index for each in lost.entries if each.timestamp_ms == first_ms)
    made = rebuilt(lost, tmp_path / "new", time_ms=first_ms)
    check(lost, made, last)
    restore(made.path, tmp_path / "cluster", count=1, base_port=21000, now_ms=NOW_MS)


def test_several_clusters_are_told_apart_by_their_moments(lost: Lost, tmp_path: Path) -> None:
    """The command to type keeps the moment and names the cluster that has it, else the one that the other continues."""
    at = lost.segments[3][0] + 50
    lost.upload(lost.segments[:5])
    lost.copy_state([300], tmp_path / "kv")
    ends = lost.segments[4][1] - 1
    fork = lost.fork(at, "00000000-0000-0000-0000-00000000000f")  # the first by the alphabet
    for _ in range(1000):
        fork.append(EntryType.NOOP, b"")
    fork.append(EntryType.NOOP, b"", roll=True)
    fork.upload(fork.segments[3:])
    fork.copy_state([at + 5], tmp_path / "kv2")
    last = len(fork.entries) - 1

    def told(target: RestoreTarget) -> LocalError:
        with pytest.raises(LocalError) as refused:
            rebuild(TierRestore(lost.url, target, rest=("--into", "zz", "--nodes", "1")), tmp_path / "new", NOW_MS)
        return refused.value

    def moment(of: Lost, index: int) -> str:
        return f"{rfc3339(of.entries[index].timestamp_ms)} (index {index})"

    shared = told(RestoreTarget(time_ms=lost.entries[at - 9].timestamp_ms))
    assert shared.why.split("; ") == [
        f"{fork.cluster_id}: {moment(lost, 0)} to {moment(fork, last)}, continues {lost.cluster_id} from index {at}",
        f"{lost.cluster_id}: {moment(lost, 0)} to {moment(lost, ends)}",
    ]
    start = f"raftmq restore --from-tier {lost.url} --cluster"
    when = rfc3339(lost.entries[at - 9].timestamp_ms)
    assert shared.fix.startswith(f"{start} {lost.cluster_id} --to-time {when} --into zz --nodes 1    (others continue")
    late = told(RestoreTarget(index=last))
    assert late.fix.startswith(f"{start} {fork.cluster_id} --to-index {last} --into zz --nodes 1    (the only one that")
    all_of_it = told(RestoreTarget())
    assert all_of_it.fix.startswith(f"{start} {lost.cluster_id} --into zz --nodes 1    (others")
    never = told(RestoreTarget(time_ms=NOW_MS * 2))
    assert never.fix.startswith(
        f"{start} {lost.cluster_id} --to-time {rfc3339(lost.entries[ends].timestamp_ms)} --into"
    )
    assert "(none has time 20" in never.fix


def test_a_log_that_was_trimmed(lost: Lost, tmp_path: Path) -> None:
    trim = lost.trim(4)
    lost.upload(lost.segments[4:])
    lost.copy_state([trim + 3], tmp_path / "kv")
    made = rebuilt(lost, tmp_path / "new", index=trim + 20)
    check(lost, made, trim + 20)
    assert made.manifest.segments[0].base_position == lost.entries[lost.segments[4][0]].position
    restore(made.path, tmp_path / "cluster", count=1, base_port=21000, now_ms=NOW_MS)
    for path in lost.upload(lost.segments[:4]):
        assert path.exists()
    check(lost, rebuilt(lost, tmp_path / "below", index=trim - 1), trim - 1)
    again = rebuilt(lost, tmp_path / "above", index=trim, backup=tmp_path / "below")
    check(lost, again, trim)
    assert again.manifest.segments[0].base_position == lost.entries[lost.segments[4][0]].position


def test_a_restored_cluster_that_is_lost_again(lost: Lost, tmp_path: Path) -> None:
    """The log below the restore lies in the first cluster's folder, which goes on with another history."""
    at = lost.segments[3][0] + 50
    lost.upload()
    fork = lost.fork(at, "00000000-0000-0000-0000-00000000000f")
    fork.copy_state([at + 1], tmp_path / "kv")
    with pytest.raises(
        LocalError, match=rf"(?s)ends below the state, .* index {at + 1}\n.*\(index {at}\)\n.*--to-index {at} "
    ):
        rebuilt(fork, tmp_path / "early", cluster_id=fork.cluster_id)
    for _ in range(20):
        fork.append(EntryType.NOOP, b"")
    fork.append(EntryType.NOOP, b"", roll=True)
    fork.upload(fork.segments[3:])
    check(fork, rebuilt(fork, tmp_path / "new", cluster_id=fork.cluster_id), len(fork.entries) - 1)
    check(lost, rebuilt(lost, tmp_path / "old", cluster_id=lost.cluster_id), len(lost.entries) - 1)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_damage_is_named_or_gone_around(lost: Lost, tmp_path: Path) -> None:
    files = lost.upload()
    lost.copy_state([300, 700], tmp_path / "kv")
    root = tmp_path / "store" / lost.cluster_id
    part = next(path for path in (root / "state").glob("*700-*.part"))
    flip(part)
    made = rebuilt(lost, tmp_path / "one", index=900)
    assert made.began == "the state copied at index 300"
    check(lost, made, 900)
    flip(files[-1])
    short = sum(lost.segments[-1]) // 2 - 1
    told = rf"(?s)is damaged after 20.*Z \(index {short}\)\n.*{files[-1].name} was read 3 times.*--to-index {short} "
    with pytest.raises(LocalError, match=told):
        rebuilt(lost, tmp_path / "two")
    check(lost, rebuilt(lost, tmp_path / "three", index=short), short)
    whole = files[-1].read_bytes()
    files[-1].with_name(files[-1].name.replace(".seg", "-1.seg")).write_bytes(whole)
    flip(files[-1].with_name(files[-1].name.replace(".seg", "-1.seg")))
    check(lost, rebuilt(lost, tmp_path / "four"), lost.entries[-1].index)
    for path in (root / "state").glob("*.json"):
        flip(path)
    files[0].unlink()
    with pytest.raises(LocalError, match=r"(?s)has no copy of the state.*cannot be read: its checksum does not fit"):
        rebuilt(lost, tmp_path / "five")


def test_the_wrong_cluster(lost: Lost, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    with pytest.raises(
        LocalError, match=r"(?s)holds no tier.*nothing was uploaded yet.*raftmq tier seal.*tier.url of the lost cluster"
    ):
        rebuilt(lost, tmp_path / "new")
    lost.upload()
    other = "00000000-0000-0000-0000-00000000000f"
    with pytest.raises(LocalError, match=rf"(?s)has nothing of cluster {other}.*are of {lost.cluster_id}"):
        rebuilt(lost, tmp_path / "new", cluster_id=other)
    lost.upload(cluster_id=other)
    with pytest.raises(LocalError, match=r"(?s)holds the tiers of 2 clusters.*--cluster"):
        rebuilt(lost, tmp_path / "new")
    with pytest.raises(LocalError, match=r"(?s)has no copy of the state of cluster .*f that can be used"):
        rebuilt(lost, tmp_path / "new", cluster_id=other)
