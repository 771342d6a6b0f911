"""Whatever clients write, a node with the native kernel answers, stores and hangs up as one without it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings

from raftmq_wire import kernel
from tests.support import client_frames
from tests.support.kernels import native_kernel
from tests.support.pace import at_most

ROOT = Path(__file__).parents[3]
IN_TWO_TURNS = client_frames.framed(
    b'{"code":11,"extFields":{"topic":"orders","queueId":"0","queueOffset":"0","consumerGroup":"g"},"flag":0,"opaque":3,'
    b'"version":477}'
)
"""A pull without a field: its refusal is text that uses up much of a turn."""
TAKEN = client_frames.framed(
    b'{"code":310,"extFields":{"b":"orders","e":"0","i":"TAGS\\u0001a\\u0002"},"flag":0,"opaque":5,"version":477}',
    b"body",
)

# A failing example may be long; its print is still worth more than the warning.
pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")


class Child:
    """`whole_node` in a process with that kernel."""

    def __init__(self, name: str) -> None:
        env = {key: value for key, value in os.environ.items() if key != kernel.VARIABLE}
        env |= {"PYTHONHASHSEED": "0", "PYTHONPATH": str(ROOT)}
        if name == "python":
            env[kernel.VARIABLE] = "python"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.raftmq_wire.kernel.whole_node"],
            cwd=ROOT,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.kernel = self._line()["kernel"]

    def ask(self, reads: Sequence[bytes]) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([read.hex() for read in reads]) + "\n")
        self._process.stdin.flush()
        return self._line()

    def _line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the node's process has ended"
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        self._process.communicate(timeout=at_most(30))


class Nodes:
    """Both see the same connections, in the same order."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self._native, self._python = Child("native"), Child("python")
        assert (self._native.kernel, self._python.kernel) == ("native", "python")

    def ask(self, reads: Sequence[bytes]) -> dict[str, Any]:
        """Returns the answer of both. After a difference both begin anew, so that a smaller example is judged by
        itself."""
        try:
            native, python = self._native.ask(reads), self._python.ask(reads)
            assert native == python
        except AssertionError:
            self.close()
            self._start()
            raise
        return native

    def close(self) -> None:
        self._native.close()
        self._python.close()


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    native_kernel()
    found = Nodes()
    yield found
    found.close()


def test_a_send_is_stored_and_answered(nodes: Nodes) -> None:
    """The answers that the comparison below compares are there."""
    found = nodes.ask([TAKEN * 5])
    assert bytes.fromhex(found["answers"]).count(b'"code":0,') == 5
    assert bytes.fromhex(found["log"]).count(b"TAGS\x01a\x02") == 5
    assert not found["closed"]
    assert nodes.ask([b"\0\0\0\4\0\0\0\0"])["closed"]


@given(client_frames.reads())
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@example([TAKEN + TAKEN[:-1], TAKEN[-1:]])
@example([TAKEN + IN_TWO_TURNS + TAKEN * 6])
def test_both_kernels_answer_store_and_hang_up_alike(nodes: Nodes, reads: list[bytes]) -> None:
    nodes.ask(reads)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@given(client_frames.reads())
@settings(max_examples=5000, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
def test_both_kernels_answer_store_and_hang_up_alike_for_long(nodes: Nodes, reads: list[bytes]) -> None:
    nodes.ask(reads)
