"""Everything a node takes from the machine, in one value: the simulator hands it another one and runs the same node."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from cluster.apply_runner import ApplyRunner
from cluster.clock import Clock, SystemClock
from cluster.lanes import Lane, LaneRunner, ThreadLaneRunner
from raftlog.storage.fs import FileSystem, OsFileSystem
from statemachine.kv import KV
from statemachine.rocks import RocksKV


class RunnerFactory(Protocol):
    """Puts a lane where it runs."""

    def __call__(
        self,
        name: str,
        lane: Lane[Any, Any],
        loop: asyncio.AbstractEventLoop,
        on_done: Callable[[Any], None],
        on_failure: Callable[[BaseException], None],
    ) -> LaneRunner[Any]:
        """See `lanes.ThreadLaneRunner`."""


@dataclass(frozen=True, slots=True)
class Environment:
    """The real machine by default. Sockets come from the running event loop."""

    fs: FileSystem = field(default_factory=OsFileSystem)
    open_kv: Callable[[str], KV] = RocksKV
    """Opens the database at a path."""
    clock: Clock = field(default_factory=SystemClock)
    runner: RunnerFactory = ThreadLaneRunner
    apply_runner: RunnerFactory = ApplyRunner
    """Where apply runs."""
    entropy: Callable[[int], bytes] = os.urandom
    """So many random bytes."""
    serves_admin: bool = True
    """Whether the HTTP API is started."""

    def random(self) -> random.Random:
        """A generator for timeouts, seeded from `entropy`."""
        return random.Random(self.entropy(16))
