"""The engines, behind the few commands that the story gives them: podman 4.3 with podman-compose, dockerd with Compose.

Each runs in the namespaces of `__main__`, with its images in the folder of `ground`.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tests.containers.ground import COMPOSE, Ground, run, say
from tests.support.tools import ROOT

PROJECT = "raftmq"
NODES = ("n1", "n2", "n3")
PROFILES = ("metrics", "tier", "spark")
PATIENCE_S = 600.0


def wait(reached: Callable[[], object], what: str, patience_s: float = PATIENCE_S) -> None:
    """Waits until `reached()` is true; fails after `patience_s`."""
    until = time.monotonic() + patience_s
    while not reached():
        assert time.monotonic() < until, what
        time.sleep(0.3)


class Engine(ABC):
    """docker-compose.yml, a file of changes for this run, and the containers of the project."""

    command: Sequence[str]
    """The command of the engine."""
    compose: Sequence[str]
    """The command of its Compose, without files."""
    joint: str
    """The separator in names of containers."""

    def __init__(self, ground: Ground) -> None:
        self.ground = ground
        self.environment: dict[str, str] = {"RAFTMQ_NOFILE": str(ground.nofile)}
        self.changes = ground.folder / "changes.yml"

    @abstractmethod
    def start(self) -> str:
        """Starts it with all images; returns the versions."""

    @abstractmethod
    def up(self, *services: str, profiles: Sequence[str] = ()) -> None:
        """Creates and starts the services, or those without a profile, and waits until the nodes are healthy."""

    @abstractmethod
    def health(self, service: str) -> str:
        """Returns the health of the container now: healthy, starting, unhealthy."""

    def is_healthy(self, service: str) -> bool:
        return self.health(service) == "healthy"

    def end(self) -> None:
        """Removes all of the project, with its volumes."""
        self.file("down", "--volumes", profiles=PROFILES, code=None)

    def down(self) -> None:
        """Removes the containers, those of profiles as well; the volumes stay."""
        self.file("down", profiles=PROFILES)

    def file(self, *words: str, profiles: Sequence[str] = (), code: int | None = 0) -> str:
        """Runs Compose on the files."""
        named = ("-f", str(ROOT / "docker-compose.yml"), "-f", str(self.changes))
        chosen = [word for profile in profiles for word in ("--profile", profile)]
        return self.run([*self.compose, *named, *chosen, *words], code)

    def run(self, command: Sequence[str], code: int | None = 0, given: str = "") -> str:
        """Runs the command; returns its output. Fails on another exit code; None: any will do."""
        done = subprocess.run(
            command,
            input=given,
            env={**os.environ, **self.environment},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert code is None or done.returncode == code, f"{' '.join(command)}: {done.returncode}\n{done.stdout}"
        return done.stdout

    def engine(self, *words: str, code: int | None = 0, given: str = "") -> str:
        """Runs a command of the engine."""
        return self.run([*self.command, *words], code, given)

    def name(self, service: str) -> str:
        """Returns the name of the service's container."""
        return self.joint.join((PROJECT, service, "1"))

    def inside(self, service: str, *command: str, code: int | None = 0) -> str:
        """Runs the command in the service's container; returns its output."""
        return self.engine("exec", self.name(service), *command, code=code)

    def inspect(self, service: str) -> Any:
        """Returns what the engine says about the container."""
        return json.loads(self.engine("inspect", "--type", "container", self.name(service)))[0]

    def pid(self, service: str) -> int:
        """Returns the pid of its first process; 0 if it does not run."""
        return int(self.inspect(service)["State"]["Pid"])

    def logs(self, service: str) -> str:
        return self.engine("logs", self.name(service), code=None)

    def volume(self, name: str) -> Path:
        """Returns the folder of the volume on this machine."""
        told = json.loads(self.engine("volume", "inspect", f"{PROJECT}_{name}"))
        return Path(told[0]["Mountpoint"])

    def beside(self, service: str) -> list[str]:
        """The options of a container that has the network of the service's."""
        return ["--network", f"container:{self.name(service)}"]

    def client(self, *words: str, environment: Mapping[str, str]) -> list[str]:
        """The command of a container of our image in the network of the project; more words follow."""
        given = [word for name, value in environment.items() for word in ("--env", f"{name}={value}")]
        return [*self.command, "run", "--rm", "--interactive", "--network", f"{PROJECT}_default", *given, *words]


