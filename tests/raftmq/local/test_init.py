"""Making and checking data directories: all or none, and nobody else's."""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from click.testing import CliRunner
from google_crc32c import value as crc32c
from msgspec.structs import replace

from cluster.config import node_files as local_config
from cluster.config.config import ConfigError
from cluster.config.local_layout import ClusterFile, NodeName, NodeRecord, write_cluster
from cluster.config.node_files import plan_nodes, write_configs
from cluster.node.__main__ import main as run_node
from raftlog.storage.files.fs import OsFileSystem
from raftlog.storage.files.layout import lock_directory
from raftlog.storage.node_dir import open_node_dir
from raftmq.cli import cli
from raftmq.local import init as local_init
from raftmq.local.cluster import LocalCluster
from raftmq.local.cluster_files import ClusterFiles, prepare_data_dir
from raftmq.local.further_groups import BEGUN
from raftmq.local.init import check_data_dirs, create_data_dirs, is_empty
from raftmq.local.process import is_running
from raftmq_wire.errors import ExitCode, LocalError
from tests.support.idle_nodes import idle
from tests.support.rows import each_row
from tests.support.small_segments import LOG, small_segments


def make(folder: Path, count: int = 3, log: str = LOG) -> list[NodeRecord]:
    folder.mkdir(exist_ok=True)
    nodes = plan_nodes(folder, count, 29100)
    write_configs(nodes)
    for node in nodes:
        with node.config_path.open("a") as config:
            config.write(f"\n{log}")
    return nodes


def configs(nodes: list[NodeRecord]) -> list[Path]:
    return [node.config_path for node in nodes]


def data(node: NodeRecord) -> Path:
    return node.home / "data"


def refused(nodes: list[NodeRecord], *what: str) -> LocalError:
    with pytest.raises(LocalError) as caught:
        check_data_dirs(nodes)
    for part in what:
        assert part in str(caught.value), caught.value
    assert caught.value.exit_code == ExitCode.REFUSED
    return caught.value


def test_one_cluster_three_identities_one_genesis(tmp_path: Path) -> None:
    nodes = make(tmp_path)
    made = create_data_dirs(configs(nodes))
    assert made.created
    opened = [open_node_dir(OsFileSystem(), data(node)) for node in nodes]
    try:
        assert {each.identity.cluster_uuid for each in opened} == {made.cluster_uuid}
        assert [each.identity.node_id for each in opened] == [1, 2, 3]
        assert len({each.identity.node_uuid for each in opened}) == 3
        assert len({each.log.genesis for each in opened}) == 1
        assert [tuple(voter) for voter in opened[0].log.genesis.voters] == [
            (each.identity.node_id, each.identity.node_uuid) for each in opened
        ]
    finally:
        for each in opened:
            each.close(clean=True)
    assert check_data_dirs(nodes) == made.cluster_uuid


def test_a_second_init_changes_nothing(tmp_path: Path) -> None:
    nodes = make(tmp_path)
    first = create_data_dirs(configs(nodes))
    before = {path: path.read_bytes() for path in tmp_path.rglob("IDENTITY")}
    assert create_data_dirs(configs(nodes)) == (False, first.cluster_uuid, ())
    assert {path: path.read_bytes() for path in tmp_path.rglob("IDENTITY")} == before


def test_an_empty_directory_beside_filled_ones_is_refused(tmp_path: Path) -> None:
    """A lost disk must not come back as a node that forgot its votes."""
    nodes = make(tmp_path)
    create_data_dirs(configs(nodes))
    data(nodes[1]).rename(tmp_path / "lost")
    with pytest.raises(LocalError, match="data directory of node 2 is empty") as caught:
        create_data_dirs(configs(nodes))
    assert caught.value.exit_code == ExitCode.REFUSED
    assert not data(nodes[1]).exists()
    refused(nodes, "holds no node")


