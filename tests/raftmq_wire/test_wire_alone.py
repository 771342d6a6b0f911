"""A program that only talks to a cluster does not load one."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

import raftmq_wire
from tests.support.pace import at_most
from tests.support.rows import each_row

WIRE = sorted(f"raftmq_wire.{path.stem}" for path in Path(raftmq_wire.__file__).parent.glob("[!_]*.py"))
HEAVY = {"asyncio", "threading", "aiohttp", "uvloop", "rocksdict", "raftlog", "statemachine", "raftmq"}
CLIENT = {"asyncio", "threading", "uvloop", "raftmq"}
LOADED = "import sys; {}; print(*sorted(sys.modules))"


@cache
def loaded(code: str) -> set[str]:
    """Returns the modules that a fresh interpreter has loaded after `code`."""
    command = [sys.executable, "-c", LOADED.format(code)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=at_most(60))
    return set(done.stdout.split())


def of_the_server(modules: set[str]) -> set[str]:
    """Returns the modules that the client does not need."""
    return {name for name in modules if name.partition(".")[0] in ("cluster", "statemachine", "raftlog")}


@each_row("module", WIRE)
def test_it_loads_nothing_of_a_node(module: str) -> None:
    found = loaded(f"import {module}") - loaded("pass")
    assert module in found
    assert {name for name in found if name.partition(".")[0] in HEAVY} == set()
    assert of_the_server(found) == set()


def test_neither_does_the_kernel() -> None:
    """Its log needs the threads of the standard library."""
    found = loaded("import raftmq_wire.kernel") - loaded("import logging")
    assert "raftmq_wire.kernel" in found
    assert {name for name in found if name.partition(".")[0] in HEAVY} == set()


def test_the_client_loads_nothing_of_the_server() -> None:
    found = loaded("import raftmq.client")
    assert {name for name in found if name.partition(".")[0] in HEAVY - CLIENT} == set()
    assert "raftmq_wire.codec" in found
    assert of_the_server(found) == set()
