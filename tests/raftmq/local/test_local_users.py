"""`raftmq up --auth`: a first Super, enforced rules, and clients and commands that find the user. Real processes."""

from __future__ import annotations

import base64
import http.server
import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

import raftmq
from cluster.config.loading import load
from cluster.config.node_files import plan_nodes, write_configs
from raftmq import cli
from raftmq.client.discovery import LOCAL_CA, LOCAL_USER, found_folder
from raftmq.client.environment import REAL, user_of, with_credentials
from raftmq.client.tls import Tls, find_tls
from raftmq.local.access_files import make_first_user
from raftmq.local.cluster import LocalCluster
from raftmq.local.http.admin_http import ApiRefusal
from raftmq.local.local_users import client_options, enforce, has_users, lack_key, provide_key
from raftmq.local.process import free_base_port
from raftmq_wire.codes import ResponseCode
from tests.raftmq.local.conftest import Run
from tests.support.rows import each_row


@pytest.mark.ci
@pytest.mark.live
def test_one_command_makes_a_secured_cluster(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def told_by(*words: str) -> str:
        assert cli.run(list(words)) == 0
        return capfd.readouterr().err

    data = tmp_path / ".raftmq"
    cluster = LocalCluster(data)
    cluster.up(1, free_base_port(4), tls=True, auth=True)
    try:
        where = "--data", str(data)
        assert run("auth", "show", *where)[1]["nodes"][0]["mode"] == "enforce"
        assert run("topic", "create", "greetings", *where)[0] == 0
        monkeypatch.chdir(tmp_path)
        with raftmq.connect() as mq:  # finds cluster.json, and beside it the CA and the user
            mq.send("greetings", b"hello")
        with raftmq.connect(cluster.servers, **cluster.client_options) as mq:
            mq.send("greetings", b"again")
        assert run("consume", "greetings", "--max", "1", *where)[0] == 0
        found = f"{data} was found by the working directory: over TLS and as the user admin"
        assert told_by("consume", "greetings", "--max", "1").count(found) == 1
        assert found not in told_by("consume", "greetings", "--max", "1", *where)
        with raftmq.connect(cluster.servers, timeout_s=1) as named, pytest.raises(raftmq.RaftMQError):
            named.send("greetings", b"in the directory, and by an address")
        monkeypatch.chdir("/")
        stranger = raftmq.connect(cluster.servers, tls=client_options(data)["tls"])
        with stranger, pytest.raises(raftmq.Refused) as refused:
            stranger.send("greetings", b"let me in")
        assert refused.value.code == ResponseCode.NO_PERMISSION
        cluster.down()
        cluster.up()  # it stays what it is
        assert run("auth", "show", *where)[1]["nodes"][0]["mode"] == "enforce"
    finally:
        cluster.down()
    cluster.purge()
    assert not data.exists(), "the next cluster there has another CA and other users"


def test_only_a_client_that_finds_the_cluster_by_its_directory_signs_as_its_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / ".raftmq"
    data.mkdir()
    name, secret = user_of(make_first_user(data / LOCAL_USER))
    (data / "cluster.json").write_text(json.dumps({"nodes": [{"namesrv_port": 29300}]}))
    (data / LOCAL_CA).parent.mkdir()
    (data / LOCAL_CA).touch()
    monkeypatch.setattr(Tls, "context", lambda self: None)
    assert name == "admin"
    assert has_users(data)

    def counts(servers: str | None, environ: dict[str, str], cwd: Path) -> tuple[str, bool]:
        local = found_folder(servers, environ=environ, cwd=cwd)
        found = with_credentials(REAL, "", "", environ, local).credentials
        return ("" if found is None else found.access_key, find_tls(None, environ, local) is not None)

    def user(**environ: str) -> str:
        return counts(None, environ, tmp_path)[0]

    ours, there = "127.0.0.1:29300", {"RAFTMQ_DATA": str(data)}
    assert counts(None, {}, tmp_path / "below") == ("admin", True)
    assert counts(None, there, Path("/")) == ("admin", True)
    for cwd in (tmp_path, Path("/")):  # named servers: the directory changes nothing
        assert counts(ours, {}, cwd) == ("", False)
        assert counts(ours, there, cwd) == ("", False)
        assert counts(None, {"RAFTMQ_SERVERS": ours}, cwd) == ("", False)
    assert user(RAFTMQ_ACCESS_KEY="shop", RAFTMQ_SECRET_KEY="the-secret-of-shop") == "shop"
    (data / LOCAL_USER).chmod(0o640)
    with pytest.raises(ValueError, match="0640") as refused:
        user()
    assert secret not in str(refused.value)


class Nodes:
    """The HTTP API of a node that answers the changes of `up --auth`, each of `faults` once, and then as a leader."""

    def __init__(self, *faults: tuple[str | None, bool]) -> None:
        """`faults`: the error code of an answer ("": it hangs up, None: it is fine), and True if it made the change."""
        self.faults = list(faults)
        self.users: list[str] = []
        self.mode = "off"
        self.asked: list[str] = []
        nodes = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                users = [{"name": name} for name in nodes.users]
                page = {"users": users, "next": None}
                self._answer(200, page if "users" in self.path else {"total": len(users), "mode": nodes.mode})

            def do_POST(self) -> None:
                name = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["name"]
                if name in nodes.users:
                    self._answer(409, {"error": {"code": "exists", "message": f"user {name} exists", "hint": ""}})
                else:
                    self._change(lambda: nodes.users.append(name))

            def do_PUT(self) -> None:
                nodes_mode = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["mode"]
                self._change(lambda: setattr(nodes, "mode", nodes_mode))

            def _change(self, make: Callable[[], object]) -> None:
                nodes.asked.append(self.command)
                code, is_made = nodes.faults.pop(0) if nodes.faults else (None, True)
                if is_made:
                    make()
                if code is None:
                    self._answer(200, {})
                elif code:
                    self._answer(503, {"error": {"code": code, "message": "as the test says", "hint": ""}})

            def _answer(self, status: int, value: object) -> None:
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(value).encode())

            def log_message(self, *_: object) -> None:
                """Quiet."""

        self.server = http.server.HTTPServer(("127.0.0.1", 0), Handler)

    def enforce(self, data: Path, timeout_s: float = 20.0) -> None:
        """Has the first change made here."""
        thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            enforce(data, [replace(plan_nodes(data, 1, 29300)[0], admin_port=self.server.server_port)], timeout_s)
        finally:
            self.server.shutdown()
            thread.join()
            self.server.server_close()


