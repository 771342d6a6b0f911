"""`raftmq config explain` and `config init`, which need no cluster."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result

from cluster.config.explain import keys
from cluster.config.loading import load
from raftmq.cli import cli
from tests.support.rows import each_row


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["config", *arguments])


def test_a_key_for_people_and_for_programs() -> None:
    told = run("explain", "retention.ms").stdout
    assert "unit      milliseconds" in told
    assert "reload    yes" in told
    assert "usual     60000 to" in told
    assert json.loads(run("explain", "retention.ms", "--json").stdout)["default"] == "0"


def test_all_keys() -> None:
    lines = run("explain").stdout.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(keys())
    assert len(json.loads(run("explain", "--json").stdout)["keys"]) == len(keys())


def test_files_of_three_nodes_make_a_cluster(tmp_path: Path) -> None:
    made = run("init", "127.0.0.1", "127.0.0.1", "127.0.0.1", "--to", str(tmp_path), "--json")
    files = json.loads(made.stdout)["files"]
    configs = [load(path) for path in files]
    assert [each.node.id for each in configs] == [1, 2, 3]
    ports = [
        port for each in configs for port in (each.peer.port, each.admin.port, *(one.port for one in each.listeners))
    ]
    assert len(set(ports)) == 12
    options = [word for path in files for word in ("--config", path)]
    created = CliRunner().invoke(cli, ["init", *options])
    assert "created 3 data directories" in created.stdout
    assert (tmp_path / "n3" / "data" / "IDENTITY").exists()


def test_nodes_of_several_machines_bind_what_others_reach(tmp_path: Path) -> None:
    assert run("init", "n1", "10.0.0.2", "::1", "--to", str(tmp_path)).exit_code == 0
    by_name, by_address, by_v6 = (load(tmp_path / f"n{number}" / "raftmq.toml") for number in (1, 2, 3))
    assert (by_name.peer.bind, by_name.listeners[0].advertised) == ("0.0.0.0", "n1:10911")
    assert (by_address.peer.bind, by_address.admin.bind) == ("10.0.0.2", "10.0.0.2")
    assert by_v6.listeners[0].advertised == "[::1]:10911"


def test_a_file_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "n2").mkdir()
    (tmp_path / "n2" / "raftmq.toml").write_text("mine")
    refused = run("init", "a", "b", "c", "--to", str(tmp_path))
    assert (refused.exit_code, (tmp_path / "n1").exists()) == (5, False)
    assert "exists" in refused.stderr
    assert (tmp_path / "n2" / "raftmq.toml").read_text() == "mine"


@each_row("hosts", [["n1:9876"], ["http://n1"], [""], ["a b"], [f"h{n}" for n in range(10)]])
def test_what_is_no_host(hosts: list[str], tmp_path: Path) -> None:
    refused = run("init", *hosts, "--to", str(tmp_path))
    assert refused.exit_code == 2
    assert list(tmp_path.iterdir()) == []


NEWER = """\
# ours
[node]
id = 1
data_dir = "data"
colour = "blue"  # of a newer version

[[peers]]
id = 1
port = 10912

[[peers]]
id = 2
port = 10913
zones = [
  "a",
  "b",
]

# a section of a newer version
[moods]
good = true

[admin]
port = 9644
"""


def test_keys_of_a_newer_version_are_named_at_start_and_dropped_only_by_the_command(tmp_path: Path) -> None:
    file = tmp_path / "raftmq.toml"
    file.write_text(NEWER)
    file.chmod(0o600)
    refused = CliRunner().invoke(cli, ["serve", "--config", str(file)])
    assert "raftmq.toml:20: unknown section moods" in refused.stderr
    assert f"raftmq config downgrade {file}" in refused.stderr
    assert "would drop node.colour, peers.1.zones, moods" in run("downgrade", str(file), "--dry-run").stdout
    assert file.read_text() == NEWER
    (done,) = json.loads(run("downgrade", str(file), "--json").stdout)["files"]
    assert done["dropped"] == ["node.colour", "peers.1.zones", "moods"]
    assert Path(done["copy"]).read_text() == NEWER
    assert [each.id for each in load(file).peers] == [1, 2]
    assert file.read_text().count("#") == 2
    assert [path.stat().st_mode & 0o777 for path in (file, Path(done["copy"]))] == [0o600] * 2
    assert run("downgrade", str(file)).stdout == f"{file}: all known\n"
    file.write_text(NEWER)
    assert json.loads(run("downgrade", str(file), "--json").stdout)["files"][0]["copy"].endswith(".newer-2")


def test_a_key_that_has_no_line_of_its_own_is_left_to_an_editor(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.toml", tmp_path / "bad.toml"
    good.write_text(NEWER)
    bad.write_text('admin = {port = 9644, colour = "blue"}\n')
    refused = run("downgrade", str(good), str(bad))
    assert "admin.colour cannot be taken out" in refused.stderr
    assert (good.read_text(), len(list(tmp_path.iterdir()))) == (NEWER, 2), "nothing is written"