class Podman(Engine):
    """Its timers of health checks need systemd: without it, the check is run when the story asks."""

    joint = "_"

    def __init__(self, ground: Ground) -> None:
        super().__init__(ground)
        self.command = [str(ground.podman)]
        self.compose = [str(ground.podman_compose), "--podman-path", str(ground.podman)]
        self.environment |= ground.environment()

    def start(self) -> str:
        return f"podman {self._version(self.command)}, podman-compose {self._version([str(self.compose[0])])}"

    def _version(self, command: Sequence[str]) -> str:
        said = self.run([*command, "--version"])
        return next(line.split()[-1] for line in said.splitlines() if "version" in line and command[0][-3:] in line)

    def up(self, *services: str, profiles: Sequence[str] = ()) -> None:
        """In three steps, without the order that podman-compose hands to podman: podman 4.3 starts no container again
        whose others have ended."""
        if self.engine("ps", "--all", "--quiet"):
            self.down()  # podman-compose cannot recreate a container that others depend on
        chosen = services or ("access", *NODES)
        steps = [["init", "keys"], [each for each in chosen if each != "spark"]]
        for step in steps + [["spark"]] * ("spark" in chosen):
            self.file("up", "--no-build", "--detach", "--no-deps", *step, profiles=profiles)
            for each in {"init", "keys", "spark-user"} & {*step}:
                wait(partial(self.has_ended, each), f"{each} does not end")
        for node in NODES:
            wait(partial(self.is_healthy, node), f"{node} is not healthy")

    def beside(self, service: str) -> list[str]:
        return ["--pod", f"pod_{PROJECT}", *super().beside(service)]

    def has_ended(self, service: str) -> bool:
        """Returns True if its container did what it is for."""
        state = self.inspect(service)["State"]
        return bool(state["Status"] == "exited" and state["ExitCode"] == 0)

    def health(self, service: str) -> str:
        self.engine("healthcheck", "run", self.name(service), code=None)
        state = self.inspect(service)["State"]
        told = state.get("Health") or state["Healthcheck"]
        return str(told["Status"])


class Docker(Engine):
    """A dockerd of this run."""

    joint = "-"

    def __init__(self, ground: Ground) -> None:
        super().__init__(ground)
        self.command, self.compose = ["docker"], [str(ground.compose("v2"))]
        self.environment |= {"DOCKER_HOST": "unix:///run/docker.sock", "COMPOSE_ANSI": "never"}
        self.environment |= {"COMPOSE_PROGRESS": "plain", "COMPOSE_MENU": "false"}

    def start(self) -> str:
        log = (self.ground.folder / "dockerd.log").open("wb")
        places = ("--data-root", str(self.ground.folder / "docker"), "--exec-root", "/run/docker-exec")
        subprocess.Popen(["dockerd", *places, "-H", self.environment["DOCKER_HOST"]], stdout=log, stderr=log)
        wait(lambda: "Server Version" in self.engine("info", code=None), "dockerd does not answer")
        self._load()
        self._judge_with_the_newest()
        version = self.engine("version", "--format", "{{.Server.Version}}").strip()
        return f"Docker Engine {version}, Compose {COMPOSE['v2']}, and {COMPOSE['v5']} accepts the file"

    def _load(self) -> None:
        loaded = self.ground.folder / "loaded.txt"
        if loaded.exists() and loaded.read_bytes() == self.ground.saved.read_bytes():
            return
        run([*self.command, "load", "--quiet", "--input", str(self.ground.folder / "images.tar")], self.environment)
        for image in self.ground.images():
            self.engine("tag", image, image.removeprefix("localhost/"))
        loaded.write_bytes(self.ground.saved.read_bytes())

    def _judge_with_the_newest(self) -> None:
        newest = str(self.ground.compose("v5"))
        profiles = [word for name in PROFILES for word in ("--profile", name)]
        self.run([newest, "-f", str(ROOT / "docker-compose.yml"), *profiles, "config", "--quiet"])

    def up(self, *services: str, profiles: Sequence[str] = ()) -> None:
        self.file("up", "--no-build", "--detach", "--wait", *services, profiles=profiles)
        assert {self.health(node) for node in NODES} == {"healthy"}

    def health(self, service: str) -> str:
        return str(self.inspect(service)["State"]["Health"]["Status"])


ENGINES: Mapping[str, type[Engine]] = {"podman": Podman, "docker": Docker}
"""The engines by the name that the command line has."""

__all__ = ["ENGINES", "NODES", "PROFILES", "PROJECT", "Docker", "Engine", "Podman", "say", "wait"]
