"""Processes that look like nodes to the commands, and do nothing."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from msgspec.structs import replace

from cluster.config.local_layout import NodeRecord


@contextmanager
def idle(nodes: Iterable[NodeRecord]) -> Iterator[list[NodeRecord]]:
    """Runs a process for each node, with the command line of a node; yields the nodes with their pids."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for node in nodes:
            command = ["sh", "-c", "read line", node.module, str(node.config_path)]
            processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True))
        yield [replace(node, pid=process.pid) for node, process in zip(nodes, processes, strict=True)]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
