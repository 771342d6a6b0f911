"""Foreign clients as processes of their own, beside a cluster of three node processes with default settings."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import raftmq
from raftmq.local.cluster import LocalCluster
from raftmq.local.process import free_base_port
from tests.support.pace import at_most
from tests.support.tools import how_to_get, lack

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).parent / "clients"
INSTALLED = Path(os.environ.get("RAFTMQ_COMPAT", ROOT / ".venv" / "compat"))
JAVA, NEWEST, OLDEST = "5.3.3", "5.5.0", "4.9.8"
"""Versions of the Java client: of kind "java", of kind "java-newest", and of kind "java-oldest"."""

MQADMIN = ("4.9.8", "5.5.0")


def _classes(version: str) -> tuple[str, str]:
    return "-cp", f"{INSTALLED}/java-{version}/classes:{INSTALLED}/java-{version}/lib/*"


def _oldest() -> tuple[str, str]:
    """Our program as compiled for a later version, with the client that its tools bring along."""
    return "-cp", f"{INSTALLED}/java-{JAVA}/classes:{INSTALLED}/tools-{OLDEST}/lib/*"


COMMANDS = {
    "cpp": [str(INSTALLED / "cpp" / "bin" / "python"), str(SCRIPTS / "cpp_client.py")],
    "js": ["node", str(SCRIPTS / "js_client.js")],
    "go": [str(INSTALLED / "go" / "matrix")],
    "java": ["java", *_classes(JAVA), "ForeignClient"],
    "java-newest": ["java", *_classes(NEWEST), "ForeignClient"],
    "java-oldest": ["java", *_oldest(), "ForeignClient"],
    "java-groups": ["java", *_classes(JAVA), "GroupClient"],
    "java-newest-groups": ["java", *_classes(NEWEST), "GroupClient"],
    "java-oldest-groups": ["java", *_oldest(), "GroupClient"],
    "filter": ["java", *_classes(NEWEST), "FilterTwin"],
    "java-transactions": ["java", *_classes(JAVA), "TransactionClient"],
    "java-newest-transactions": ["java", *_classes(NEWEST), "TransactionClient"],
    "java-oldest-transactions": ["java", *_oldest(), "TransactionClient"],
    "java-binary": ["java", "-Drocketmq.serialize.type=ROCKETMQ", *_classes(JAVA), "ForeignClient"],
}


LIGHT = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Options for a JVM that lives for a minute beside the nodes: it compiles once, and collects garbage in one thread."""


def environment(home: Path, java: Sequence[str] = ()) -> dict[str, str]:
    """Returns the environment of a foreign process, with further options for its JVM. The C++ and the Java client write
    their own logs into the home folder."""
    return {
        **os.environ,
        "HOME": str(home),
        "JAVA_TOOL_OPTIONS": " ".join((f"-Duser.home={home}", *LIGHT, *java)),
        "NODE_PATH": str(INSTALLED / "js" / "node_modules"),
    }


def all_servers(live: LocalCluster) -> str:
    """Returns the name servers of all groups of brokers: any node answers for all."""
    return ";".join(f"127.0.0.1:{node.namesrv_port}" for node in live.nodes)


