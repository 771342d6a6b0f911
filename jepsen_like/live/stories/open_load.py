"""An open-loop load during a story: runs `raftmq bench open` in a separate process, which the harness's threads do not
delay.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

from jepsen_like.live.stories.story import Scene, StoryEnds

CONNECTIONS: Final = 8
PATIENCE_S: Final = 120.0


class OpenLoad:
    """A context in which the load generator sends. The context ends the generator if it has not ended by itself."""

    def __init__(
        self, servers: str, topic: str, options: list[str], seconds: float, connections: int = CONNECTIONS
    ) -> None:
        """Starts the generator. `options`: options of `raftmq bench open`, such as the rate. `seconds`: the duration of
        each run; fewer than 2 count as 2.
        """
        self.seconds = max(2.0, seconds)
        command = [sys.executable, "-P", "-m", "raftmq", "bench", "open", "--servers", servers]
        command += ["--topic", topic, "--seconds", f"{self.seconds:.1f}", "--connections", str(connections), "--json"]
        self._process = subprocess.Popen(command + options, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        with suppress(OSError):  # simulates clients on other machines, which do not wait for the nodes' CPU time
            os.sched_setscheduler(self._process.pid, os.SCHED_RR, os.sched_param(1))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()

    @property
    def is_over(self) -> bool:
        """True if the generator has ended."""
        return self._process.poll() is not None

    def report(self) -> dict[str, Any]:
        """Waits for the end; returns what the generator measured. Raises StoryEnds."""
        try:
            out, err = self._process.communicate(timeout=2 * self.seconds + PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise StoryEnds("the generator does not end") from None
        if self._process.returncode:
            raise StoryEnds(f"the generator ended with {self._process.returncode}: {err.strip()[-300:]}")
        answer: dict[str, Any] = json.loads(out)
        return answer


def bench(scene: Scene, topic: str, options: list[str], seconds: float) -> dict[str, Any]:
    """Runs the load generator to its end; returns its report. Raises StoryEnds if there is none."""
    with OpenLoad(scene.subject.servers, topic, options, seconds) as load:
        return load.report()


def said(run: dict[str, Any]) -> str:
    """Returns one line about a run of the generator."""
    return (
        f"{run['stored_per_second']:,.0f} of {run['rate']:,.0f} messages/s acknowledged, p50 {run['p50_ms']:.1f} ms, "
        f"p99 {run['p99_ms']:.1f} ms, {run['busy']:.0%} of the processors"
    )


def said_with_refusals(run: dict[str, Any]) -> str:
    """Returns one line about a run in which sends may be refused."""
    return f"{said(run)}; refused: {run['refused'] or 'none'}, unknown: {run['unknown']}"


def brief(run: dict[str, Any]) -> dict[str, Any]:
    """Returns the report of a run of the generator without its counts per second."""
    return {key: value for key, value in run.items() if key != "seconds"}


def count_stored(scene: Scene, topic: str, acknowledged: int) -> None:
    """Demands that every node has at least as many messages of the topic as were acknowledged. Raises OSError and
    StoryEnds."""
    scene.wait_caught_up(PATIENCE_S)
    for node in scene.subject.node_ids:
        queues = scene.subject.request(node, "GET", f"/v1/topics/{topic}")["queues"]
        there = sum(int(queue["max_offset"]) - int(queue["min_offset"]) for queue in queues)
        scene.demand(there >= acknowledged, f"node {node} has {there} messages of {acknowledged} acknowledged ones")
