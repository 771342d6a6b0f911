"""A cluster is made once: emptied directories are no new cluster, even if no other node runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from cluster.config.loading import load
from raftlog.storage.files import identity as identities
from raftlog.storage.files.fs import OsFileSystem
from raftmq.cli import cli
from raftmq.local import made_mark, single_node_init
from raftmq.local.init import create_data_dirs
from raftmq.local.single_node_init import create_first, next_steps
from raftmq_wire.errors import ExitCode, LocalError

HOUR_MS = 3600 * 1000


def node_file(folder: Path, node: int = 1, peer: str = "", cluster: str = "") -> Path:
    """A node of three, whose peers have no HTTP address: nobody can be asked."""
    home = folder / f"n{node}"
    home.mkdir(parents=True)
    peers = "".join(f'[[peers]]\nid = {n}\nhost = "127.0.0.1"\nport = {29400 + n}\n' for n in (1, 2, 3))
    text = f'[node]\nid = {node}\ndata_dir = "{home}/data"\n[cluster]\n{cluster}\n[peer]\n{peer}\n{peers}'
    (home / "raftmq.toml").write_text(text)
    return home / "raftmq.toml"


def refused(path: Path, what: str, until_ms: int | None = None) -> LocalError:
    with pytest.raises(LocalError, match=what) as caught:
        create_first(path, {}, until_ms)
    assert caught.value.exit_code is ExitCode.REFUSED
    assert not (path.parent / "data").exists()
    return caught.value


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_a_group_is_made_once_beside_the_secret_of_the_first(tmp_path: Path) -> None:
    secret = f'secret_file = "{tmp_path}/SECRET"'
    made = create_first(node_file(tmp_path / "g1", peer=secret), {})
    second = node_file(tmp_path / "g2", peer=secret, cluster=f'group = 2\nid = "{made.cluster_uuid}"')
    assert create_first(second, {}) == made
    identity = identities.load(OsFileSystem(), second.parent / "data")
    assert (identity.cluster_uuid, identity.group_id, identity.node_id) == (made.cluster_uuid, 2, 1)
    assert sorted(path.name for path in tmp_path.glob("SECRET*")) == ["SECRET", "SECRET.cluster", "SECRET.g02.cluster"]
    shutil.rmtree(second.parent / "data")
    refused(second, "was made before")


def test_an_emptied_first_node_is_refused_although_nobody_runs(tmp_path: Path) -> None:
    path = node_file(tmp_path)
    made = create_first(path, {})
    assert made.created
    assert not create_first(path, {}).created
    mark = path.with_name("raftmq.toml.cluster")
    assert mark.read_text() == f"{made.cluster_uuid}\n"
    shutil.rmtree(path.parent / "data")
    for _ in range(10):
        assert f"rm {mark}" in refused(path, f"was made before: {made.cluster_uuid}").fix
    mark.unlink()
    assert create_first(path, {}).cluster_uuid != made.cluster_uuid


def test_the_mark_lies_beside_a_secret_outside_the_directory(tmp_path: Path) -> None:
    path = node_file(tmp_path, peer=f'secret_file = "{tmp_path}/secrets/peers"')
    made = create_first(path, {})
    shutil.rmtree(path.parent)
    again = node_file(tmp_path, peer=f'secret_file = "{tmp_path}/secrets/peers"')
    assert str(made.cluster_uuid) in refused(again, "was made before").what
    inside = node_file(tmp_path, 2, peer=f'secret_file = "{tmp_path}/n2/data/peers"')
    assert create_first(inside, {}).created
    assert inside.with_name("raftmq.toml.cluster").exists()


def test_a_configuration_that_names_its_cluster_makes_no_new_one(tmp_path: Path) -> None:
    path = node_file(tmp_path, cluster='id = "00000000-0000-0000-0000-00000000000a"')
    assert "take out cluster.id" in refused(path, "names the cluster").fix


def test_a_time_soon_allows_what_no_mark_can_forbid(tmp_path: Path) -> None:
    path = node_file(tmp_path)
    assert "name a time soon" in refused(path, "may not be made", now_ms() - 1).fix
    refused(path, "more than a day ahead", now_ms() + 25 * HOUR_MS)  # or the clock is of last year
    assert create_first(path, {}, now_ms() + HOUR_MS).created
    assert not path.with_name("raftmq.toml.cluster").exists()
    assert not create_first(path, {}, 0).created, "a node that is there starts at any time"


def test_an_interrupted_making_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = node_file(tmp_path)

    def stop(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(single_node_init, "create_node_dir", stop)
        with pytest.raises(KeyboardInterrupt):
            create_first(path, {})
    assert path.with_name("raftmq.toml.cluster").exists()
    made = create_first(path, {})
    assert made.created
    assert path.with_name("raftmq.toml.cluster").read_text() == f"{made.cluster_uuid}\n"


def test_no_node_is_made_without_its_mark(tmp_path: Path) -> None:
    path = node_file(tmp_path)
    path.with_name(f"raftmq.toml.cluster.{os.getpid()}.tmp").mkdir()
    assert "--until TIME" in refused(path, "cannot be written").fix


def test_three_emptied_directories_with_their_secret_are_refused(tmp_path: Path) -> None:
    secret = f'secret_file = "{tmp_path}/secrets/peers"'
    paths = [node_file(tmp_path, node, secret) for node in (1, 2, 3)]
    made = create_data_dirs(paths, {})
    mark = tmp_path / "secrets" / "peers.cluster"
    mark.unlink()
    shutil.rmtree(tmp_path / "n2" / "data")
    assert create_data_dirs(paths, {}, leave_lost=True).lost == (2,)
    assert mark.read_text() == f"{made.cluster_uuid}\n", (
        "a cluster of an earlier release gets its mark at the next start"
    )
    for node in (1, 3):
        shutil.rmtree(tmp_path / f"n{node}" / "data")
    for leave_lost in (False, True):
        with pytest.raises(LocalError, match=f"was made before: {made.cluster_uuid}"):
            create_data_dirs(paths, {}, leave_lost=leave_lost)
    assert not any((tmp_path / f"n{node}" / "data").exists() for node in (1, 2, 3))
    with pytest.raises(LocalError, match="may not be made"):
        create_data_dirs(paths, {}, until_ms=now_ms() - 1)


def test_a_mark_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of root, and a service user who types the command."""
    path = node_file(tmp_path)

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(made_mark, "replace_file", refuse)
        refused(path, "cannot be written: Permission denied")
    assert [each.name for each in path.parent.iterdir()] == ["raftmq.toml"]
    assert create_first(path, {}).created


