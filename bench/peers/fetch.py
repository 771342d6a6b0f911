"""Fetches the other systems from package registries, in pinned versions, into a cache folder below .venv.

Each function returns at once if the cache has that version. An incomplete download is never used: it goes into a folder
of its own that is renamed when it is complete.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from bench.peers.system import Unavailable

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".venv" / "peers"
MANIFESTS = Path(__file__).parent / "manifests"
PATIENCE_S = 600.0

ROCKETMQ = "4.9.7"
ROCKETMQ_5 = "5.5.0"


class GoPeer(NamedTuple):
    """A server that is built from its Go module."""

    name: str
    """The name of the folder below `manifests`, and of the binary."""
    package: str
    version: str


ETCD = GoPeer("etcd", "go.etcd.io/etcd/server/v3", "3.6.16")
ETCD_3_4 = GoPeer("etcd-3.4", "go.etcd.io/etcd", "3.4.16")
"""The newest etcd 3.4 that the module proxy has. Tags of 3.4 do not fit the module's path, so the proxy has only those
commits of 3.4 that another module has required."""
NATS = GoPeer("nats", "github.com/nats-io/nats-server/v2", "2.14.9")
NATS_2_9 = GoPeer("nats-2.9", "github.com/nats-io/nats-server/v2", "2.9.25")


def rocketmq(release: str) -> Path:
    """Fetches a release from Maven; returns the folder with the jars of broker and name server. Raises Unavailable."""

    def make(into: Path) -> None:
        maven, _ = tool("mvn", "Maven"), tool("java", "Java")
        pom = MANIFESTS / "rocketmq" / "pom.xml"
        repository = f"-Dmaven.repo.local={CACHE / 'm2'}"
        what = [f"-Drocketmq={release}", f"-Dinto={into}", "dependency:copy-dependencies"]
        run([maven, "-q", "-B", "-f", str(pom), repository, *what])

    return once(CACHE / f"rocketmq-{release}", make) / "lib"


def built(peer: GoPeer) -> Path:
    """Builds the binary if necessary and returns its path. It is built with the module `manifests/<name>`, whose go.sum
    pins it and its dependencies. Raises Unavailable."""

    def make(into: Path) -> None:
        go = tool("go", "Go")
        environment = {
            "GOMODCACHE": str(CACHE / "go" / "mod"),
            "GOCACHE": str(CACHE / "go" / "build"),
            "GOTOOLCHAIN": "local",
            "GOFLAGS": "-buildvcs=false -mod=readonly -modcacherw",
        }
        command = [go, "build", "-trimpath", "-o", str(into / peer.name), peer.package]
        run(command, MANIFESTS / peer.name, environment)

    return once(CACHE / f"{peer.name}-{peer.version}", make) / peer.name


@contextmanager
def folder_of_a_run() -> Iterator[Path]:
    """Makes a new folder in the cache for the data of one run. It is removed afterwards, as are folders left by killed
    runs.

    Raises SystemExit if another run is in progress in this tree, because the two would disturb each other.
    """
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit(f"another run holds {CACHE / 'lock'}") from None
        for left in CACHE.glob("run-*"):
            shutil.rmtree(left)
        with tempfile.TemporaryDirectory(prefix="run-", dir=CACHE) as directory:
            yield Path(directory)


def tool(command: str, name: str) -> str:
    """Returns the path of the command `command`. Raises Unavailable, with `name` in its text, if it is not
    installed."""
    found = shutil.which(command)
    if found is None:
        raise Unavailable(f"{name} is not installed ({command} was not found)")
    return found


def once(place: Path, make: Callable[[Path], None]) -> Path:
    """Returns `place`. Unless it exists, `make` fills it first."""
    if place.is_dir():
        return place
    part = place.with_name(place.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    make(part)
    part.rename(place)
    return place


def run(command: Sequence[str], where: Path | None = None, environment: Mapping[str, str] | None = None) -> None:
    """Runs a command to its end. Raises Unavailable with the line of its output that names the error."""
    try:
        done = subprocess.run(
            command,
            cwd=where,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{Path(command[0]).name} did not end within {PATIENCE_S:.0f} s") from None
    if done.returncode:
        lines = done.stdout.strip().splitlines() or ["it printed nothing"]
        told = next((line for line in lines if "error" in line.lower()), lines[-1])
        raise Unavailable(f"{Path(command[0]).name} failed: {told.strip()}")
