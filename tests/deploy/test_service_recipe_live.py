"""The commands of the docs for services of systemd and for Prometheus, as they stand there: three machines are three
folders, and the user of the service is one who may write nowhere else."""

from __future__ import annotations

import asyncio
import base64
import os
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftmq.local.process import free_base_port
from raftmq_wire.user_file import USER_VARIABLES
from tests.support.pace import at_most
from tests.support.wait_until import until

pytestmark = [pytest.mark.ci, pytest.mark.live]

ROOT = Path(__file__).parents[2]
NOBODY = 65534
START = "systemctl enable --now raftmq\n"


def blocks(page: str) -> list[str]:
    """The commands of a page that say that they are run here."""
    text = (ROOT / "docs" / page).read_text()
    return re.findall(rf"<!-- run by tests/deploy/{Path(__file__).name} -->\n```sh\n(.*?)```\n", text, re.DOTALL)


def service_user() -> tuple[int, int]:
    """Who runs the nodes: not root, if we are root and another user may read this checkout."""
    if os.getuid():
        return os.getuid(), os.getgid()
    asked = [sys.executable, "-c", "import raftmq.cli, cluster.node.__main__"]
    try:
        subprocess.run(asked, cwd=ROOT, user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):  # OSError: it may not even enter the folder of this checkout
        return 0, 0
    return NOBODY, NOBODY


class Machines:
    """Machine N has its /etc and /var/lib in a folder of its own, and the folder that root works in."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.base, (self.uid, self.gid) = folder, free_base_port(12), service_user()
        self.tool = folder / "as_the_service"
        self.running: list[subprocess.Popen[bytes]] = []
        self.env = {name: value for name, value in os.environ.items() if name not in USER_VARIABLES}
        self.env |= {"PYTHONPATH": str(ROOT), "HOME": str(folder)}
        self.raftmq("config", "init", *["127.0.0.1"] * 3, "--data-dir", "/var/lib/raftmq/data", "--to", str(folder))
        key = base64.b64encode(os.urandom(32))
        for node in (1, 2, 3):
            text = (folder / f"n{node}/raftmq.toml").read_text()
            for n in range(3):
                for offset, usual in enumerate((10911 + 10 * n, 10912 + 10 * n, 9876 + n, 9644 + n)):
                    text = re.sub(rf"\b{usual}\b", str(self.base + 4 * n + offset), text)
            text += '\n[auth]\nkey_file = "/etc/raftmq/users.key"\nfirst_user_file = "/etc/raftmq/first-user"\n'
            at = self.root_of(node)
            for place in ("etc", "var/lib", "work"):
                (at / place).mkdir(mode=0o755, parents=True)
            (at / "work/raftmq.toml").write_text(self.here(node, text))
            (at / "work/users.key").write_bytes(key)
        become = f"os.setgroups([]); os.setgid({self.gid}); os.setuid({self.uid}); " if self.uid != os.getuid() else ""
        self.tool.write_text(
            f"#!{sys.executable}\nimport os, sys\n{become}\n"
            f"os.execv({sys.executable!r}, [{sys.executable!r}, '-m', 'raftmq', *sys.argv[1:]])\n"
        )
        self.tool.chmod(0o755)

    def root_of(self, node: int) -> Path:
        return self.folder / f"machine{node}"

    @property
    def admin(self) -> str:
        return f"127.0.0.1:{self.base + 3}"

    def here(self, node: int, text: str) -> str:
        """The text, with this machine's places."""
        at = self.root_of(node)
        text = text.replace("sudo -u raftmq /opt/raftmq/bin/raftmq", str(self.tool))
        text = text.replace("-o raftmq -g raftmq", f"-o {self.uid} -g {self.gid}")
        text = text.replace("/etc/raftmq", f"{at}/etc/raftmq").replace("/var/lib/raftmq", f"{at}/var/lib/raftmq")
        return text.replace("10.0.0.1:9644", self.admin).replace("SOMEWHERE_SAFE", f"{self.folder}/ca.key")

    def type(self, node: int, commands: str) -> str:
        """Types the commands as root of the machine, and starts its service if they do."""
        typed, start, rest = commands.partition(START)
        assert rest == ""
        asked = ["sh", "-eu", "-c", self.here(node, typed)]
        work = self.root_of(node) / "work"
        done = subprocess.run(asked, cwd=work, env=self.env, input="y\n", capture_output=True, text=True)
        assert done.returncode == 0, typed + done.stdout + done.stderr
        if start:
            self.serve(node)
        return done.stdout

    def raftmq(self, *words: str) -> None:
        subprocess.run([sys.executable, "-m", "raftmq", *words], env=self.env, check=True, capture_output=True)

    def serve(self, node: int) -> None:
        """The service: as its user, from the root folder."""
        other = self.uid != os.getuid()
        config = self.root_of(node) / "etc/raftmq/raftmq.toml"
        with (self.folder / f"{node}.log").open("ab") as log:
            self.running.append(
                subprocess.Popen(
                    [sys.executable, "-m", "raftmq", "serve", "--config", str(config)],
                    cwd="/",
                    env=self.env,
                    stdout=log,
                    stderr=log,
                    user=self.uid if other else None,
                    group=self.gid if other else None,
                    extra_groups=[] if other else None,
                )
            )

    def get(self, node: int, path: str, token: str = "") -> tuple[int, str]:
        """The status and the body that the node's HTTP API answers over TLS; 0 while it does not."""
        trust = ssl.create_default_context(cafile=self.root_of(1) / "etc/raftmq/pki/ca.crt")
        url = f"https://127.0.0.1:{self.base + 4 * (node - 1) + 3}{path}"
        asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
        try:
            with urllib.request.urlopen(asked, timeout=at_most(5), context=trust) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as refused:
            return refused.code, ""
        except OSError:
            return 0, ""

    def log(self, node: int) -> str:
        return (self.folder / f"{node}.log").read_text()

    def stop(self) -> None:
        for process in self.running:
            process.kill()
            process.wait()


