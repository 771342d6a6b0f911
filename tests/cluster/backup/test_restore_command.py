"""`raftmq restore`: what it is told, and what it says."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click
import pytest

from cluster.backup.from_tier import TierRestore, rebuild
from cluster.backup.replay import RestoreTarget
from cluster.config.loading import load
from cluster.runtime.events import rfc3339
from raftmq.cli import run as raftmq
from raftmq.commands.point_in_time import PointInTime
from raftmq_wire.errors import ExitCode
from tests.cluster.backup.lost_cluster import Lost


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1700000000123", 1_700_000_000_123),
        ("2023-11-14T22:13:20Z", 1_700_000_000_000),
        ("2023-11-14T22:13:20.5", 1_700_000_000_500),
        ("2023-11-15T00:13:20+02:00", 1_700_000_000_000),
    ],
)
def test_a_time_is_utc_unless_it_says_otherwise(text: str, ms: int) -> None:
    assert PointInTime().convert(text, None, None) == ms


def test_an_age_is_a_time_where_the_past_is_meant() -> None:
    before_ms = time.time_ns() // 1_000_000
    found_ms = PointInTime(ages=True).convert("15m", None, None)
    assert before_ms <= found_ms + 15 * 60_000 <= time.time_ns() // 1_000_000
    with pytest.raises(click.BadParameter):
        PointInTime().convert("15m", None, None)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "--from BACKUP, --from-tier URL, or both"),
        (["--from-tier", "file:///x", "--to-index", "1", "--to-time", "1"], "exclude each other"),
        (["--from-tier", "file:///x", "--to-time", "yesterday"], "yesterday is no time"),
        (["--from-tier", "file:///x", "--to-index", "-1"], "-1"),
        (["--from", "/backup", "--to-index", "1"], "--from-tier URL"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    options: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert raftmq(["restore", *options, "--into", str(tmp_path / "new")]) == 2
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_it_says_what_is_in_it_and_what_is_not(
    stopped: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = Lost(stopped.data, tmp_path / "store")
    lost.upload(lost.segments[:3])
    lost.copy_state([300, 700], tmp_path / "kv")
    options = ["restore", "--from-tier", lost.url, "--nodes", "1", "--base-port", "21000"]
    assert raftmq([*options, "--into", str(tmp_path / "new")]) == 0
    told = capsys.readouterr().out
    assert f"it continues cluster {lost.cluster_id} from index 599 " in told
    assert "it began with the state copied at index 300; its last entry has log time 20" in told
    assert "not in it: 101 or more entries, from index 600 on; the cluster had applied 700" in told
    config = load(tmp_path / "new" / "n1" / "raftmq.toml")
    assert (config.tier.url, config.cluster.broker_name) == (lost.url, "shop")
    time_ms = lost.entries[400].timestamp_ms
    assert raftmq([*options, "--to-time", str(time_ms), "--json", "--into", str(tmp_path / "newer")]) == 0
    view = json.loads(capsys.readouterr().out)
    last = max(entry.index for entry in lost.entries if entry.timestamp_ms <= time_ms)
    assert (view["index"], view["timestamp_ms"], view["known_index"]) == (last, time_ms, 700)
    assert sorted(path.name for path in tmp_path.iterdir() if "new" in path.name) == ["new", "newer"]


def test_a_refusal_gives_the_command_with_every_option_as_typed(
    stopped: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = Lost(stopped.data, tmp_path / "store")
    lost.upload()
    into = str(tmp_path / "new")
    options = ["--into", into, "--nodes", "1", "--base-port", "21000", "--json"]
    command = ["restore", "--from-tier", lost.url, "--cluster", lost.cluster_id]
    for year in (1990, 2090):
        assert raftmq([*command, "--to-time", f"{year}-01-01T00:00:00Z", *options]) == ExitCode.REFUSED
        typed = capsys.readouterr().err.splitlines()[-1].removeprefix("type:    raftmq ").split()
        assert typed[:5] == command
        assert typed[7:] == options
    assert raftmq(typed) == 0
    assert json.loads(capsys.readouterr().out)["index"] == lost.entries[-1].index


def test_a_moment_before_a_backup_is_not_looked_for_after_it(
    stopped: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = Lost(stopped.data, tmp_path / "store")
    lost.upload()
    made = rebuild(TierRestore(lost.url, RestoreTarget(500)), tmp_path / "backup", 1_800_000_000_000)
    when = f"{rfc3339(lost.entries[500].timestamp_ms)} (index 500)"
    command = ["restore", "--from", str(made.path), "--into", str(tmp_path / "new")]
    assert raftmq([*command, "--to-time", "1990-01-01"]) == ExitCode.REFUSED
    what, why, fix = capsys.readouterr().err.splitlines()[-3:]
    assert what.startswith("time 1990-01-01T00:00:00.000Z lies before the backup ")
    assert why.startswith(f"because: it was made at {when}")
    assert fix.startswith(f"type:    raftmq {' '.join(command)}    (")
    assert raftmq([*command, "--from-tier", lost.url, "--to-time", "1990-01-01"]) == ExitCode.REFUSED
    what, why, fix = capsys.readouterr().err.splitlines()[-3:]
    assert when in why
    assert fix.startswith(f"type:    raftmq restore --from-tier {lost.url} --to-time 1990-01-01T00:00:00.000Z --into ")
