"""Volumes and files that a container cannot use: each is refused, and the text says what to type."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tests.containers.engines import NODES, PROJECT, Engine
from tests.support.tools import ROOT

IMAGE = "raftmq:0.1.0"
SERVE = ("serve", "--config", "/etc/raftmq/n1.toml")
INIT = ("init", *(word for node in ("n1", "n2", "n3") for word in ("--config", f"/etc/raftmq/{node}.toml")))
SPARE = f"{PROJECT}_spare"
"""A volume beside those of the project."""
OTHERS = tuple(f"{PROJECT}_other_{name}" for name in ("secrets", *NODES))
"""The volumes of another cluster."""


class Refused(NamedTuple):
    """A command that was refused."""

    what: str
    code: int
    says: str


def refusals(engine: Engine) -> Iterator[Refused]:
    """Yields each refusal. The cluster of the project is there; its containers may run."""
    folder = engine.ground.folder / "unreadable"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docker", folder)
    for path in folder.rglob("*.toml"):
        path.chmod(0o600)
    yield _run(engine, "files of a clone under umask 077", SERVE, [f"{folder}:/etc/raftmq:ro"])

    config = f"{ROOT / 'docker'}:/etc/raftmq:ro"
    secrets = f"{PROJECT}_secrets:/secrets:ro"
    own = (f"{SPARE}:/data/n1", config, secrets)
    engine.engine("run", "--rm", "--user", "0:0", "--entrypoint", "chown", "-v", own[0], IMAGE, "0:0", "/data/n1")
    engine.engine("run", "--rm", "--user", "0:0", "--entrypoint", "chmod", "-v", own[0], IMAGE, "700", "/data/n1")
    yield _run(engine, "a volume owned by root: init", INIT, own)
    yield _run(engine, "a volume owned by root: serve", SERVE, own)
    engine.engine("volume", "rm", SPARE)
    yield _run(engine, "an empty volume: serve", SERVE, own)
    yield _run(engine, "a read-only volume", SERVE, (f"{PROJECT}_n1:/data/n1:ro", config, secrets))
    engine.engine("volume", "rm", SPARE)
    yield from _with_another_cluster(engine, config)


def _with_another_cluster(engine: Engine, config: str) -> Iterator[Refused]:
    places = ("/secrets", *(f"/data/{node}" for node in NODES))
    of_others, ours = (
        [f"{name}:{place}" for name, place in zip(volumes, places, strict=True)]
        for volumes in (OTHERS, [f"{PROJECT}_{name}" for name in ("secrets", *NODES)])
    )
    made = _run(engine, "another cluster", INIT, [config, *of_others])
    assert made.code == 0, made
    mixed = [config, *ours[:3], of_others[3]]
    yield _run(engine, "a volume of another cluster: init", (*INIT, "--leave-lost"), mixed)
    running = next(node for node in NODES if engine.pid(node))
    network = f"container:{engine.name(running)}"
    yield _run(engine, "a port that is taken in the network", SERVE, [config, *of_others], "--network", network)
    engine.engine("volume", "rm", *OTHERS)


def _run(engine: Engine, what: str, command: Sequence[str], volumes: Sequence[str], *options: str) -> Refused:
    mounts = [word for volume in volumes for word in ("-v", volume)]
    said = engine.engine("run", "--rm", *options, *mounts, "--entrypoint", "sh", IMAGE, "-c", _CODE, "sh", *command)
    *lines, code = said.strip().splitlines()
    return Refused(what, int(code), "\n".join(lines))


_CODE = 'raftmq "$@" 2>&1; echo $?'
