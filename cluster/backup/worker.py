"""`python -m cluster.backup.worker`: makes one backup in a process of its own.

The node writes a `create.BackupOrder` to the worker's stdin, as one line of JSON, and keeps stdin open. If the node
dies, stdin ends; the worker then removes the unfinished backup and exits. The worker answers with lines of JSON:
`{"stage": ...}` for progress, and then `{"made": ...}` or `{"error": {"what", "why", "fix"}}`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from types import FrameType

import msgspec

from cluster.backup.create import BackupOrder, MadeBackup, create
from cluster.backup.remote import create_remote, is_url
from cluster.runtime.host.helper_process import end_with_the_node
from raftmq_wire.errors import LocalError


class Problem(msgspec.Struct, frozen=True):
    """A LocalError in a line from the worker to the node."""

    what: str
    why: str
    fix: str


class WorkerLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of JSON from the worker. Exactly one of the fields is set."""

    stage: str = ""
    made: MadeBackup | None = None
    error: Problem | None = None


def main() -> int:
    """Reads an order from stdin, makes the backup, and writes the result to stdout. Returns the exit code."""
    request = msgspec.json.decode(sys.stdin.buffer.readline(), type=BackupOrder)
    signal.signal(signal.SIGTERM, _stop)
    end_with_the_node()
    try:
        make = create_remote if is_url(request.to) else create
        _say(WorkerLine(made=make(request, lambda stage: _say(WorkerLine(stage=stage)))))
    except LocalError as error:
        _say(WorkerLine(error=Problem(error.what, error.why, error.fix)))
        return 1
    return 0


def _say(line: WorkerLine) -> None:
    with contextlib.suppress(BrokenPipeError):  # the node is gone; this process will end soon, too
        sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
        sys.stdout.buffer.flush()


def _stop(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # a regular end of the interpreter takes seconds if the node leaves little CPU time
