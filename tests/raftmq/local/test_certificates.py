"""`raftmq cert` as docs/security.md says: a CA, then a certificate for each node of a cluster made by `raftmq init`."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from cryptography.x509.oid import ExtendedKeyUsageOID

from cluster.config.config import Config
from cluster.config.loading import load
from cluster.config.source import ConfigError
from cluster.runtime.tls.contexts import load_contexts
from raftlog.storage.files import identity
from raftlog.storage.files.fs import OsFileSystem
from raftmq.cli import cli
from raftmq.local.tls.certificates import names_of, read_certificate
from raftmq.local.tls.node_certificates import why_unfit

FILE = """
[node]
id = {node}
data_dir = "n{node}"
[peer]
bind = "0.0.0.0"
port = 10912
[admin]
bind = "10.0.0.{node}"
[[listeners]]
name = "broker"
bind = "0.0.0.0"
port = 10911
[[peers]]
id = 1
host = "node1.example"
port = 10912
admin = "10.0.0.1:9644"
[peers.listeners]
broker = "mq1.example:10911"
[[peers]]
id = 2
host = "127.0.0.1"
port = 10913
[peers.listeners]
broker = "127.0.0.1:10914"
"""


def _run(*words: str | Path, refused: str = "") -> str:
    result = CliRunner().invoke(cli, [str(word) for word in words])
    assert (result.exit_code != 0) == bool(refused), result.output
    assert refused in result.output
    return result.output


@pytest.fixture
def configs(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"{node}.toml" for node in (1, 2)]
    for node, path in enumerate(paths, 1):
        path.write_text(FILE.format(node=node))
    return paths


def _config(path: Path) -> Config:
    return load(path, {})


def test_certificates_of_a_new_cluster(configs: list[Path], tmp_path: Path) -> None:
    pki = tmp_path / "pki"
    _run("cert", "ca", "--out", pki)
    _run("cert", "node", "--config", configs[0], "--ca", pki, "--out", pki, refused="no data directory")
    _run("init", "--insecure", "--config", configs[0], "--config", configs[1])
    for path in configs:
        _run("cert", "node", "--config", path, "--ca", pki, "--out", pki)
    own = identity.load(OsFileSystem(), tmp_path / "n1")
    first = read_certificate(pki / "node-1.crt")
    assert names_of(first) == [
        f"raftmq://{own.cluster_uuid}/{own.node_uuid}",
        "node1.example",
        "10.0.0.1",
        "mq1.example",
    ]
    assert names_of(read_certificate(pki / "node-2.crt"))[1:] == ["127.0.0.1", "10.0.0.2", "localhost"]
    usage = next(each.value for each in first.extensions if each.oid.dotted_string == "2.5.29.37")
    assert set(usage) == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
    assert {path.stat().st_mode & 0o777 for path in pki.iterdir()} == {0o600}
    _run("cert", "node", "--config", configs[0], "--ca", pki, "--out", pki, refused="is there already")
    assert "raftmq://" in _run("cert", "show", pki / "node-1.crt", "--key", pki / "node-1.key")
    _run("cert", "show", pki / "node-1.crt", "--key", pki / "node-2.key", refused="is not the key of")


def test_the_doctor_looks_at_them(configs: list[Path], tmp_path: Path) -> None:
    pki = tmp_path / "pki"
    _run("cert", "ca", "--out", pki)
    _run("init", "--insecure", "--config", configs[0], "--config", configs[1])
    for path in configs:
        _run("cert", "node", "--config", path, "--ca", pki, "--out", pki)
    section = '[tls]\nmode = "enforcing"\ncert_file = "pki/{0}.crt"\nkey_file = "pki/{0}.key"\nca_file = "pki/ca.crt"\n'
    configs[0].write_text(FILE.format(node=1) + section.format("node-1"))
    assert why_unfit(_config(configs[0])) == ""
    configs[0].write_text(FILE.format(node=1) + section.format("node-2"))
    assert "does not name raftmq://" in why_unfit(_config(configs[0]))
    configs[0].write_text(FILE.format(node=1) + section.format("missing"))
    assert "No such file" in why_unfit(_config(configs[0]))
    _run("cert", "node", "--config", configs[1], "--ca", pki, "--out", pki, "--replace", "--days", "29")
    configs[1].write_text(FILE.format(node=2) + section.format("node-2"))
    assert "ends on" in why_unfit(_config(configs[1]))


def test_a_node_takes_them(configs: list[Path], tmp_path: Path) -> None:
    pki = tmp_path / "pki"
    _run("cert", "ca", "--out", pki)
    _run("init", "--insecure", "--config", configs[0], "--config", configs[1])
    _run("cert", "node", "--config", configs[0], "--ca", pki, "--out", pki)
    section = (
        '[tls]\nmode = "permissive"\ncert_file = "pki/node-1.crt"\nkey_file = "pki/{key}"\nca_file = "pki/ca.crt"\n'
    )
    configs[0].write_text(FILE.format(node=1) + section.format(key="node-1.key"))
    assert [Path(each.file).name for each in load_contexts(_config(configs[0]).tls).ends] == ["node-1.crt", "ca.crt"]
    configs[0].write_text(FILE.format(node=1) + section.format(key="ca.key"))
    with pytest.raises(ConfigError, match="cannot use"):
        load_contexts(_config(configs[0]).tls)
