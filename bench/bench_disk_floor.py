"""Measures the least time that one message in flight can take in a replicated log on this machine: two syncs in a row,
and a reply.

python bench/bench_disk_floor.py [--dir DIR]     prints {"p50_ms": ..., "sync_p50_ms": ..., "round_trip_p50_ms": ...}

The message goes over loopback to another process and its answer comes back; then 4 KiB are written and synced
(fdatasync) to the leader's file and, when that is done, to a follower's. Both files are already filled with zeros, so a
sync changes no metadata. A leader that syncs at the same time as its follower may be faster than this floor, but not by
much.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

MESSAGE, ANSWER, BLOCK = 1024, 128, 4096
FILE_BYTES = 16 << 20
TIMES = 1000
HOST = "127.0.0.1"


class Floor:
    """Measures rounds of messages on one disk, and keeps the figures of all rounds."""

    def __init__(self, directory: Path, times: int = TIMES) -> None:
        """`directory` is on the disk to be measured; `times` is the number of messages in a round."""
        self.directory = directory
        self.times = times
        self.rounds: list[dict[str, float]] = []

    def measure(self) -> None:
        """Measures one round of messages."""
        trips, syncs = [], []
        leader, follower = self.directory / "floor-leader", self.directory / "floor-follower"
        with _zeroed(leader) as first, _zeroed(follower) as second, _echo() as connection:
            for number in range(self.times):
                offset = number * BLOCK % FILE_BYTES
                began = time.perf_counter()
                _exchange(connection)
                replied = time.perf_counter()
                for file in (first, second):
                    os.pwrite(file, b"m" * BLOCK, offset)
                    os.fdatasync(file)
                trips.append(replied - began)
                syncs.append(time.perf_counter() - replied)
        wholes = [trip + sync for trip, sync in zip(trips, syncs, strict=True)]
        figures = {"p50_ms": wholes, "sync_p50_ms": syncs, "round_trip_p50_ms": trips}
        self.rounds.append({name: median(values) * 1000 for name, values in figures.items()})

    def medians(self) -> dict[str, float]:
        """Returns the median of each figure over all rounds (at least one)."""
        return {name: round(median(one[name] for one in self.rounds), 3) for name in self.rounds[0]}


@contextmanager
def _zeroed(path: Path) -> Iterator[int]:
    """Makes a file of zeros that are on the disk, and yields its descriptor, open for writing; removes the file at the
    end."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        os.pwrite(file, bytes(FILE_BYTES), 0)
        os.fsync(file)
        yield file
    finally:
        os.close(file)
        path.unlink()


@contextmanager
def _echo() -> Iterator[socket.socket]:
    """Yields a connection to a child process that answers each MESSAGE bytes with ANSWER bytes; ends the child at the
    end."""
    with socket.create_server((HOST, 0)) as server:
        child = os.fork()
        if child == 0:
            _serve(server)
        try:
            with socket.create_connection(server.getsockname()) as connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                yield connection
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _serve(server: socket.socket) -> None:
    """Runs the child process. It ends with the connection, without running any exit handlers of its parent."""
    try:
        connection, _ = server.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while _received(connection, MESSAGE):
            connection.sendall(bytes(ANSWER))
    finally:
        os._exit(0)


def _exchange(connection: socket.socket) -> None:
    connection.sendall(bytes(MESSAGE))
    if not _received(connection, ANSWER):
        raise ConnectionError("the echo ended")


def _received(connection: socket.socket, count: int) -> bool:
    """Reads `count` bytes; returns False at the end of the connection."""
    while count:
        data = connection.recv(count)
        if not data:
            return False
        count -= len(data)
    return True


def main() -> None:
    """Measures one round and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, help="a folder on the disk to be measured")
    with tempfile.TemporaryDirectory(prefix="raftmq-floor-", dir=parser.parse_args().dir) as place:
        floor = Floor(Path(place))
        floor.measure()
    json.dump(floor.medians(), sys.stdout)
    print()


if __name__ == "__main__":
    main()