def test_the_files_of_users_are_made_once(tmp_path: Path) -> None:
    nodes = make(tmp_path)
    kept = tmp_path / "secrets"
    env = {"RAFTMQ_AUTH__KEY_FILE": str(kept / "key"), "RAFTMQ_AUTH__FIRST_USER_FILE": str(kept / "user")}
    create_data_dirs(configs(nodes), env)
    files = {path.name: path.read_text() for path in kept.iterdir()}
    assert len(base64.b64decode(files["key"])) == 32
    name, secret = files["user"].split()
    assert name == "admin"
    assert len(secret) >= 32
    assert {path.stat().st_mode & 0o777 for path in kept.iterdir()} == {0o600}
    (kept / "key").unlink()
    create_data_dirs(configs(nodes), env)
    assert not (kept / "key").exists(), "with another key no secret in the log could be read"


def test_the_others_may_start_beside_a_lost_disk_that_stays_empty(tmp_path: Path) -> None:
    nodes = make(tmp_path)
    made = create_data_dirs(configs(nodes))
    shutil.rmtree(data(nodes[1]))
    for _ in range(3):
        assert create_data_dirs(configs(nodes), leave_lost=True) == (False, made.cluster_uuid, (2,))
        assert not data(nodes[1]).exists()
    arguments = [word for path in configs(nodes) for word in ("--config", str(path))]
    done = CliRunner().invoke(cli, ["init", "--leave-lost", *arguments])
    assert done.exit_code == 0
    assert "raftmq node replace 2" in done.output


def test_the_others_may_start_beside_a_disk_that_is_half_gone_and_nothing_is_deleted(tmp_path: Path) -> None:
    nodes = make(tmp_path)
    made = create_data_dirs(configs(nodes))
    (data(nodes[1]) / "IDENTITY").unlink()
    left = sorted(path.name for path in data(nodes[1]).iterdir())
    assert left
    with pytest.raises(LocalError, match="has no IDENTITY but is not empty"):
        create_data_dirs(configs(nodes))
    assert create_data_dirs(configs(nodes), leave_lost=True) == (False, made.cluster_uuid, (2,))
    arguments = [word for path in configs(nodes) for word in ("--config", str(path))]
    done = CliRunner().invoke(cli, ["init", "--leave-lost", *arguments])
    assert done.exit_code == 0
    assert "the directory of node 2 was lost" in done.output
    assert "raftmq node replace 2" in done.output
    assert sorted(path.name for path in data(nodes[1]).iterdir()) == left
    shutil.rmtree(data(nodes[2]))
    most = CliRunner().invoke(cli, ["init", "--leave-lost", *arguments])
    assert "node replace" not in most.output, "without a majority nothing is replaced"
    assert "raftmq runbook no_quorum" in most.output
    (data(nodes[0]) / "IDENTITY").unlink()
    with pytest.raises(LocalError, match="has no IDENTITY but is not empty"):
        create_data_dirs(configs(nodes), leave_lost=True)


class NamedStarts(LocalCluster):
    """Its nodes are only named when they start, and lead at once."""

    def __init__(self, data: Path) -> None:
        super().__init__(data)
        self.started: list[NodeName] = []

    def start(self, name: NodeName) -> int:
        self.started.append(name)
        return 0

    def wait_leader(self, *_: Any, **__: Any) -> int:
        return 1


def test_up_starts_the_others_and_a_lost_disk_is_replaced_not_started(tmp_path: Path) -> None:
    nodes = load_cluster(tmp_path)
    shutil.rmtree(data(nodes[1]))
    cluster = NamedStarts(tmp_path)
    cluster.up()
    assert cluster.started == [1, 3]
    with pytest.raises(LocalError, match="data directory of node 2 is empty") as caught:
        cluster.restart(2)
    assert caught.value.fix.startswith("raftmq node replace 2")
    shutil.rmtree(data(nodes[2]))
    with pytest.raises(LocalError, match="holds no node"):
        cluster.up()  # one of three could do nothing


