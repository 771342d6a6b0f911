"""Requests made up from /openapi.json, right and wrong ones, against real nodes: answers are as it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.live_nodes import LiveCluster
from tests.support.pace import at_most

pytestmark = [pytest.mark.live, pytest.mark.slow]
CONFIG = Path(__file__).parent / "schemathesis" / "schemathesis.toml"
LEFT_OUT_MAX = 10


def test_every_answer_is_as_the_document_says(live_cluster: LiveCluster, tmp_path: Path) -> None:
    url = f"{live_cluster.admin(live_cluster.leader())}/openapi.json"
    command = [Path(sys.executable).with_name("schemathesis"), "--config-file", CONFIG, "run", url, "--checks", "all"]
    ended = subprocess.run(
        [*map(str, command), "--phases", "examples,coverage,fuzzing", "--no-color", "--continue-on-failure"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=at_most(500),
        check=False,
    )
    assert ended.returncode == 0, shown(ended.stdout) + ended.stderr
    tested = re.search(r"Tested: (\d+)", ended.stdout)
    assert tested is not None
    assert int(tested[1]) >= 55
    live_cluster.wait_equal()


def shown(output: str) -> str:
    """The failures and the summary; of long requests only how they begin."""
    return "\n".join(line[:500] for line in output.partition("FAILURES")[2].splitlines()) or output[-6000:]


def test_few_are_left_out_and_each_has_a_reason() -> None:
    blocks = CONFIG.read_text().split("[[operations]]")
    assert len(blocks) - 1 <= LEFT_OUT_MAX
    assert all(re.search(r"^# \S.*\n$", before.splitlines(keepends=True)[-1]) for before in blocks[:-1])
