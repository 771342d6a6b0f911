"""Three nodes that are made one by one, as on three machines; and one whose disk is emptied, again and again."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from raftmq import cli
from raftmq.client import Denied, connect
from raftmq.local.process import free_base_port
from raftmq_wire.user_file import USER_VARIABLES
from statemachine.levels import LEVEL
from tests.support.pace import at_most
from tests.support.wait_until import until

pytestmark = [pytest.mark.ci, pytest.mark.live]

FAILED, REFUSED = 1, 5


class Machines:
    """Each node with a folder of its own, as `raftmq config init` writes it, and its process."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.base = folder, free_base_port(12)
        self.running: dict[int, subprocess.Popen[bytes]] = {}
        self.run("config", "init", *["127.0.0.1"] * 3, "--to", str(folder))
        moved: dict[int, int] = {}
        for n in range(3):
            usual = (10911 + 10 * n, 10912 + 10 * n, 9876 + n, 9644 + n)
            moved.update(zip(usual, range(self.base + 4 * n, self.base + 4 * n + 4), strict=True))
        for node in (1, 2, 3):
            text = self.config(node).read_text()
            for old, new in moved.items():
                text = text.replace(f"{old}\n", f"{new}\n").replace(f'{old}"', f'{new}"')
            self.config(node).write_text(text)

    def config(self, node: int) -> Path:
        return self.folder / f"n{node}" / "raftmq.toml"

    def data(self, node: int) -> Path:
        return self.folder / f"n{node}" / "data"

    def admin(self, node: int) -> str:
        return f"127.0.0.1:{self.base + 4 * (node - 1) + 3}"

    @property
    def servers(self) -> str:
        return ";".join(f"127.0.0.1:{self.base + 4 * n + 2}" for n in range(3))

    def run(self, *arguments: str, code: int = 0) -> str:
        """Runs the command in this process; it returns what was printed."""
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            found = cli.run(list(arguments))
        assert found == code, printed.getvalue()
        return printed.getvalue()

    def init(self, node: int, *options: str, code: int = 0) -> str:
        return self.run("init", *options, "--config", str(self.config(node)), code=code)

    def join(self, node: int, *options: str, code: int = 0) -> str:
        return self.init(node, "--join", self.admin(1), "--secret", str(self.folder / "SECRET"), *options, code=code)

    def serve(self, node: int) -> None:
        with (self.folder / f"{node}.log").open("ab") as log:
            command = [sys.executable, "-m", "raftmq", "serve", "--config", str(self.config(node))]
            self.running[node] = subprocess.Popen(command, stderr=log, stdout=log, env=os.environ)

    def stop(self) -> None:
        for process in self.running.values():
            process.kill()
            process.wait()

    def printed(self, line: str, node: int, code: int = 0) -> str:
        """Types a printed command on the machine of another node, whose file has the same path there."""
        program, *words = shlex.split(line.replace(str(self.config(1)), str(self.config(node))))
        assert program == "raftmq"
        return self.run(*words, code=code)

    def wait_for_port(self, node: int) -> None:
        """Waits until the node listens, whatever it speaks."""

        def listens() -> bool:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.base + 4 * (node - 1) + 3), 1):
                return True
            return False

        asyncio.run(until(listens, every_s=0.2))

    def ask(self, node: int, path: str) -> Any:
        with urllib.request.urlopen(f"http://{self.admin(node)}{path}", timeout=at_most(5)) as reply:
            return json.load(reply)

    def wait(self, node: int) -> None:
        """Waits until the node serves its HTTP API: a majority may do all else without it."""

        def answers() -> bool:
            with suppress(urllib.error.URLError):
                return bool(self.ask(node, "/v1/status"))
            return False

        asyncio.run(until(answers, every_s=0.2))


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    made = Machines(tmp_path_factory.mktemp("machines"))
    try:
        yield made
    finally:
        made.stop()


def test_a_cluster_is_made_machine_by_machine(machines: Machines) -> None:
    refused = machines.run("serve", "--config", str(machines.config(1)), code=REFUSED)
    assert "raftmq init --first" in refused
    told = machines.init(1, "--first")
    assert f"raftmq init --join {machines.admin(1)}" in told
    assert "nothing to do" in machines.init(1, "--first")
    shutil.copy(machines.data(1) / "SECRET", machines.folder / "SECRET")
    assert "start it first" in machines.join(2, code=4)
    assert not machines.data(2).exists()
    machines.serve(1)
    for node in (2, 3):
        assert "created a node" in machines.join(node, "--wait", "60")
        assert "nothing to do" in machines.join(node)
        assert sorted(path.name for path in machines.data(node).parent.iterdir()) == ["data", "raftmq.toml"]
    for node in (2, 3):
        machines.serve(node)
        machines.wait(node)
    asyncio.run(until(lambda: machines.ask(1, "/v1/status")["leader"], every_s=0.2))
    with connect(machines.servers) as client:
        client.admin.create_topic("t", queues=1)
        with client.producer() as producer:
            for number in range(100):
                producer.send("t", b"%d" % number)
    uuids = {machines.ask(node, "/v1/status")["cluster_id"] for node in (1, 2, 3)}
    assert len(uuids) == 1


def test_an_emptied_disk_is_never_a_voter_again(machines: Machines) -> None:
    machines.running[2].kill()
    machines.running[2].wait()
    shutil.rmtree(machines.data(2))
    for _ in range(5):
        assert "raftmq node replace 2" in machines.join(2, code=REFUSED)
        assert "raftmq node replace 2" in machines.run("serve", "--config", str(machines.config(2)), code=REFUSED)
        assert not machines.data(2).exists()
    assert "raftmq node replace 1" in _with_lost_first(machines)