@pytest.fixture
def machines() -> Iterator[Machines]:
    with tempfile.TemporaryDirectory(prefix="raftmq-service-") as folder:  # pytest's own lets no other user in
        Path(folder).chmod(0o755)
        made = Machines(Path(folder))
        try:
            yield made
        finally:
            made.stop()


def test_the_recipe_works_as_it_stands(machines: Machines) -> None:
    folders, first, other, last = blocks("running.md")
    for node in (1, 2, 3):
        machines.type(node, folders)
    machines.type(1, first)
    asyncio.run(until(lambda: machines.get(1, "/v1/health/live")[0], every_s=0.2))
    for node in (2, 3):
        for copied in ("var/lib/raftmq/data/SECRET", "etc/raftmq/pki/ca.crt", "etc/raftmq/pki/ca.key"):
            shutil.copy(machines.root_of(1) / copied, machines.root_of(node) / "work")
        machines.type(node, other)

    def ready() -> bool:
        assert all(process.poll() is None for process in machines.running), [machines.log(n) for n in (1, 2, 3)]
        return all(machines.get(node, "/v1/health/ready")[0] == 200 for node in (1, 2, 3))

    asyncio.run(until(ready, every_s=0.2))

    def has_a_super() -> bool:
        return any("the first Super was made" in machines.log(node) for node in (1, 2, 3))

    asyncio.run(until(has_a_super, every_s=0.2))
    machines.type(1, last)
    for node in (1, 2, 3):
        at = machines.root_of(node)
        for path in [*(at / "etc").rglob("*"), *(at / "var/lib").rglob("*")]:
            assert (path.stat().st_uid, path.stat().st_gid) == (machines.uid, machines.gid), path
            assert not path.is_file() or path.stat().st_mode & 0o037 == 0, path
        assert not (at / "etc/raftmq/pki/ca.key").exists()

    (scrape,) = blocks("metrics.md")
    tool = f'raftmq() {{ {machines.tool} "$@" --admin {machines.admin}; }}\n'
    secret, ca = (machines.root_of(1) / place for place in ("var/lib/raftmq/data/SECRET", "etc/raftmq/pki/ca.crt"))
    machines.env.update(RAFTMQ_SECRET_FILE=str(secret), RAFTMQ_TLS_CA=str(ca))
    machines.type(1, tool + scrape)
    token = (machines.root_of(1) / "work/raftmq-token").read_text().strip()
    assert machines.get(1, "/metrics")[0] == 401
    for node in (1, 2, 3):
        status, metrics = machines.get(node, "/metrics", token)
        assert status == 200
        assert "raftmq_raft_writes_open" in metrics
    assert machines.get(1, "/v1/users", token)[0] == 403
