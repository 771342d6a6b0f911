"""The secrets of users, given in each way that there is, are found in nothing that Spark writes or says.

Whatever is searched holds a harmless marker as well, which is found, so that the search could fail.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import raftmq
from pyspark_raftmq.java import ensure_java
from raftmq.local.cluster import LocalCluster
from raftmq.local.process import free_base_port
from tests.support.pace import at_most
from tests.support.secret_forms import found_in
from tests.support.secured_spark_job import COPIES, GROUP, HIDDEN, MARKER, READY, TOPIC, Places, Wanted, prepare

pytestmark = [pytest.mark.live, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]
COUNT = 20
PATIENCE_S = at_most(600)
SECRETS = {
    name: f"planted/{number}+of={name}?~1f0c9a77".encode()
    for number, name in enumerate(("options", "wrong", "file", "environment"))
}
"""Their characters are written in another way in URLs."""
RIGHTS = {
    f"Topic:{MARKER}*": ["Sub", "Get", "Pub"],
    f"Topic:{HIDDEN}": ["Pub"],
    "Group:TOOLS_CONSUMER": ["Sub"],
    f"Group:{GROUP}": ["Sub", "Create"],
    "Group:query *": ["Pub"],
    f"Group:write {MARKER}*": ["Pub"],
}


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[LocalCluster]:
    """One node that takes TLS alone, and a user for each way to give a secret."""
    cluster = LocalCluster(tmp_path / "data")
    cluster.up(1, free_base_port(4), tls=True, auth=True)
    with raftmq.connect(cluster.servers, **cluster.client_options) as root:
        for topic in (TOPIC, COPIES, HIDDEN):
            root.admin.create_topic(topic, 2)
        root.send_batch(TOPIC, [b"%s-body-%d" % (MARKER.encode(), number) for number in range(COUNT)], queue_id=0)
        for name, secret in SECRETS.items():
            root.admin.create_user(name, secret.decode())
            for resource, actions in RIGHTS.items():
                root.admin.set_rule(name, resource, actions)
    yield cluster
    cluster.down()


@pytest.fixture
def job(secured: LocalCluster, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A driver that has read and written, and waits."""
    ensure_java()
    user_file = tmp_path / "user"
    user_file.write_text(f"file\n{SECRETS['file'].decode()}\n")
    user_file.chmod(0o600)
    wanted = Wanted(
        servers=secured.servers,
        ca=str(secured.data / "tls" / "ca.crt"),
        user="options",
        secret=SECRETS["options"].decode(),
        wrong=f"{SECRETS['wrong'].decode()}-but-wrong",
        user_file=str(user_file),
        env_user="environment",
        env_secret=SECRETS["environment"].decode(),
    )
    folder = tmp_path / "spark"
    env = {**os.environ, "PYTHONPATH": str(ROOT), **prepare(folder), "TMPDIR": str(folder / "local")}
    command = [sys.executable, "-m", "tests.support.secured_spark_job", str(folder)]
    with (folder / "driver.log").open("wb") as log:
        made = subprocess.Popen(
            command,
            cwd=folder,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
        assert made.stdin is not None
        made.stdin.write(json.dumps(wanted._asdict()).encode() + b"\n")
        made.stdin.flush()
        yield made
        if made.poll() is None:
            os.killpg(made.pid, signal.SIGKILL)
        made.communicate()


def said_until_ready(job: subprocess.Popen[bytes]) -> bytes:
    """Returns the driver's output until it waits."""
    said = b""
    with selectors.DefaultSelector() as poll:
        assert job.stdout is not None
        poll.register(job.stdout, selectors.EVENT_READ)
        while READY.encode() not in said:
            assert poll.select(PATIENCE_S), "the driver waits in time"
            more = os.read(job.stdout.fileno(), 1 << 16)
            assert more, f"the driver ended: {said.decode()}"
            said += more
    return said


def commands_of(pid: int) -> bytes:
    """Returns the command lines of a process and of all that it started."""
    whole = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    return "\n".join(" ".join(each.cmdline()) for each in whole).encode()


def contents(folder: Path) -> bytes:
    """Returns the contents and the names of all files below a folder."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return b"\n".join(path.read_bytes() + str(path.relative_to(folder)).encode() for path in files)


def test_nothing_that_spark_writes_has_a_secret(job: subprocess.Popen[bytes], tmp_path: Path) -> None:
    folder = tmp_path / "spark"
    places = Places(folder)
    searched = {"output": said_until_ready(job)}
    for name in ("local", "work", "checkpoints"):
        searched[f"{name}, while it runs"] = contents(getattr(places, name))
    searched["process list"] = commands_of(job.pid)
    searched["events, while it runs"] = contents(places.events)
    said, _ = job.communicate(b"end\n", PATIENCE_S)
    assert job.returncode == 0, said
    for name in ("events", "work", "parquet", "checkpoints"):
        searched[name] = contents(getattr(places, name))
    for each in sorted(places.checkpoints.iterdir()):
        if each.name != "fails":  # it never came to an offset
            searched[f"checkpoint {each.name}"] = contents(each)
    searched["errors and plans"] = places.told.read_bytes()
    searched["driver's log"] = (folder / "driver.log").read_bytes()
    assert [place for place, content in searched.items() if MARKER.encode() not in content] == []
    found = {place: names for place, content in searched.items() if (names := found_in(content, SECRETS))}
    assert found == {}
    files = [path for path in folder.rglob("*") if path.is_file() and places.home not in path.parents]
    assert [path for path in files if found_in(path.read_bytes(), SECRETS)] == []
