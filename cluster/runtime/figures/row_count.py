"""Counts the rows of a checkpoint in a helper process, because it takes long: some 2 us for each row.

    python -m cluster.runtime.figures.row_count CHECKPOINT

A thread that counted would keep Python's lock for 5 ms whenever the event loop wants it. Each turn of the node would
take 5 ms longer, for a minute with 30 million rows. The helper prints one JSON object, {"mark": [...], "sums": {family:
sum}} or {"wrong": text}, and ends when its stdin is closed. It changes nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple, cast

from cluster.runtime.host.helper_process import command, end_with_the_node
from statemachine.broker_state import NOTHING_APPLIED, AppliedMark
from statemachine.checkpoint_reader import CheckpointReader
from statemachine.rows import meta_keys, running_digest
from statemachine.rows.kv import KV, META, KVError

NICE = 10


class CountedRows(NamedTuple):
    """The result of counting a checkpoint."""

    mark: AppliedMark
    """The last entry that the checkpoint has applied."""
    sums: dict[str, int]
    """The sums that `statemachine.rows.running_digest.count` returns."""


def count_apart(path: Path, helper: tuple[str, ...] = command("cluster.runtime.figures.row_count")) -> CountedRows:
    """Counts the checkpoint at `path` in a helper process and waits for it; called on a lane. Raises KVError if its
    rows cannot be read, ValueError if the helper does not end properly."""
    with subprocess.Popen(
        (*helper, str(path)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdout is not None
        said = process.stdout.read().decode(errors="replace").strip().rpartition("\n")[2]
    if process.returncode:
        raise ValueError(f"its rows were not counted, the helper process ended with {process.returncode}: {said}")
    found = json.loads(said)
    if "wrong" in found:
        raise KVError(found["wrong"])
    return CountedRows(AppliedMark(*found["mark"]), found["sums"])


def counted(rows: KV) -> CountedRows:
    """Counts the rows in this process. Uses only `get` and `scan` of `rows`. Raises KVError if they cannot be read."""
    row = rows.get(META, meta_keys.APPLIED_KEY)
    mark = NOTHING_APPLIED if row is None else AppliedMark(*meta_keys.APPLIED.unpack(row))
    return CountedRows(mark, running_digest.count(rows))


def main(path: str) -> None:
    """Counts the rows of the checkpoint at `path`, and prints the result as one JSON object (see the module)."""
    os.nice(NICE)
    try:
        with CheckpointReader(Path(path), strict=True) as rows:
            found = counted(cast("KV", rows))
        answer: dict[str, object] = {"mark": list(found.mark), "sums": found.sums}
    except KVError as error:
        answer = {"wrong": str(error)}
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    end_with_the_node()
    main(sys.argv[1])
