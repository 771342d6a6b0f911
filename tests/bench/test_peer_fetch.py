"""Getting peers: what is half there is not used, and a peer that cannot be had says why instead of ending the run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench import bench_peers
from bench.peers import all_systems, fetch
from bench.peers.system import Unavailable


def test_it_is_made_once(tmp_path: Path) -> None:
    made: list[Path] = []

    def make(into: Path) -> None:
        made.append(into)
        (into / "binary").write_text("x")

    for _ in range(2):
        assert (fetch.once(tmp_path / "peer-1", make) / "binary").read_text() == "x"
    assert len(made) == 1


def test_half_a_download_is_made_again(tmp_path: Path) -> None:
    def fail(into: Path) -> None:
        (into / "half").write_text("x")
        raise Unavailable("no network")

    with pytest.raises(Unavailable):
        fetch.once(tmp_path / "peer-1", fail)
    assert not (tmp_path / "peer-1").exists()
    place = fetch.once(tmp_path / "peer-1", lambda into: (into / "whole").touch())
    assert [path.name for path in place.iterdir()] == ["whole"]


def test_a_tool_that_is_missing_is_named() -> None:
    with pytest.raises(Unavailable, match="Go is not installed"):
        fetch.tool("no-such-command", "Go")


def test_a_command_that_fails_is_quoted() -> None:
    code = "print('downloading'); print('[ERROR] no such artifact'); print('try -X'); raise SystemExit(1)"
    with pytest.raises(Unavailable, match="no such artifact"):
        fetch.run([sys.executable, "-c", code])
    fetch.run([sys.executable, "-c", "print('an error in words, and all is well')"])


def test_a_missing_peer_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_maven(release: str) -> Path:
        raise Unavailable("Maven is not installed")

    monkeypatch.setattr(fetch, "rocketmq", no_maven)
    told: list[str] = []
    fields, missing = bench_peers.get(["dledger", "raftmq"], told.append)
    assert [field.name for field in fields] == ["raftmq"]
    assert missing == {"dledger": "Maven is not installed"}


def test_unknown_systems_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYSTEMS", "raftmq,kafka")
    with pytest.raises(SystemExit, match="kafka"):
        bench_peers.chosen()


def test_a_run_has_a_folder_of_its_own_and_removes_what_killed_runs_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(fetch, "CACHE", tmp_path / "peers")
    (tmp_path / "peers" / "run-killed").mkdir(parents=True)
    (tmp_path / "peers" / "etcd-1").mkdir()
    with fetch.folder_of_a_run() as place:
        (place / "data").touch()
        with pytest.raises(SystemExit, match="another run"), fetch.folder_of_a_run():
            pass
        assert place.is_dir(), "the run that was refused removed nothing"
    assert sorted(path.name for path in (tmp_path / "peers").iterdir()) == ["etcd-1", "lock"]
    with fetch.folder_of_a_run():
        pass


def test_older_releases_run_only_when_they_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SYSTEMS", raising=False)
    assert set(all_systems.ALL) - set(bench_peers.chosen()) == {"etcd-3.4", "nats-2.9"}
    monkeypatch.setenv("SYSTEMS", "etcd-3.4,nats-2.9")
    assert bench_peers.chosen() == ["etcd-3.4", "nats-2.9"]


@pytest.mark.parametrize("peer", [fetch.ETCD, fetch.ETCD_3_4, fetch.NATS, fetch.NATS_2_9], ids=lambda peer: peer.name)
def test_a_go_peer_is_pinned_by_its_manifest(peer: fetch.GoPeer) -> None:
    """The package is the tool of its module. A version that is a tag is the one of go.mod; of 3.4 only commits are
    modules."""
    module = (fetch.MANIFESTS / peer.name / "go.mod").read_text()
    assert f"tool {peer.package}\n" in module
    assert f" v{peer.version} " in module or peer is fetch.ETCD_3_4
    assert (fetch.MANIFESTS / peer.name / "go.sum").stat().st_size