@pytest.mark.parametrize("left", ["remnants", "nothing", "no folder"])
def test_a_folder_that_was_deleted_under_its_node_stops_nobody_else(tmp_path: Path, left: str) -> None:
    nodes = load_cluster(tmp_path)
    shutil.rmtree(nodes[1].home if left == "no folder" else data(nodes[1]))
    if left == "remnants":  # its node wrote this again while it died
        (data(nodes[1]) / "checkpoints").mkdir(parents=True)
        (data(nodes[1]) / "STATE_SUSPECT").touch()
    cluster = NamedStarts(tmp_path)
    cluster.up()
    assert cluster.started == [1, 3]
    assert [node.id for node in cluster.nodes] == [1, 2, 3]
    with pytest.raises(LocalError, match="data directory of node 2") as caught:
        cluster.restart(2)
    assert caught.value.fix.startswith("raftmq node replace 2")
    with idle(nodes) as running:
        write_cluster(tmp_path, ClusterFile([running[0], nodes[1], running[2]]))
        with pytest.raises(LocalError, match="node 2 is lost and is not started") as caught:
            cluster.up()
        assert "all other nodes are already running" in caught.value.why
        assert caught.value.fix.startswith("raftmq node replace 2")
        write_cluster(tmp_path, ClusterFile(running))
        with pytest.raises(LocalError, match="data directory of node 2"):
            cluster.restart(2)
        assert all(map(is_running, running)), "it could not start again"


def test_what_to_type_after_a_kill_depends_on_what_is_left_of_the_disk(tmp_path: Path) -> None:
    nodes = load_cluster(tmp_path)

    def told(node: int) -> tuple[str, str]:
        """Kills the node twice: the answer, and the advice of the error that it does not run."""
        with idle(nodes) as running:
            write_cluster(tmp_path, ClusterFile(running))
            answer = CliRunner().invoke(cli, ["kill", str(node), "--data", str(tmp_path)]).output
        with pytest.raises(LocalError, match="is not running") as caught:
            LocalCluster(tmp_path).kill(node)
        return answer.partition("type: ")[2].strip(), caught.value.fix

    assert told(2) == (f"raftmq restart 2 --data {tmp_path}", "raftmq restart 2")
    (data(nodes[1]) / "IDENTITY").unlink()
    for advice in told(2):
        assert advice.startswith("raftmq node replace 2 ")
    assert told(3) == (f"raftmq restart 3 --data {tmp_path}", "raftmq restart 3")
    shutil.rmtree(nodes[2].home)
    for advice in (*told(2), *told(3)):
        assert advice.startswith("raftmq runbook no_quorum ")


def test_a_second_start_remembers_whose_place_a_node_is_to_take(tmp_path: Path) -> None:
    nodes = load_cluster(tmp_path)
    write_cluster(tmp_path, ClusterFile([*nodes[:2], replace(nodes[2], replaces=9)]))
    assert [node.replaces for node in load_as_found(tmp_path)] == [None, None, 9]
    (tmp_path / "removed").mkdir()
    nodes[1].home.rename(tmp_path / "removed" / "n2")
    assert [node.id for node in load_as_found(tmp_path)] == [1, 3], "it was removed, not lost"


def test_a_failure_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    nodes = make(tmp_path)
    data(nodes[1]).symlink_to("/proc/no/such/place")  # there nobody can make a directory
    with pytest.raises(LocalError):
        create_data_dirs(configs(nodes))
    assert not any(data(node).exists() for node in nodes)
    data(nodes[1]).unlink(missing_ok=True)
    assert create_data_dirs(configs(nodes)).created


def test_a_directory_of_another_cluster(tmp_path: Path) -> None:
    mine, other = make(tmp_path / "mine"), make(tmp_path / "other")
    create_data_dirs(configs(mine))
    create_data_dirs(configs(other))
    data(mine[2]).rename(tmp_path / "aside")
    data(other[2]).rename(data(mine[2]))
    refused(mine, "belongs to cluster", str(data(mine[2])))


