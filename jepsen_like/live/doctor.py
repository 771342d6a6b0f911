"""Tests which faults this machine supports, by trying each one. Runs skip a fault that does not work, and print the
reason found here.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from jepsen_like.live.harm.disk_shim import prepare
from jepsen_like.live.harm.power import ShimError
from jepsen_like.live.run_lifecycle import FREE_BYTES_MIN
from jepsen_like.live.subjects.owned_resources import Owned, owning
from jepsen_like.live.subjects.processes import Processes
from jepsen_like.live.subjects.proxy import Fabric
from raftmq_wire.errors import LocalError

_NAMESPACES = "ip link add jl-a type veth peer name jl-b && nft add table inet jl && nft delete table inet jl"


class Trial(NamedTuple):
    """The result of trying one kind of fault on this machine."""

    name: str
    works: bool
    told: str
    faults: str
    needed: bool = True
    """False for an optional kind of fault that no fault of `raftmq chaos` uses yet."""


def examine(folder: Path, tell: Callable[[str], None]) -> list[Trial]:
    """Tries every kind of fault, in a temporary directory under `folder`."""
    with owning(folder, tell) as owned:
        place = Path(tempfile.mkdtemp(prefix="raftmq-chaos-doctor-", dir=folder))
        owned.add_directory(place)
        try:
            return [_space(place), _signals(place, owned), _proxies(), _shim(place, owned), _pysyncobj(), *_optional()]
        finally:
            shutil.rmtree(place, ignore_errors=True)


def _space(place: Path) -> Trial:
    free = shutil.disk_usage(place).free
    return Trial("disk space", free >= FREE_BYTES_MIN, f"{free / (1 << 30):.1f} GiB free, 2 are needed", "every run")


def _signals(place: Path, owned: Owned) -> Trial:
    processes = Processes(owned)
    processes.start(1, ["sleep", "60"], place / "sleep.log", dict(os.environ))
    try:
        works = processes.pause(1)
        processes.resume(1)
        works = processes.kill(1) and works
    finally:
        processes.stop_all()
    return Trial("signals", works, "SIGKILL, SIGSTOP and SIGCONT on own processes", "kill, pause, rolling restart")


def _proxies() -> Trial:
    try:
        fabric = Fabric({1: 1, 2: 2})
    except OSError as error:
        return Trial("proxies", False, str(error), "partitions, slow network")
    fabric.close()
    return Trial("proxies", True, "a TCP proxy on each directed edge", "partitions, slow network")


def _shim(place: Path, owned: Owned) -> Trial:
    faults = "power loss, clock skew"
    try:
        proof = prepare(place / "shim", owned)
    except (ShimError, LocalError, OSError) as error:
        return Trial("disk shim", False, str(error), faults)
    if proof.suspicion:
        return Trial("disk shim", False, proof.suspicion, faults)
    return Trial("disk shim", True, "an unsynced write of a real node vanished, a synced one stayed", faults)


def _pysyncobj() -> Trial:
    try:
        version = importlib.metadata.version("pysyncobj")
    except importlib.metadata.PackageNotFoundError:
        return Trial("pysyncobj", False, "not installed: pip install pysyncobj==0.3.17", "--subject pysyncobj")
    return Trial("pysyncobj", True, f"version {version}", "--subject pysyncobj")


def _optional() -> list[Trial]:
    """Returns the trials of faults that need more rights. They are listed so that nobody takes their absence for a
    pass.
    """
    namespaces = _tried(["unshare", "-Urnm", "sh", "-c", _NAMESPACES])
    loop = os.geteuid() == 0 and bool(shutil.which("mkfs.ext4")) and Path("/dev/loop-control").exists()
    return [
        Trial(
            "network namespaces",
            namespaces is None,
            namespaces or "veth and nftables without root",
            "loss, duplication, bandwidth (not used yet)",
            needed=False,
        ),
        Trial(
            "ext4 on a loop device",
            loop,
            "root, mkfs.ext4, /dev/loop-control" if loop else "needs root and ext4",
            "a real file system's power failure (not used yet)",
            needed=False,
        ),
    ]


def _tried(command: list[str]) -> str | None:
    """Runs a command; returns None if it worked, else the reason why not."""
    if shutil.which(command[0]) is None:
        return f"there is no {command[0]}"
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["it failed"])[-1]
