"""Three nodes, each on a small file system of its own, kept by a process in a user namespace: disks fill up for real.

`python -m tests.support.small_disk_nodes FOLDER` starts them, says "up", and obeys lines of its standard input:
`fill NODE PERCENT`, `grow NODE BYTES_PER_SECOND`, `free NODE`. At the end of the input the nodes are stopped.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from raftmq.local.cluster import LocalCluster
from raftmq.local.process import free_base_port
from tests.support.live_nodes import LiveCluster
from tests.support.pace import at_most
from tests.support.planted_faults import Planted
from tests.support.small_disks import ROOT

LOWERED = {"RAFTMQ_RETENTION__DISK_RATE_MS": "1000"}
"""The rate of a minute counts, not that of an hour."""
BYTES_PER_SECOND = 200_000
"""256 MiB last for about twenty minutes."""
GROW_EVERY_S = 0.1
END_S = at_most(60)


class SmallDiskCluster(LiveCluster):
    """The nodes as other processes see them, and the disks by way of the one that keeps them."""

    def __init__(self, local: LocalCluster, keeper: subprocess.Popen[str]) -> None:
        super().__init__(local)
        self._keeper = keeper

    def tell(self, line: str) -> None:
        """Sends the keeper one line of orders; returns when it is obeyed."""
        assert self._keeper.stdin is not None
        assert self._keeper.stdout is not None
        self._keeper.stdin.write(line + "\n")
        self._keeper.stdin.flush()
        answer = self._keeper.stdout.readline()
        assert answer == "done\n", f"{line}: {answer}"

    def follower(self) -> int:
        leader = self.leader()
        return next(node.id for node in self.nodes if node.id != leader)


@contextmanager
def small_disk_cluster(folder: Path) -> Iterator[SmallDiskCluster]:
    """The cluster. For tests that need `mount`."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in LOWERED.items():
            patch.setenv(name, value)
        keeper = subprocess.Popen(
            ["unshare", "-Urm", sys.executable, "-m", __name__, str(folder / "data")],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
    assert keeper.stdin is not None
    assert keeper.stdout is not None
    try:
        assert keeper.stdout.readline() == "up\n", "the nodes did not start"
        yield SmallDiskCluster(LocalCluster(folder / "data"), keeper)
    finally:
        keeper.communicate(timeout=END_S)


@contextmanager
def full_disk(cluster: SmallDiskCluster) -> Iterator[Planted]:
    """A follower's disk is above retention.disk_refuse_writes_percent."""
    node = cluster.follower()
    cluster.tell(f"fill {node} 93")
    try:
        yield Planted((("disk_full", f"node {node}"),))
    finally:
        cluster.tell(f"free {node}")


@contextmanager
def filling_disk(cluster: SmallDiskCluster) -> Iterator[Planted]:
    """A follower's disk is nearly empty, and fills up."""
    node = cluster.follower()
    cluster.tell(f"grow {node} {BYTES_PER_SECOND}")
    try:
        yield Planted((("disk_filling", f"node {node}"),))
    finally:
        cluster.tell(f"free {node}")


# --- the process that keeps them -------------------------------------------------------------------------------------


class Ballast:
    """A file that takes room on a node's disk."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._file = (home / "ballast").open("wb", buffering=0)
        self._stopped = threading.Event()
        self._grower: threading.Thread | None = None

    def fill(self, percent: int) -> None:
        """Writes until so much of the disk is used."""
        total = shutil.disk_usage(self._home).total
        for size in (1 << 20, 1 << 12):
            while shutil.disk_usage(self._home).free * 100 > (100 - percent) * total:
                self._file.write(bytes(size))

    def grow(self, bytes_per_second: int) -> None:
        """Writes at this pace until `free`."""

        def run() -> None:
            with contextlib.suppress(OSError):  # full after all
                while not self._stopped.wait(GROW_EVERY_S):
                    self._file.write(bytes(int(bytes_per_second * GROW_EVERY_S)))

        self._stopped.clear()
        self._grower = threading.Thread(target=run, daemon=True)
        self._grower.start()

    def free(self) -> None:
        """All of it."""
        self._stopped.set()
        if self._grower is not None:
            self._grower.join()
        self._file.truncate(0)
        self._file.seek(0)


def main(folder: str) -> None:
    from tests.cluster.retention.full_disk_story import on_small_disks

    on_small_disks()
    local = LocalCluster(Path(folder))
    try:
        local.up(3, free_base_port(12), timeout_s=at_most(60))
        ballast = {node.id: Ballast(node.home) for node in local.nodes}
        _say("up")
        for line in sys.stdin:
            what, node, *amount = line.split()
            getattr(ballast[int(node)], what)(*map(int, amount))
            _say("done")
    finally:
        local.down()


def _say(word: str) -> None:
    sys.stdout.write(word + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