def test_a_directory_of_another_node(tmp_path: Path) -> None:
    nodes = make(tmp_path)
    create_data_dirs(configs(nodes))
    data(nodes[0]).rename(tmp_path / "aside")
    data(nodes[1]).rename(data(nodes[0]))
    (tmp_path / "aside").rename(data(nodes[1]))
    refused(nodes, "belongs to node 2, not to node 1")


def test_a_directory_of_a_newer_format(tmp_path: Path) -> None:
    nodes = make(tmp_path)
    create_data_dirs(configs(nodes))
    path = data(nodes[0]) / "IDENTITY"
    rest = b"\x00\x0b" + path.read_bytes()[10:]
    path.write_bytes(path.read_bytes()[:4] + crc32c(rest).to_bytes(4) + rest)
    refused(nodes, "has format 11: a newer RaftMQ", "pip install --upgrade")


def test_a_damaged_identity(tmp_path: Path) -> None:
    nodes = make(tmp_path)
    create_data_dirs(configs(nodes))
    path = data(nodes[2]) / "IDENTITY"
    content = bytearray(path.read_bytes())
    content[40] ^= 1
    path.write_bytes(content)
    refused(nodes, "is damaged")


def test_a_directory_in_use_is_not_made_anew(tmp_path: Path) -> None:
    nodes = make(tmp_path)
    data(nodes[1]).mkdir()
    lock = lock_directory(OsFileSystem(), data(nodes[1]))
    try:
        with pytest.raises(LocalError, match="in use by process") as caught:
            create_data_dirs(configs(nodes))
        assert caught.value.exit_code == ExitCode.REFUSED
    finally:
        lock.close()
    assert not data(nodes[0]).exists()


def test_every_member_must_be_named_once(tmp_path: Path) -> None:
    nodes = make(tmp_path)
    for paths in (configs(nodes)[:2], [*configs(nodes)[:2], nodes[0].config_path]):
        with pytest.raises(LocalError, match="give each one once") as caught:
            create_data_dirs(paths)
        assert caught.value.exit_code == ExitCode.USAGE
    assert not any(data(node).exists() for node in nodes)


@pytest.mark.parametrize(
    ("extra", "what"),
    [
        ('\n[cluster]\nname = "Other"\n', "cluster.name"),
        ("\n[log]\nsegment_size_bytes = 8388608\n", "log.segment_size_bytes"),
        ('\n[cluster]\nid = "00000000-0000-0000-0000-000000000001"\n', "cluster.id"),
    ],
)
def test_files_that_describe_different_clusters(tmp_path: Path, extra: str, what: str) -> None:
    nodes = make(tmp_path, log="")
    path = nodes[2].config_path
    path.write_text(path.read_text() + extra)
    with pytest.raises(LocalError, match=f"differ in {what}"):
        create_data_dirs(configs(nodes))
    assert not any(data(node).exists() for node in nodes)


def test_a_cluster_id_given_in_the_files_is_used(tmp_path: Path) -> None:
    nodes = make(tmp_path)
    for node in nodes:
        text = node.config_path.read_text() + '\n[cluster]\nid = "00000000-0000-0000-0000-00000000000a"\n'
        node.config_path.write_text(text)
    assert create_data_dirs(configs(nodes)).cluster_uuid == UUID(int=10)