def test_the_last_step_has_requests_judged_where_there_is_a_first_user(tmp_path: Path) -> None:
    path = node_file(tmp_path)
    config = load(path, {})
    assert "enforce" not in "".join(next_steps(config, path))
    with path.open("a") as file:
        file.write(f'[auth]\nkey_file = "{tmp_path}/users.key"\nfirst_user_file = "{tmp_path}/first-user"\n')
    config = load(path, {})
    wanted = f"raftmq auth mode enforce --admin HOST:9644 --data-dir {path.parent}/data "
    assert next_steps(config, path)[-1].startswith(f"4. as soon as 2 nodes run, here: {wanted}")
    alone = tmp_path / "alone.toml"
    alone.write_text(path.read_text().split("[[peers]]")[0] + path.read_text()[path.read_text().index("[auth]") :])
    steps = next_steps(load(alone, {}), alone)
    assert len(steps) == 2
    assert steps[1].startswith(f"as soon as it runs, here: {wanted.replace('HOST', '127.0.0.1')}")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a node in another user's folder")
def test_root_is_told_to_give_a_node_to_the_user_of_its_service(tmp_path: Path) -> None:
    path = node_file(tmp_path)
    told = CliRunner().invoke(cli, ["init", "--first", "--config", str(path)])
    assert (told.exit_code, "chown" in told.output) == (0, False)
    shutil.rmtree(path.parent)
    path = node_file(tmp_path)
    os.chown(path.parent, 65534, 65533)
    with path.open("a") as file:
        file.write(f'[auth]\nkey_file = "{tmp_path}/users.key"\nfirst_user_file = "{tmp_path}/first-user"\n')
    asked = ["init", "--first", "--tls", str(tmp_path / "pki"), "--config", str(path)]
    wanted = f"chown -R 65534:65533 {path.parent}/data {tmp_path}/pki {tmp_path}/users.key {tmp_path}/first-user\n"
    assert wanted in CliRunner().invoke(cli, asked).output
    subprocess.run(wanted.split(), check=True)
    again = CliRunner().invoke(cli, asked)
    assert (again.exit_code, "chown" in again.output) == (0, False), again.output
