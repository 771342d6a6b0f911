"""Twenty secrets that pass through a cluster in every way, and are found in none of the places that it leaves behind.

A harmless marker is planted with each kind of secret, and is found in each place, so that the search could fail. Core
dumps and swap are out of scope.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psutil
import pytest

import raftmq
from raftmq.arrow.columns import COLUMNS
from raftmq.cli import run
from raftmq.local.cluster import LocalCluster
from raftmq.local.http.credentials import address_of
from raftmq.local.http.http_exchange import exchange
from raftmq.local.process import free_base_port
from raftmq.local.waiting import until
from tests.support.archives import extract
from tests.support.pace import at_most
from tests.support.secret_forms import found_in
from tests.support.small_segments import small_segments

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.timeout(400)]
MARKER = "marker-user"
"""The name of a user: it stands wherever a secret could stand by mistake."""
Types = Callable[..., str]


class Planted:
    """The secrets, each made once and used at one place."""

    def __init__(self) -> None:
        self.all: dict[str, bytes] = {}

    def new(self, what: str) -> str:
        secret = f"planted-{len(self.all):02d}-{what}-1f0c9a77"
        self.all[what] = secret.encode()
        return secret

    def known(self, what: str, secret: str) -> str:
        """Adds a secret that the cluster made itself."""
        self.all[what] = secret.encode()
        return secret


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    made = LocalCluster(tmp_path / "data")
    with small_segments():
        made.up(1, free_base_port(4), tier=str(tmp_path / "tier"), tls=True, auth=True)
    yield made
    made.down()


@pytest.fixture
def types(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Types:
    """`types("user list", given="")` runs a command on the cluster and returns all that it prints."""

    def typed(line: str, given: str = "", code: int | None = 0) -> str:
        monkeypatch.setattr("sys.stdin", io.StringIO(given))
        ended = run([*line.split(), "--data", str(cluster.data)])
        assert code is None or ended == code, line
        return "".join(capsys.readouterr())

    return typed


def ask(cluster: LocalCluster, method: str, path: str, body: Mapping[str, object]) -> tuple[int, str]:
    (node,) = cluster.nodes
    reply = exchange(address_of(node), method, path, json.dumps(body).encode(), timeout_s=at_most(20))
    return reply.status, reply.body.decode()


def plant(cluster: LocalCluster, types: Types, planted: Planted, tmp_path: Path) -> list[str]:
    """Uses each secret; returns everything that was answered and printed."""
    said: list[str] = []
    first = (cluster.data / "first-user").read_text().split()[1]
    planted.known("first-user", first)
    said.append(types(f"user create {MARKER}", given=planted.new("stdin")))
    said.append(types("user create by-stdin-again", given=planted.new("stdin-again")))
    said.append(types("user create short", given="short", code=None))
    (tmp_path / "secret").write_text(planted.new("file"))
    (tmp_path / "secret").chmod(0o600)
    said.append(types(f"user create by-file --secret-file {tmp_path / 'secret'}"))
    said.append(types(f"user password {MARKER}", given=planted.new("password")))
    for number, body in enumerate(({"type": "Normal"}, {"type": "Super"}, {"type": "neither"})):
        new = {"name": f"by-http-{number}", "secret": planted.new(f"http-{number}"), **body}
        said.append(ask(cluster, "POST", "/v1/users", new)[1])
    said.append(ask(cluster, "PUT", "/v1/users/by-http-0", {"secret": planted.new("http-changed")})[1])
    said.append(ask(cluster, "POST", "/v1/users", {"nane": "x", "secret": planted.new("http-wrong-field")})[1])
    for number, user in enumerate(("nobody", MARKER)):
        login = {"user": user, "secret": planted.new(f"wrong-login-{number}"), "answer": "token"}
        status, told = ask(cluster, "POST", "/v1/session", login)
        assert status in (401, 403), told
        said.append(told)
    login = {"user": "admin", "secret": first, "answer": "token"}
    told = ask(cluster, "POST", "/v1/session", login)[1]
    planted.known("token", json.loads(told)["token"])
    acl = {"accounts": [{"accessKey": "by-import", "secretKey": planted.new("import"), "topicPerms": ["orders=PUB"]}]}
    (tmp_path / "plain_acl.yml").write_text(json.dumps(acl))
    said.append(types(f"acl import {tmp_path / 'plain_acl.yml'} --yes"))
    options = cluster.client_options
    with raftmq.connect(cluster.servers, **options) as root:
        root.admin.create_user("by-remoting", planted.new("remoting"))
        root.admin.create_user("by-remoting-super", planted.new("remoting-super"), is_super=True)
        root.admin.set_rule(MARKER, "Topic:orders", ["Pub"])
        root.admin.create_topic("orders", 1)
        root.admin.create_topic(f"{MARKER}-letters", 1)
        root.send_batch("orders", [b"marker-of-a-message %d" % number + bytes(20_000) for number in range(40)])
    for user, secret in ((MARKER, planted.new("wrong-signature")), ("nobody", planted.new("unknown-user"))):
        with raftmq.connect(cluster.servers, tls=options["tls"], access_key=user, secret_key=secret) as wrong:
            with pytest.raises(raftmq.Refused) as refused:
                wrong.send("orders", b"x")
            said += [str(refused.value), repr(refused.value), repr(wrong)]
    with raftmq.connect(
        cluster.servers, tls=options["tls"], access_key=MARKER, secret_key=planted.all["password"].decode()
    ) as allowed:
        allowed.send("orders", MARKER.encode(), key=MARKER)
        with pytest.raises(raftmq.Refused) as refused:
            allowed.send(f"{MARKER}-topic", b"x")
        said.append(str(refused.value))
    planted.known("cluster", (cluster.nodes[0].home / "data" / "SECRET").read_text().split()[-1])
    planted.known("key", (cluster.data / "users.key").read_text().strip())
    return said


def exports(cluster: LocalCluster, types: Types, folder: Path) -> dict[str, str]:
    """Writes the messages and the metadata in every form that there is; returns place -> its content as text, rows of
    packed files unpacked."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    types(f"export orders --to {folder / 'orders.parquet'} --columns {','.join(COLUMNS)}")
    types(f"metadata export --to {folder / 'metadata.json'}")
    written = pq.ParquetFile(folder / "orders.parquet")
    table = raftmq.read_arrow("orders", servers=cluster.servers, columns=tuple(COLUMNS), **cluster.client_options)
    with pa.OSFile(str(folder / "orders.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    fields = "{topic}|{queue}|{offset}|{position}|{time}|{id}|{key}|{tag}|{body}"
    printed = {
        "consume": types("consume orders"),
        "consume --format": types(f"consume orders --format {fields}"),
        "consume --json": types("consume orders --json"),
        "consume --output yaml": types("consume orders --output yaml"),
        "messages browse --format": types(f"messages browse orders --max 100 --format {fields}"),
        "messages browse --json": types("messages browse orders --max 100 --json"),
        "metadata export": types("metadata export"),
        "acl list --json": types("acl list --json"),
        "user list --json": types("user list --json"),
        "audit --json": types("audit --json"),
    }
    files = {path.name: path.read_bytes().decode("latin-1") for path in folder.iterdir()}
    files["orders.parquet"] += f"{written.metadata}{written.schema_arrow.metadata}{written.read().to_pylist()}"
    return {f"export: {place}": text for place, text in (printed | files).items()}


def test_no_secret_is_found_where_the_marker_is(cluster: LocalCluster, types: Types, tmp_path: Path) -> None:
    planted, out = Planted(), tmp_path / "out"
    out.mkdir()
    said = plant(cluster, types, planted, tmp_path)
    assert len(planted.all) >= 20
    (node,) = cluster.nodes
    backups = cluster.data / "backups"
    ask(cluster, "POST", "/v1/tier/seal", {})
    assert until(lambda: any((tmp_path / "tier").rglob("*.seg")), 60, 0.2), "the tier has a segment"
    said.append(types(f"backup create --to {backups}"))
    types(f"support bundle --to {out / 'bundle.tar.gz'}")
    exported = exports(cluster, types, out / "exports")
    processes = "\n".join(
        " ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"]) if process.info
    )
    cluster.down()
    extract(out / "bundle.tar.gz", out / "bundle")
    own = {
        node.home / "data" / "SECRET",
        cluster.data / "users.key",
        cluster.data / "first-user",
        tmp_path / "secret",
        tmp_path / "plain_acl.yml",
    }
    places: dict[str, list[Path]] = {
        "log of the node": [Path(node.log)],
        "segments": sorted((node.home / "data").rglob("*.seg")),
        "data directory": [path for path in node.home.rglob("*") if path.is_file()],
        "backup": [path for path in backups.rglob("*") if path.is_file()],
        "tier": [path for path in (tmp_path / "tier").rglob("*") if path.is_file()],
        "support bundle": [path for path in (out / "bundle").rglob("*") if path.is_file()],
    }
    found: dict[str, list[str]] = {}
    for place, files in places.items():
        content = b"\n".join(path.read_bytes() for path in files if path not in own)
        assert MARKER.encode() in content, f"the marker is found in the {place}"
        if shown := found_in(content, planted.all):
            found[place] = shown
    texts = {"answers and errors": "\n".join(said), **exported}
    assert [place for place, text in texts.items() if MARKER not in text] == [], "the marker is in each"
    assert str(node.config_path) in processes
    for place, text in (texts | {"process list": processes}).items():
        if shown := found_in(text.encode(), planted.all):
            found[place] = shown
    assert found == {}
    left = [path for path in tmp_path.rglob("*") if path.is_file() and path not in own]
    assert [path for path in left if any(secret in path.read_bytes() for secret in planted.all.values())] == []