def test_a_further_group_has_the_uuid_and_the_secret_of_its_cluster(tmp_path: Path) -> None:
    nodes = make(tmp_path, count=1)
    text = nodes[0].config_path.read_text()
    known = f'id = "{UUID(int=10)}"'

    def write(cluster: str, peer: str = "") -> None:
        nodes[0].config_path.write_text(f"{text}\n[cluster]\n{cluster}\n".replace("[peer]", f"[peer]\n{peer}"))

    for cluster, missing in (("group = 2", "cluster.id"), (f"group = 2\n{known}", "peer.secret_file")):
        write(cluster)
        with pytest.raises(ConfigError, match=rf"cluster.group is 2, and {missing} is not set\n.*\nset {missing} to"):
            create_data_dirs(configs(nodes))
    write(f"group = 65\n{known}")
    with pytest.raises(ConfigError, match=r"cluster\.group"):
        create_data_dirs(configs(nodes))
    write(f"group = 2\n{known}", f'secret_file = "{tmp_path}/SECRET"')
    assert create_data_dirs(configs(nodes)).cluster_uuid == UUID(int=10)
    opened = open_node_dir(OsFileSystem(), data(nodes[0]))
    assert opened.identity.group_id == opened.log.genesis.group_id == 2
    opened.close(clean=True)
    assert check_data_dirs(nodes) == UUID(int=10)
    write(f"group = 3\n{known}", f'secret_file = "{tmp_path}/SECRET"')
    refused(nodes, "belongs to group 2, not to group 3")


def test_broken_toml_is_named_with_its_line(tmp_path: Path) -> None:
    nodes = make(tmp_path)
    nodes[1].config_path.write_text("[node]\nid = \n")
    with pytest.raises(ConfigError, match=r"n2/raftmq.toml:2: not valid TOML"):
        create_data_dirs(configs(nodes))
    result = CliRunner().invoke(cli, ["up", "--data", str(tmp_path)])
    assert result.exit_code == 2
    assert "n2/raftmq.toml:2" in result.stderr


def test_an_unknown_key_names_the_nearest(tmp_path: Path) -> None:
    nodes = make(tmp_path)
    nodes[0].config_path.write_text(nodes[0].config_path.read_text() + "\n[raft]\ntick_mss = 5\n")
    result = CliRunner().invoke(cli, ["up", "--data", str(tmp_path)])
    assert result.exit_code == 2
    assert "did you mean tick_ms?" in result.stderr


def test_the_init_command(tmp_path: Path) -> None:
    nodes = make(tmp_path)
    arguments = ["init", "--json", *(part for node in nodes for part in ("--config", str(node.config_path)))]
    first = CliRunner().invoke(cli, arguments)
    again = CliRunner().invoke(cli, arguments)
    assert (first.exit_code, again.exit_code) == (0, 0)
    assert json.loads(first.stdout)["created"] is True
    assert json.loads(again.stdout) == json.loads(first.stdout) | {"created": False}


def test_a_directory_that_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "thesis.doc").write_text("do not touch")
    with pytest.raises(LocalError, match="is not a data directory of RaftMQ") as caught:
        LocalCluster(tmp_path).up()
    assert caught.value.exit_code == ExitCode.REFUSED
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.doc"]


