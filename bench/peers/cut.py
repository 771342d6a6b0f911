"""Measures for how long no send is acknowledged when the leader's network is cut: `bench.peers.failover` with nodes in
namespaces.

`measured` starts this module as a process of its own in a namespace (`bench.peers.network`); it prints one row as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.peers import all_systems, failover
from bench.peers.network import ENTER, Network
from bench.peers.processes import die_with_parent, ended_at_exit
from bench.peers.rounds import Field
from bench.peers.system import Node

NAME = "cut network"
WARM_S = 15.0
"""The most seconds of load before the first fault; a short warm-up is enough, because throughput is not measured
here."""
_ROOT = Path(__file__).parents[2]


def measured(name: str, times: int, folder: Path, tell: Callable[[str], None]) -> dict[str, Any]:
    """Runs this module in a namespace for one system and returns its row, as `failover.repeated` makes it. If the
    process failed, the row's "error" says why."""
    tell(f"failover: {name}, {NAME}")
    folder.mkdir(parents=True)
    command = [*ENTER, sys.executable, "-m", "bench.peers.cut", name, str(times), str(folder), str(os.getpid())]
    try:
        done = subprocess.run(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True, check=True)
        row: dict[str, Any] = json.loads(done.stdout)
    except (OSError, subprocess.CalledProcessError) as error:
        why = f"{error}; the output above says more, unshare(1), nsenter(1) and ip(8) are needed"
        return {"system": name, "fault": NAME, "seconds": [], "error": why}
    return row


def cable(network: Network) -> failover.Fault:
    """Returns the fault that pulls the leader's network cable, and plugs it in again."""

    def pull(leader: Node) -> None:
        network.cut(leader.number)

    def plug(leader: Node) -> None:
        network.mend(leader.number)

    return failover.Fault(NAME, pull, plug)


def main(name: str, times: int, folder: Path, parent: int) -> None:
    """Starts the system inside the namespace, cuts its leaders off, and prints the row."""
    die_with_parent(signal.SIGTERM)
    if os.getppid() != parent:
        return  # the parent ended before the signal was asked for

    def tell(what: str) -> None:
        print(f"          {what}", file=sys.stderr, flush=True)

    with ended_at_exit():
        network = Network(folder)
        field = Field(all_systems.CUTTABLE[name](network.places))
        field.warm_s = min(field.warm_s, WARM_S)
        field.start(folder / "data")
        field.resume()
        [row] = failover.repeated(field.system, times, [cable(network)], tell)
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
