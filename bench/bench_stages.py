"""CPU time of the stages of a send in one node, with the native kernel and with its twins, in turns.

The stages are those of `hot_path.py`; the least of ROUNDS (5) runs is printed, in microseconds per message, or with
JSON=1 {"rows": [...]}. What the simulator's disk and network cost is in none of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from rich.progress import track
from rich.table import Table
from tables import console

KERNELS = {"native": "", "python": "python"}
"""Name -> what RAFTMQ_KERNEL is set to."""
LOADS = {"512 in flight": (512, 1, 40), "batches of 100": (16, 100, 10)}
"""Name -> requests in flight, messages per request, rounds."""


def measure() -> list[dict[str, Any]]:
    """The stages in this process."""
    import hot_path

    from cluster import kernel
    from cluster.broker.sends.send_fates import SendFates
    from cluster.remoting.connection.server import RemotingConnection
    from cluster.replication import proposals

    spent: defaultdict[str, float] = defaultdict(float)

    def watch(owner: Any, name: str, stage: str) -> None:
        real = getattr(owner, name)

        def timed(*arguments: Any, **named: Any) -> Any:
            begin = time.thread_time()
            try:
                return real(*arguments, **named)
            finally:
                spent[stage] += time.thread_time() - begin

        setattr(owner, name, timed)

    watch(RemotingConnection, "data_received", "receive")
    watch(proposals, "build", "build")
    watch(SendFates, "stored", "answer")
    driver = hot_path.Driver()
    driver.send(1, 1, 1)  # makes the topic
    rows = []
    for load, (in_flight, batch, rounds) in LOADS.items():
        driver.send(in_flight, batch, 2)
        spent.clear()
        driver.send(in_flight, batch, rounds)
        messages = in_flight * batch * rounds
        rows += [
            {"kernel": kernel.NAME, "load": load, "stage": stage, "cpu_us_per_message": 1e6 * seconds / messages}
            for stage, seconds in spent.items()
        ]
    return rows


def main() -> None:
    """Runs one process per kernel and round."""
    rounds, quiet = int(os.environ.get("ROUNDS") or "5"), bool(os.environ.get("JSON"))
    least: dict[tuple[str, str, str], float] = {}
    for _ in track(range(rounds), "rounds", disable=quiet):
        for chosen in KERNELS.values():
            done = subprocess.run(
                [sys.executable, __file__, "measure"],
                env={**os.environ, "RAFTMQ_KERNEL": chosen, "PYTHONPATH": str(Path(__file__).parents[1])},
                capture_output=True,
                text=True,
                check=True,
            )
            for row in json.loads(done.stdout.splitlines()[-1]):
                key = (row["load"], row["stage"], row["kernel"])
                least[key] = min(least.get(key, float("inf")), row["cpu_us_per_message"])
    if quiet:
        rows = [{"load": a, "stage": b, "kernel": c, "cpu_us_per_message": us} for (a, b, c), us in least.items()]
        print(json.dumps({"rows": rows}))
        return
    table = Table("load", "stage", *KERNELS, title="CPU us per message")
    for load in LOADS:
        for stage in ("receive", "build", "answer"):
            cells = [least.get((load, stage, name)) for name in KERNELS]
            table.add_row(load, stage, *["" if us is None else f"{us:.2f}" for us in cells])
    console().print(table)


if __name__ == "__main__":
    if sys.argv[1:] == ["measure"]:
        print(json.dumps(measure()))
    else:
        main()