@contextmanager
def another_user() -> Iterator[None]:
    """Root becomes nobody for a while; any other user stays what it is."""
    if os.getuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_volume_of_another_user(tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    volume.mkdir(mode=0o700 if os.getuid() == 0 else 0)
    with another_user(), pytest.raises(LocalError) as refused:
        is_empty(volume / "raftmq")
    volume.chmod(0o700)
    assert refused.value.what == f"{volume / 'raftmq'} cannot be used"
    assert f"belongs to uid {os.getuid()}; the process runs as uid" in refused.value.why
    assert refused.value.fix.startswith(f"chown -R {os.getuid()}:{os.getgid()} ")


def test_a_file_that_this_user_may_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A clone made under a umask of 077, mounted into a container."""
    config = tmp_path / "n1.toml"
    config.touch(0o600 if os.getuid() == 0 else 0)
    with another_user():
        assert run_node(["--config", str(config)]) == ExitCode.USAGE
        assert "this user may not read the file" in CliRunner().invoke(cli, ["init", "--config", str(config)]).output
    told = capsys.readouterr().err
    assert f"{config} && chmod g+rX " in told
    assert "a+r" not in told, "others than the group of the process get nothing"


def test_a_file_in_place_of_the_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LocalError, match="cannot be the data directory"):
        prepare_data_dir(tmp_path / "file")


def test_another_number_of_nodes_is_refused(tmp_path: Path) -> None:
    create_data_dirs(configs(make(tmp_path)))
    with pytest.raises(LocalError, match="has 3 nodes, not 5"):
        LocalCluster(tmp_path).up(5)


# --- the first `raftmq up`, interrupted ------------------------------------------------------------------------------


def load_cluster(folder: Path) -> list[NodeRecord]:
    with small_segments():
        return load_as_told(folder)


def load_as_told(folder: Path) -> list[NodeRecord]:
    prepare_data_dir(folder)
    return ClusterFiles(folder).load_or_make(3, 29100, failpoints=False, on_stage=lambda _: None).nodes


def load_as_found(folder: Path) -> list[NodeRecord]:
    return ClusterFiles(folder).load_or_make(None, None, failpoints=False, on_stage=lambda _: None).nodes


@each_row("writes_left", [0, 1, 2, 3])
@each_row("step", ["write_config", "create_node_dir"])
def test_an_interrupted_first_start_is_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, writes_left: int
) -> None:
    module = local_config if step == "write_config" else local_init
    real, left = getattr(module, step), [writes_left]

    def interrupted(*arguments: Any, **named: Any) -> Any:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return real(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(module, step, interrupted)
        if writes_left < 3:
            with pytest.raises(KeyboardInterrupt):
                load_cluster(tmp_path / "data")
        else:
            load_cluster(tmp_path / "data")
    nodes = load_cluster(tmp_path / "data")
    assert [node.id for node in nodes] == [1, 2, 3]
    check_data_dirs(nodes)
    assert not (tmp_path / "data" / BEGUN).exists()


def test_files_without_any_data_are_brought_on(tmp_path: Path) -> None:
    nodes = make(tmp_path / "data")
    assert load_cluster(tmp_path / "data") == nodes
    check_data_dirs(nodes)


def test_a_cluster_that_ran_and_lost_its_disks_is_not_made_anew(tmp_path: Path) -> None:
    nodes = load_cluster(tmp_path / "data")
    for node in nodes:
        shutil.rmtree(data(node))
    with pytest.raises(LocalError):
        load_cluster(tmp_path / "data")


def test_the_environment_counts_when_the_directories_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAFTMQ_LOG__SEGMENT_SIZE_BYTES", str(8 << 20))
    nodes = load_as_told(tmp_path / "data")
    opened = open_node_dir(OsFileSystem(), data(nodes[0]))
    try:
        assert opened.log.segment_size == 8 << 20
    finally:
        opened.close(clean=True)


@pytest.mark.parametrize("section", ["admin", "listeners"])
def test_a_new_cluster_is_not_opened_to_others_without_a_user(tmp_path: Path, section: str) -> None:
    config = tmp_path / "raftmq.toml"
    table = '[[listeners]]\nname = "broker"\nport = 10911' if section == "listeners" else "[admin]"
    config.write_text(f'[node]\nid = 1\ndata_dir = "data"\n{table}\nbind = "10.0.0.5"\n')
    command = ["init", "--config", str(config)]
    refused = CliRunner().invoke(cli, command)
    assert refused.exit_code == ExitCode.USAGE
    assert "open to other machines" in refused.output
    assert "--insecure" in refused.output
    assert not (tmp_path / "data").exists()
    assert CliRunner().invoke(cli, [*command, "--insecure"]).exit_code == 0
    assert CliRunner().invoke(cli, command).exit_code == 0, "an old directory is no new one"


def test_a_new_cluster_with_a_first_user_is_opened(tmp_path: Path) -> None:
    config = tmp_path / "raftmq.toml"
    auth = '[auth]\nkey_file = "/etc/raftmq/key"\nfirst_user_file = "/etc/raftmq/first"\n'
    config.write_text(f'[node]\nid = 1\ndata_dir = "data"\n[admin]\nbind = "0.0.0.0"\n{auth}')
    assert CliRunner().invoke(cli, ["init", "--config", str(config)]).exit_code == 0
