"""Everything that the run needs and this machine has not: images, Compose, the Go client.

All of it is made in one folder, which later runs use again. Nothing is installed on the machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fcntl import LOCK_EX, flock
from pathlib import Path
from resource import RLIMIT_NOFILE, RLIMIT_NPROC, getrlimit

from tests.support.tools import ROOT

PODMAN_COMPOSE = "1.6.0"
COMPOSE = {"v2": "v2.40.3", "v5": "v5.6.0"}
"""The versions of the module github.com/docker/compose: the one that runs, and the newest that can be built
(5.7.0 requires modules that the module proxy does not serve), which judges the file."""
IMAGES = ("raftmq:0.1.0", "raftmq-spark:0.1.0")
STAND_INS = ("prom/prometheus", "versity/versitygw")
RUN = Path("/run/raftmq-containers")
"""The folder for what podman knows of running containers: a new and empty one for each run."""
PROCESSES = 16384
"""The limit of processes for containers; podman's own is refused where root may not raise limits."""
NEEDED = {
    "podman": ("podman", "runc", "netavark", "aardvark-dns", "iptables", "ip", "unshare", "mmdebstrap", "go"),
    "docker": ("podman", "runc", "dockerd", "docker", "iptables", "ip", "unshare", "mmdebstrap", "go"),
}
PACKAGES = "podman runc netavark aardvark-dns iptables iproute2 mmdebstrap docker.io golang"
_PLACES = ("/usr/lib/podman", "/usr/sbin", "/sbin")


def missing(engine: str) -> str:
    """Returns the line that says what is missing here; "" if nothing is."""
    path = os.pathsep.join([os.environ["PATH"], *_PLACES])
    lacking = [command for command in NEEDED[engine] if not shutil.which(command, path=path)]
    if lacking:
        return f"not found: {', '.join(lacking)}; on Debian: apt-get install --no-install-recommends {PACKAGES}"
    if os.geteuid():
        return "run it as root: it makes network namespaces and starts a container engine of its own"
    return ""