@each_row(
    ("faults", "asked"),
    [
        ([], ["POST", "PUT"]),
        ([("no_leader", False)], ["POST", "POST", "PUT"]),
        ([("not_leader", False)] * 3, ["POST"] * 4 + ["PUT"]),
        ([("unknown_outcome", True)], ["POST", "PUT"]),
        ([("unknown_outcome", False)], ["POST", "POST", "PUT"]),
        ([("", True), ("", True)], ["POST", "PUT"]),
        (
            [("", False), (None, True), ("leader_unreachable", False), ("unknown_outcome", True)],
            ["POST", "POST", "PUT", "PUT"],
        ),
    ],
)
def test_the_first_change_goes_on_when_leadership_is_lost(
    tmp_path: Path, faults: list[tuple[str | None, bool]], asked: list[str]
) -> None:
    nodes = Nodes(*faults)
    nodes.enforce(tmp_path)
    assert (nodes.users, nodes.mode, nodes.faults) == (["admin"], "enforce", [])
    assert nodes.asked == asked, "what is there by then is not asked for again"


@pytest.mark.parametrize(("code", "timeout_s"), [("denied", 20.0), ("no_leader", 0.0)])
def test_the_first_change_fails_for_good(tmp_path: Path, code: str, timeout_s: float) -> None:
    nodes = Nodes(*[(code, False)] * 9)
    with pytest.raises(ApiRefusal) as refused:
        nodes.enforce(tmp_path, timeout_s)
    assert refused.value.code == code
    assert (nodes.users, nodes.mode) == ([], "off")


def test_a_key_that_a_person_chose_is_not_replaced(tmp_path: Path) -> None:
    nodes = plan_nodes(tmp_path, 2, 29300)
    write_configs(nodes)
    with nodes[0].config_path.open("a") as file:
        file.write('\n[auth]\nkey_file = "own.key"\n')
    assert lack_key(nodes) == nodes[1:]
    provide_key(tmp_path, nodes)
    files = [Path(load(node.config_path).auth.key_file).resolve() for node in nodes]
    assert files == [nodes[0].home / "own.key", tmp_path / "users.key"]
    assert [path.exists() for path in files] == [False, True]
    assert not lack_key(nodes)


def test_init_issues_certificates_and_names_them(tmp_path: Path, run: Run) -> None:
    nodes = plan_nodes(tmp_path / "d", 3, 29300)
    write_configs(nodes)
    files = [word for node in nodes for word in ("--config", str(node.config_path))]
    code, made = run("init", *files, "--tls", str(tmp_path / "pki"))
    assert code == 0, made
    assert made["certificates"] == [str(tmp_path / "pki" / f"node-{node.id}.crt") for node in nodes]
    config = load(nodes[1].config_path)
    assert (config.tls.mode, config.tls.ca_file) == ("enforcing", str(tmp_path / "d" / "n2" / "../../pki/ca.crt"))
    before = nodes[1].config_path.stat()
    assert run("init", *files, "--tls", str(tmp_path / "pki"))[1]["certificates"] == [], "it can run before every start"
    assert nodes[1].config_path.stat() == before
    assert len(base64.b64decode((tmp_path / "pki" / "ca.key").read_bytes().split(b"-----")[2])) > 100
