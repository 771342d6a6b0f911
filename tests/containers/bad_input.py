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
    wants: str
    """The words that it must say."""
    code: int
    says: str


def refusals(engine: Engine) -> Iterator[Refused]:
    """Yields each refusal. The cluster of the project is there; its containers may run."""
    engine.engine("volume", "rm", "--force", SPARE, *OTHERS, code=None)  # of a run that failed
    folder = engine.ground.folder / "unreadable"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docker", folder)
    for path in folder.rglob("*.toml"):
        path.chmod(0o600)
    yield _run(engine, "files of a clone under umask 077", "chmod g+rX", SERVE, [f"{folder}:/etc/raftmq:ro"])

    config = f"{ROOT / 'docker'}:/etc/raftmq:ro"
    ours = _mounts([f"{PROJECT}_{name}" for name in _NAMES])
    own = (f"{SPARE}:/data/n1", config, ours[0])
    rootly = ("run", "--rm", "--user", "0:0", "--entrypoint", "sh", "-v", own[0], IMAGE, "-c", _OF_ROOT)
    engine.engine(*rootly)
    init = (*INIT, "--leave-lost")
    yield _run(engine, "a volume owned by root: init", "chown", init, [*own, *ours[2:]])
    yield _run(engine, "a volume owned by root: serve", "chown", SERVE, own)
    engine.engine("volume", "rm", SPARE)
    yield _run(engine, "an empty volume: serve", "holds no node", SERVE, own)
    engine.engine("volume", "rm", SPARE)

    others = _mounts(OTHERS)
    made = _run(engine, "another cluster", "", INIT, [config, *others])
    assert made.code == 0, made
    mixed = [config, *ours[:3], others[3]]
    yield _run(engine, "a volume of another cluster: init", "belongs to cluster", init, mixed)
    fixed = [config, others[0], f"{others[1]}:ro"]
    yield _run(engine, "a read-only volume: serve", "ead-only file system", SERVE, fixed)
    beside = engine.beside(next(node for node in NODES if engine.pid(node)))
    words = "port 10912 (peer.port) is in use"
    yield _run(engine, "a port that is taken in the network", words, SERVE, [config, *others], *beside)
    engine.engine("volume", "rm", *OTHERS)


_NAMES = ("secrets", *NODES)
_OF_ROOT = "mkdir /data/n1/lost+found && chown 0:0 /data/n1 && chmod 700 /data/n1"
"""A volume that is not empty keeps its owner: into an empty one, engines copy what the image has there."""


def _mounts(volumes: Sequence[str]) -> list[str]:
    """Each volume at its place, in the order of _NAMES."""
    return [
        f"{volume}:{'/data/' if name in NODES else '/'}{name}" for volume, name in zip(volumes, _NAMES, strict=True)
    ]


def _run(
    engine: Engine, what: str, wants: str, command: Sequence[str], volumes: Sequence[str], *options: str
) -> Refused:
    mounts = [word for volume in volumes for word in ("-v", volume)]
    said = engine.engine("run", "--rm", *options, *mounts, "--entrypoint", "sh", IMAGE, "-c", _CODE, "sh", *command)
    *lines, code = said.strip().splitlines()
    return Refused(what, wants, int(code), "\n".join(lines))


_CODE = 'raftmq "$@" 2>&1; echo $?'