class Ground:
    """The folder and what is in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.podman = self.folder / "podman"
        self.go_client = self.folder / "go-client"
        self.saved = self.folder / "images.txt"
        """The ids of the images in the archive for dockerd."""
        self.podman_compose = self.folder / "python" / "bin" / "podman-compose"

    def compose(self, kind: str) -> Path:
        """Returns the path of the Compose of that kind of COMPOSE."""
        return self.folder / f"compose-{COMPOSE[kind]}"

    @property
    def nofile(self) -> int:
        """The limit of open files that containers get: the one of the file if the machine allows it."""
        return min(65536, getrlimit(RLIMIT_NOFILE)[1])

    @property
    def processes(self) -> int:
        """The limit of processes of a user that containers get."""
        return min(PROCESSES, getrlimit(RLIMIT_NPROC)[1] % (1 << 63))

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Waits until no other run uses the folder, and keeps it from others meanwhile."""
        with (self.folder / "lock").open("w") as lock:
            flock(lock, LOCK_EX)
            yield

    def make(self, engine: str) -> None:
        """Makes what the engine needs; takes some 10 minutes the first time, and one minute with other sources."""
        self._configure()
        environment = self.environment()
        try:
            say("images of the public names (docker/stand-ins/make.sh)")
            stand_ins = [str(ROOT / "docker/stand-ins/make.sh"), str(self.folder / "stand-ins"), str(self.podman)]
            run(["sh", *stand_ins], environment)
            for image, file in zip(IMAGES, ("Dockerfile", "docker/spark/Dockerfile"), strict=True):
                say(f"image {image}")
                built = (
                    "build",
                    "--quiet",
                    "--format",
                    "docker",
                    "--network",
                    "host",
                    "--file",
                    str(ROOT / file),
                    "--tag",
                    image,
                    str(ROOT),
                )
                run([str(self.podman), *built], environment)
            if engine == "docker":
                self._save(environment)
        finally:
            shutil.rmtree(RUN, ignore_errors=True)
        self._make_client()
        if engine == "podman":
            self._make_podman_compose()
        else:
            for kind in COMPOSE:
                self._make_compose(kind)

    def environment(self) -> dict[str, str]:
        """Returns the variables for podman."""
        return {"CONTAINERS_CONF": str(self.folder / "containers.conf")}

    def images(self) -> list[str]:
        """Returns the names of all images, fully qualified as podman has them."""
        compose = (ROOT / "docker-compose.yml").read_text()
        named = [word for word in compose.split() if word.startswith(tuple(f"{name}:" for name in STAND_INS))]
        return [f"localhost/{name}" for name in IMAGES] + [f"docker.io/{name}" for name in named]

    def _configure(self) -> None:
        """Writes the configuration of podman, and the command with this folder's storage."""
        limits = [f'"nofile={self.nofile}:{self.nofile}"', f'"nproc={self.processes}:{self.processes}"']
        (self.folder / "containers.conf").write_text(
            f"[containers]\ndefault_ulimits = [{', '.join(limits)}]\n"
            '[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
            '[network]\nnetwork_backend = "netavark"\n'
        )
        (self.folder / "networks").mkdir(exist_ok=True)
        places = {"root": self.folder / "storage", "network-config-dir": self.folder / "networks", "runroot": RUN}
        given = [f"--{name} {place}" for name, place in {**places, "tmpdir": RUN / "tmp"}.items()]
        self.podman.write_text(f'#!/bin/sh\nexec {shutil.which("podman")} {" ".join(given)} "$@"\n')
        self.podman.chmod(0o755)

    def _save(self, environment: Mapping[str, str]) -> None:
        """Writes the images into an archive, unless it has them already."""
        asked = [str(self.podman), "inspect", "--type", "image", "--format", "{{.Id}}", *self.images()]
        ids = subprocess.run(asked, env={**os.environ, **environment}, capture_output=True, check=True).stdout
        if self.saved.exists() and self.saved.read_bytes() == ids:
            return
        self.saved.unlink(missing_ok=True)
        archive = self.folder / "images.tar"
        archive.unlink(missing_ok=True)
        save = ("save", "--quiet", "--multi-image-archive", "--output", str(archive), *self.images())
        run([str(self.podman), *save], environment)
        self.saved.write_bytes(ids)

    def _make_client(self) -> None:
        """The Go client of tests/compat, which is the unmodified one of the module proxy."""
        say("the Go client")
        run(["go", "build", "-o", str(self.go_client), "."], {}, ROOT / "tests/compat/go")

    def _make_podman_compose(self) -> None:
        if not self.podman_compose.exists():
            say(f"podman-compose {PODMAN_COMPOSE}")
            run([sys.executable, "-m", "venv", str(self.folder / "python")], {})
            pip = str(self.podman_compose.with_name("pip"))
            run([pip, "install", "--quiet", f"podman-compose=={PODMAN_COMPOSE}"], {})

    def _make_compose(self, kind: str) -> None:
        """Built from a copy of the module: `go install` refuses one that excludes others."""
        into = self.compose(kind)
        if into.exists():
            return
        say(f"docker compose {COMPOSE[kind]}")
        module = f"github.com/docker/compose/{kind}@{COMPOSE[kind]}"
        run(["go", "mod", "download", module], {}, self.folder)
        cache = subprocess.run(["go", "env", "GOMODCACHE"], capture_output=True, text=True, check=True).stdout.strip()
        with tempfile.TemporaryDirectory(dir=self.folder) as copy:
            source = Path(copy) / "source"
            shutil.copytree(Path(cache) / module, source, copy_function=shutil.copyfile)
            for each in [source, *source.rglob("*/")]:
                each.chmod(0o755)
            named = f"-X github.com/docker/compose/{kind}/internal.Version={COMPOSE[kind]}"
            run(["go", "build", "-ldflags", named, "-o", str(into), "./cmd"], {"CGO_ENABLED": "0"}, source)


def run(command: Sequence[str], environment: Mapping[str, str], folder: Path = ROOT) -> None:
    """Runs it with its errors on ours; raises CalledProcessError."""
    subprocess.run(command, env={**os.environ, **environment}, cwd=folder, stdout=sys.stderr, check=True)


def say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