def _with_lost_first(machines: Machines) -> str:
    """The machine of the first node loses its disk: `--first` finds that the others run."""
    machines.running[1].kill()
    machines.running[1].wait()
    kept = machines.data(1).rename(machines.folder / "kept")
    try:
        return machines.init(1, "--first", code=REFUSED)
    finally:
        with contextlib.suppress(OSError):
            machines.data(1).rmdir()
        kept.rename(machines.data(1))
        machines.serve(1)


def test_a_new_node_on_the_same_machine_takes_the_place(machines: Machines) -> None:
    text = machines.config(2).read_text()
    text = text.replace("[node]\nid = 2", "[node]\nid = 4").replace("[[peers]]\nid = 2", "[[peers]]\nid = 4")
    (machines.folder / "n4").mkdir()
    machines.config(4).write_text(text)
    asked = ["node", "replace", "2", "--config", str(machines.config(4)), "--via", machines.admin(3)]
    command = [sys.executable, "-m", "raftmq", *asked, "--secret", str(machines.folder / "SECRET")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as replacing:
        asyncio.run(
            until(lambda: (machines.data(4) / "IDENTITY").exists() or replacing.poll() is not None, every_s=0.1)
        )
        machines.serve(4)
        told, _ = replacing.communicate(timeout=at_most(120))
    assert replacing.returncode == 0, told.decode()
    assert b"node 2 is replaced: voters 1, 3" in told
    members = machines.ask(3, "/v1/members?consistency=linearizable")["members"]
    assert [member["id"] for member in members] == [1, 3, 4]


@pytest.fixture
def secured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machines]:
    """Machines whose files name a key and a first user, and a folder pki with a CA."""
    for name in USER_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    made = Machines(tmp_path)
    (tmp_path / "users.key").write_bytes(base64.b64encode(os.urandom(32)))
    (tmp_path / "users.key").chmod(0o600)
    for node in (1, 2, 3):
        with made.config(node).open("a") as file:
            file.write(
                f'\n[auth]\nkey_file = "{tmp_path}/users.key"\nfirst_user_file = "{tmp_path}/first-user-{node}"\n'
            )
    made.run("cert", "ca", "--out", str(tmp_path / "pki"))
    try:
        yield made
    finally:
        made.stop()


def test_another_ca_is_not_made_for_another_node(secured: Machines) -> None:
    elsewhere = secured.folder / "elsewhere"
    for lacks in ("ca.crt", "ca.key"):
        told = secured.init(2, "--join", secured.admin(1), "--tls", str(elsewhere), code=2)
        assert f"there is no {elsewhere / lacks}" in told
        elsewhere.mkdir(exist_ok=True)
        shutil.copy(secured.folder / "pki" / "ca.crt", elsewhere)
    assert not secured.data(2).exists()


def test_a_cluster_is_secured_from_the_start(secured: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recipe of docs/machines.md, on addresses of this machine, by the steps that are printed."""
    monkeypatch.chdir(secured.folder)
    pki = secured.folder / "pki"
    steps = secured.init(1, "--first", "--tls", "pki").splitlines()[1:]
    name, secret = (secured.folder / "first-user-1").read_text().split()
    assert steps[0] == f"1. start this node: raftmq serve --config {secured.config(1)}"
    secured.serve(1)
    for copied in (secured.data(1) / "SECRET", "pki/ca.crt", "pki/ca.key", secured.folder / "users.key"):
        assert str(copied) in steps[1]
    shutil.copy(secured.data(1) / "SECRET", "SECRET")
    join, remove, _ = steps[2].removeprefix("3. on each of them: ").split(" && ")
    assert remove == "rm SECRET pki/ca.key"
    secured.wait_for_port(1)
    secured.printed(join, 2)

    plain = join.replace(" --tls pki", "")
    assert "the same with --tls DIR" in secured.printed(plain, 3, code=FAILED)
    with monkeypatch.context() as patch:
        patch.setenv("RAFTMQ_TLS_CA", "pki/ca.crt")
        told = secured.printed(plain, 3)
    certify, serve = (line.strip() for line in told.splitlines()[-2:])
    assert serve == f"raftmq serve --config {secured.config(3)}"
    secured.printed(certify.partition(" (")[0].replace("DIR", "pki"), 3)  # without it, node 3 would stay alone
    for node in (2, 3):
        secured.serve(node)
    (secured.folder / "SECRET").unlink()
    (pki / "ca.key").unlink()
    assert "nothing to do" in secured.printed(join, 2)
    monkeypatch.setenv("RAFTMQ_TLS_CA", str(pki / "ca.crt"))

    def leads() -> bool:
        return "leads" in secured.run("node", "list", "--admin", secured.admin(1))

    def has_its_level() -> bool:
        return f"the cluster has level {LEVEL}\n" in secured.run("upgrade", "plan", "--admin", secured.admin(1))

    asyncio.run(until(leads, every_s=0.2))
    asyncio.run(until(has_its_level, every_s=0.2))
    number, _, enforce = steps[-1].partition(". as soon as 2 nodes run, here: ")
    assert (number, len(steps)) == ("5", 5)
    monkeypatch.delenv("RAFTMQ_TLS_CA")
    secured.printed(enforce.partition("    (")[0] + " --yes", 1)
    monkeypatch.setenv("RAFTMQ_TLS_CA", str(pki / "ca.crt"))
    with connect(secured.servers) as stranger, pytest.raises(Denied):
        stranger.send("orders", b"unsigned")
    with connect(secured.servers, access_key=name, secret_key=secret) as client:
        client.admin.create_topic("orders", queues=1)
        client.send("orders", b"signed")
