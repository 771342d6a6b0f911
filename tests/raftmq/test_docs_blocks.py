"""The blocks of docs/ that a reader types: each is run, by this file or by another test, or says why not.

A comment in front of a block, `<!-- not run: REASON -->`, exempts it; their count is printed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import raftmq
from raftmq.local.cluster import LocalCluster
from raftmq.local.process import free_base_port
from tests.support.pace import at_most
from tests.support.small_segments import small_segments

ROOT = Path(__file__).parents[2]
PAGES = [page for page in sorted(ROOT.glob("docs/**/*.md")) if "adr" not in page.parts]
BLOCK = re.compile(r"^(?:<!-- (not run:|run by) (.+?) -->\n)?```(sh|python|http)\n(.*?)^```", re.MULTILINE | re.DOTALL)
ELSEWHERE = {
    " --servers '127.0.0.1:9876;127.0.0.1:9877;127.0.0.1:9878'": "",
    '--reason "disks are small"': '--reason "disks are small" --yes',
    "README.md": "tests/raftmq/test_readme.py",
    "examples.md": "tests/raftmq/test_examples_live.py",
    "pipeline.md": "tests/pyspark_raftmq/test_pipeline_page.py",
    "spark-streams.md": "tests/pyspark_raftmq/test_pipeline_page.py",
    "spark-writing.md": "tests/pyspark_raftmq/test_pipeline_page.py",
    "index-file.md": "tests/statemachine/test_index_file.py",
    "testing-with-raftmq.md": "tests/raftmq/testing/test_plugin.py",
    "machines.md": "tests/raftmq/local/test_one_by_one_live.py",
}
"""Page -> the test that runs its blocks, or does what they say on addresses of this machine. `<!-- run by TEST -->`
says the same of one block."""
NOT_RUN_MAX = 0.1
HERE = {
    " --servers '127.0.0.1:9876;127.0.0.1:9877;127.0.0.1:9878'": "",
    '--reason "disks are small"': '--reason "disks are small" --yes',
    "s3://bucket/prefix/NAME": "file://$PWD/store/$(basename -s .json store/backups/*.json)",
    "/mnt/backups": "$PWD/backups",
    "s3://bucket/prefix": "file://$PWD/store",
    "backups/NAME": "backups/$(ls backups | tail -n 1)",
    "/etc/raftmq/users.key": "users.key",
    "--config raftmq.toml": "--config .raftmq/n1/raftmq.toml",
    "| base64  ": '| base64 > key; sed -i "1i $(cat key)" .raftmq/users.key; raftmq reload',
    "raftmq auth mode enforce": "raftmq auth mode enforce --yes; raftmq auth mode off --yes",
    "raftmq user create": "echo a long secret | raftmq user create",
    "raftmq node remove 3": "raftmq node remove 4 --yes",
    "raftmq node replace 3": "raftmq node replace 3; raftmq node list",
    "raftmq node move 3 10.0.0.7:10912": "true",
    "raftmq broker-group drain 2 --spread": "raftmq broker-group drain 2 --yes; raftmq broker-group drain 2 --cancel",
    "raftmq broker-group retire 2 --wait 120": "raftmq broker-group retire 2 --plan",
    "raftmq node drain 2": "raftmq node drain 2; raftmq node drain 2 --undo",
    "raftmq node maintenance on 2": "raftmq node maintenance on 2; raftmq node maintenance off 2",
}
"""What a reader replaces or answers -> what stands for it here."""
ALONE = "raftmq up --nodes 1"
"""Begins a block that makes a cluster."""
NEEDS_NODES_AWAY = ("raftmq fsck", "raftmq rebuild")


class Block(NamedTuple):
    """A block of a page. `reason`: why it is not run; "" if it is. `test`: what runs it, if not this file."""

    page: str
    reason: str
    test: str
    language: str
    text: str


def blocks() -> list[Block]:
    """Returns the blocks of all pages, README's too."""
    found = []
    for page in [*PAGES, ROOT / "README.md"]:
        for how, said, language, text in BLOCK.findall(page.read_text(encoding="utf-8")):
            test = said if how == "run by" else ELSEWHERE.get(page.name, "")
            found.append(Block(page.name, said if how == "not run:" else "", test, language, text))
    return found