class ForeignClient:
    """One foreign process. Its lines are collected by a thread; `wait` returns once enough of one kind are there."""

    def __init__(self, kind: str, home: Path, *arguments: str, java: Sequence[str] = ()) -> None:
        self.kind = kind
        self._errors = (home / f"{kind}-{id(self):x}.stderr").open("w+")
        self._process = subprocess.Popen(
            [*COMMANDS[kind], *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment(home, java),
        )
        self._lines: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(b"{"):  # the C++ library prints a line of its own at its end
                with self._changed:
                    self._lines.append(json.loads(line))
                    self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def lines(self, event: str) -> list[dict[str, Any]]:
        """The lines of one kind so far."""
        with self._changed:
            return [line for line in self._lines if line["event"] == event]

    def wait(
        self,
        event: str,
        count: int = 1,
        timeout_s: float = at_most(60),
        which: Callable[[dict[str, Any]], bool] | None = None,
    ) -> list[dict[str, Any]]:
        """The lines of one kind once there are `count` (that `which` accepts)."""

        def found() -> list[dict[str, Any]]:
            return [line for line in self._lines if line["event"] == event and (which is None or which(line))]

        with self._changed:
            self._changed.wait_for(lambda: len(found()) >= count or self._ended, timeout_s)
            assert len(found()) >= count, f"{len(found())} of {count} {event!r} lines\n{self.story()}"
            return found()

    def finish(self, timeout_s: float = at_most(60)) -> list[dict[str, Any]]:
        """Closes its input, which asks it to end, and returns all it said."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        code = self._process.wait(timeout_s)
        self._reader.join(timeout_s)
        assert code == 0, f"{self.kind} client ended with {code}\n{self.story()}"
        return self._lines

    def story(self) -> str:
        """Its last lines and what it printed besides, for a failed assertion."""
        self._errors.seek(0)
        tail = [json.dumps(line)[:300] for line in self._lines[-5:]]
        return "\n".join([f"{self.kind} client said:", *tail, self._errors.read()[-2000:]])

    def kill(self) -> None:
        """Ends it if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            if pipe is not None:
                pipe.close()


@pytest.fixture(scope="session", autouse=True)
def installed() -> None:
    """Says what to type when the clients are not there; a missing client is no reason to skip."""
    if not Path(COMMANDS["cpp"][0]).exists() or not (INSTALLED / "js" / "node_modules" / "ali-ons").is_dir():
        npm = how_to_get("npm")
        pytest.exit(f"the foreign clients are not in {INSTALLED}: run `make test-compat` ({npm})", returncode=2)


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three nodes with default settings, shared by all tests here; who kills a node brings it back."""
    live = LocalCluster(tmp_path_factory.mktemp("compat") / "data")
    live.up(3, free_base_port(12))
    yield live
    live.down()


@pytest.fixture(scope="session")
def mq(live: LocalCluster) -> Iterator[raftmq.Client]:
    """Our own client."""
    with raftmq.connect(live.servers) as client:
        yield client


Start = Callable[..., ForeignClient]


@pytest.fixture
def start(live: LocalCluster, tmp_path: Path) -> Iterator[Start]:
    """`start(kind, what, topic, *arguments)` runs a foreign client; all are ended after the test."""
    started: list[ForeignClient] = []

    def start(
        kind: str, what: str, topic: str, *arguments: str, servers: str = live.servers, java: Sequence[str] = ()
    ) -> ForeignClient:
        if kind.startswith("java") and not (INSTALLED / f"java-{JAVA}" / "lib").is_dir():
            lack("mvn", why="make test-compat builds the Java client with it")
        if kind == "go" and not Path(COMMANDS[kind][0]).exists():
            lack("go", why="make test-compat builds the Go client with it")
        client = ForeignClient(kind, tmp_path, what, servers, topic, *arguments, java=java)
        started.append(client)
        return client

    yield start
    for client in started:
        client.kill()


@pytest.fixture(params=MQADMIN)
def mqadmin(request: pytest.FixtureRequest, live: LocalCluster, tmp_path: Path) -> Callable[..., str]:
    """`mqadmin("topicList", ...)` prints what the command prints."""
    jars = INSTALLED / f"tools-{request.param}" / "lib"
    if not jars.is_dir():
        lack("mvn", why="make test-compat fetches mqadmin with it")
    (tmp_path / "conf").mkdir()
    for name in ("logback_tools.xml", "rmq.tools.logback.xml"):
        (tmp_path / "conf" / name).write_text("<configuration><root level='OFF'/></configuration>")

    def once(*arguments: str) -> str:
        done = subprocess.run(
            [
                "java",
                *LIGHT,
                f"-Drocketmq.home.dir={tmp_path}",
                f"-Duser.home={tmp_path}",
                f"-Drmq.logback.configurationFile={tmp_path}/conf/rmq.tools.logback.xml",
                "-cp",
                f"{jars}/*",
                "org.apache.rocketmq.tools.command.MQAdminStartup",
                *arguments,
                "-n",
                live.servers,
            ],
            capture_output=True,
            text=True,
            timeout=at_most(120),
            env={**os.environ, "HOME": str(tmp_path)},
            check=False,
        )
        return done.stdout + done.stderr

    def run(*arguments: str) -> str:
        """Gives its command again while the tool says that it waited too long: it gives a node 5 s from its own start,
        which on a busy machine it needs itself."""
        for _ in range(4):
            printed = once(*arguments)
            if "timeout" not in printed:
                break
        return printed

    return run


@pytest.fixture(scope="session")
def chance() -> random.Random:
    """The chance that chooses the moments of a client's life at which it is struck; RAFTMQ_COMPAT_SEED repeats a
    run."""
    seed = int(os.environ.get("RAFTMQ_COMPAT_SEED") or random.SystemRandom().randrange(1 << 32))
    assert sys.__stdout__
    sys.__stdout__.write(f"\n    RAFTMQ_COMPAT_SEED={seed}\n")
    return random.Random(seed)


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Prints a measured figure where it is seen without -s."""

    def tell(text: str) -> None:
        with capsys.disabled():
            sys.stdout.write(f"\n    {text}\n")

    return tell
