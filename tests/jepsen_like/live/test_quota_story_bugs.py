"""Bugs that are planted in the nodes of a live cluster: the scenarios about quotas find each of them.

The nodes run a copy of the package `cluster` with the edit; the harness runs the same copy, and does not mind.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import cluster
from jepsen_like.live.subjects.owned_resources import FOLDER_VARIABLE
from tests.support.pace import at_most

PACKAGE = Path(cluster.__file__).parent


class Bug(NamedTuple):
    """An edit of a file of the package, the scenario that finds it, and what it then says."""

    title: str
    file: str
    find: str
    replace: str
    scenario: str
    told: str


BUGS = (
    Bug(
        "what has waited for its quota takes nothing from it",
        "replication/paced_sends.py",
        "                _take(line.buckets, send, now_ms)\n",
        "",
        "noisy-neighbour",
        "where",
    ),
    Bug(
        "the last of those that wait goes first",
        "replication/paced_sends.py",
        "                send = line.sends.popleft()\n",
        "                send = line.sends.pop()\n",
        "noisy-neighbour",
        "stands before",
    ),
    Bug(
        "what is refused is stored nevertheless",
        "replication/send_flow.py",
        "                send.hold.decided()\n                self._refuse_paced(send, bucket, now_ms)\n",
        "                self._go_on([send], now_ms)\n"
        "                self._refuse([send], self._replies.limited, 'no')\n",
        "noisy-neighbour",
        "which is refused, is there 1 times",
    ),
    Bug(
        "each change of a quota fills the buckets of all",
        "flow/quota_buckets.py",
        "            self._seen = self.rules.rows\n            self._found.clear()\n",
        "            self._seen = self.rules.rows\n            self.forget()\n",
        "quota-storm",
        "where",
    ),
)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.title)
def test_an_edit_fits_once(bug: Bug) -> None:
    assert (PACKAGE / bug.file).read_text(encoding="utf-8").count(bug.find) == 1


@pytest.mark.live
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.title)
def test_a_planted_bug_is_found(tmp_path: Path, bug: Bug) -> None:
    copy = tmp_path / "planted" / PACKAGE.name
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    edited = copy / bug.file
    edited.write_text(edited.read_text(encoding="utf-8").replace(bug.find, bug.replace), encoding="utf-8")
    paths = [str(copy.parent), str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {FOLDER_VARIABLE: str(tmp_path / "state"), "PYTHONPATH": os.pathsep.join(paths)}
    words = ["--scenario", bug.scenario, "--scale", "0.1", "--seed", "5", "--out", "run", "--json"]
    command = [sys.executable, "-P", "-m", "raftmq.cli", "chaos", "run", *words]
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=at_most(300), check=False
    )
    assert ended.returncode == 1, ended.stdout + ended.stderr
    reasons = json.loads(ended.stdout)["reasons"]
    assert any(bug.told in reason for reason in reasons), reasons