def test_few_blocks_are_not_run(record_property: Callable[[str, object], None]) -> None:
    known = blocks()
    exempt = [each for each in known if each.reason]
    record_property("count", f"docs: {len(exempt)} of {len(known)} blocks are not run")
    for each in exempt:
        print(f"  {each.page}: {each.reason}")  # noqa: T201
    assert len(known) > 50
    assert len(exempt) <= NOT_RUN_MAX * len(known)
    assert sorted({each.test for each in known if each.test and not (ROOT / each.test).exists()}) == []


OWN = sorted({each.page for each in blocks() if not each.test and not each.reason})


@pytest.mark.live
@pytest.mark.ci
@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", OWN)
def test_what_a_page_shows_works(
    page: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a cluster of its own, with a topic that has messages, in a folder of its own. A block that makes a cluster
    begins in an empty folder."""
    for name in [name for name in os.environ if name.startswith("RAFTMQ_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    cluster = LocalCluster(tmp_path / ".raftmq")
    try:
        with small_segments():
            cluster.up(3, free_base_port(12))
        with raftmq.connect() as mq:
            mq.admin.create_topic("orders", queues=2)
            for n in range(4):
                mq.send("orders", b"%d" % n, key=str(n), properties={"price": "12", "region": "eu"})
        names: dict[str, Any] = {"raftmq": raftmq, "lines": [b"a", b"b"], "handle": print, "bill": print}
        for block in blocks():
            if block.page == page and not block.reason and not block.test:
                if block.language == "python":
                    _python(block.text, names)
                elif block.text.startswith(ALONE):
                    _alone(block.text, tmp_path_factory.mktemp("empty"))
                else:
                    _shell(block.text, tmp_path)
    finally:
        cluster.down()


_CONSUMER = re.compile(r"""consumer\(((?:"[^"]*"|[^()"])*)\)""")


def _python(text: str, names: dict[str, Any]) -> None:
    """Runs a program of a page. A consumer that would wait for ever ends when no message comes."""
    ended = _CONSUMER.sub(
        lambda match: (
            match[0] if "max_wait_s" in match[1] or "follow" in match[1] else f"consumer({match[1]}, max_wait_s=2)"
        ),
        text,
    )
    with raftmq.connect() as mq:
        exec(compile(ended, "page", "exec"), names | {"mq": mq})


def _alone(text: str, folder: Path) -> None:
    """Runs the lines of a page that make a cluster, on ports that are free, and repeat a command until the log is
    uploaded."""
    uploaded = "until ls tier/*/log/* >/dev/null 2>&1; do sleep 0.2; done; raftmq tier status"
    text = text.replace(ALONE, f"{ALONE} --base-port {free_base_port(4)}").replace("raftmq tier status", uploaded)
    try:
        _shell(text, folder)
    finally:
        subprocess.run(["raftmq", "down"], cwd=folder, check=False, capture_output=True, timeout=at_most(60))


def _shell(text: str, folder: Path) -> None:
    """Runs the lines of a page one by one, each as somebody types it who has read it."""
    for line in text.splitlines():
        typed = line.partition(" # ")[0].partition("    #")[0]
        for written, here in HERE.items():
            typed = typed.replace(written, here)
        if " DIR" in typed:
            typed = typed.replace(" DIR", f" restored-{abs(hash(line))}").replace(
                "raftmq up", f"raftmq up --detach --base-port {free_base_port(12)}"
            )
            typed += f"; raftmq down --data restored-{abs(hash(line))}" if "raftmq up" in typed else ""
        if typed.startswith(NEEDS_NODES_AWAY):
            typed = f"raftmq kill 2; {typed}; ended=$?; raftmq restart 2; exit $ended"
        done = subprocess.run(["bash", "-c", typed], cwd=folder, capture_output=True, text=True, timeout=at_most(120))
        assert done.returncode == 0, f"{line}\n{typed}\n{done.stdout}{done.stderr}"
