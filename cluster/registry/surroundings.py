"""Defines what a process of the registry takes from its machine: its child, its secret, clock and randomness.

The simulator replaces these (`jepsen_like.sim.registry`), and runs the rest of the process unchanged.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple, Protocol

from cluster.registry.child import Child
from cluster.registry.frames import RegistryReply, RegistrySettings
from cluster.registry.registry_file import read_secret


class Replica(Protocol):
    """The child process with pysyncobj, as its parent uses it (`cluster.registry.child.Child`)."""

    @property
    def pid(self) -> int: ...

    @property
    def exit_code(self) -> int | None: ...

    @property
    def is_over(self) -> bool: ...

    def when_over(self, then: Callable[[], object]) -> None: ...

    async def ready(self, limit_s: float) -> None: ...

    async def apply(self, operation: bytes, limit_s: float) -> RegistryReply: ...

    async def read(self, limit_s: float) -> RegistryReply: ...

    async def status(self, limit_s: float) -> RegistryReply: ...

    async def close(self, limit_s: float) -> int: ...


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class ChildWaits(NamedTuple):
    """Limits how long a process waits for its child, in seconds."""

    beat_s: float = 5.0
    """The time between two beats, the operations that test whether the child works."""
    limit_s: float = 2.0
    """The time within which the child must answer an operation."""
    close_s: float = 2.0
    """The time within which the child must end after it was asked to."""


class Surroundings(NamedTuple):
    """The functions with which a process reaches its machine, and how long it waits for its child."""

    start_child: Callable[[RegistrySettings, int], Awaitable[Replica]] = Child.start
    """Starts a child; the second argument is the descriptor of the file for its errors."""
    read_secret: Callable[[Path], tuple[bytes, ...]] = read_secret
    """Returns the keys of the secret, newest first. Raises ConfigError."""
    entropy: Callable[[int], bytes] = os.urandom
    now_ms: Callable[[], int] = _now_ms
    """Returns the wall clock's time, Unix milliseconds."""
    waits: ChildWaits = ChildWaits()
