"""The sources from which the client takes the cluster's addresses."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from raftmq.client.discovery import DEFAULT_SERVERS, find_servers, parse_servers
from tests.support.rows import each_row


def write_cluster(folder: Path, *ports: int) -> None:
    folder.mkdir(parents=True)
    nodes = [{"id": n, "namesrv_port": port} for n, port in enumerate(ports, 1)]
    (folder / "cluster.json").write_text(json.dumps({"nodes": nodes}))


def test_order_of_sources(tmp_path: Path) -> None:
    write_cluster(tmp_path / ".raftmq", 1001, 1002)
    write_cluster(tmp_path / "elsewhere", 2001)
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    assert find_servers(environ={}, cwd=below) == ("127.0.0.1:1001", "127.0.0.1:1002")
    data = {"RAFTMQ_DATA": str(tmp_path / "elsewhere")}
    assert find_servers(environ=data, cwd=below) == ("127.0.0.1:2001",)
    assert find_servers(environ={**data, "RAFTMQ_SERVERS": "h:1;h:2"}, cwd=below) == ("h:1", "h:2")
    assert find_servers("x:5", environ={"RAFTMQ_SERVERS": "h:1"}, cwd=below) == ("x:5",)
    assert find_servers(environ={}, cwd=tmp_path.parent) == DEFAULT_SERVERS


def test_a_directory_without_a_cluster_is_not_taken_for_the_default_ports(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no cluster in .*none \(RAFTMQ_DATA\)"):
        find_servers(environ={"RAFTMQ_DATA": str(tmp_path / "none")}, cwd=tmp_path)


def test_lists_in_several_forms() -> None:
    assert parse_servers("a:1;b:2, c:3 a:1") == ("a:1", "b:2", "c:3")
    assert parse_servers(["[::1]:9"]) == ("[::1]:9",)


@each_row("bad", ["", "host", "host:", ":1", "h:0", "h:65536", "h:1;nope", "h:x"])
def test_bad_addresses_name_themselves(bad: str) -> None:
    with pytest.raises(ValueError, match=r"host:port"):
        parse_servers(bad)


@each_row("content", ["not json", "[]", '{"nodes": [{}]}', '{"nodes": []}', '{"nodes": 3}'])
def test_a_broken_cluster_file_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / ".raftmq").mkdir()
    (tmp_path / ".raftmq" / "cluster.json").write_text(content)
    with pytest.raises(ValueError, match=r"cluster\.json does not describe a cluster"):
        find_servers(environ={}, cwd=tmp_path)


@pytest.mark.parametrize("call", ["is_file", "read_text"])
def test_another_users_cluster_is_named_and_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Its folder is closed to others, or its file is."""
    write_cluster(tmp_path / ".raftmq", 1001)

    def denied(path: Path, *_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, call, denied)
    if call == "is_file":
        monkeypatch.setattr(Path, "read_text", denied)
    with pytest.raises(ValueError, match=r"cluster\.json cannot be read \(Permission denied\); set RAFTMQ_SERVERS"):
        find_servers(environ={}, cwd=tmp_path)
