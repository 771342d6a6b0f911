"""docs/examples.md has every command and every address of the HTTP API, and what it shows works."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.admin.routes import ROUTES
from cluster.config.local_layout import read_cluster
from raftmq.local.http.credentials import address_of, proofs_for
from raftmq.local.process import free_base_port
from tests.support.command_tree import commands
from tests.support.pace import at_most

PAGE = (Path(__file__).parents[2] / "docs" / "examples.md").read_text(encoding="utf-8")
NOT_RUN = "## What the test does not run"
FENCE = re.compile(r"^```(sh|http)\n(.*?)^```", re.MULTILINE | re.DOTALL)
REQUEST = re.compile(r"(GET|POST|PUT|DELETE) (\S+)(?: (\{.*\}))?")
ADMIN, SERVER = "127.0.0.1:9644", "127.0.0.1:9876"
PATIENCE_S = at_most(60)
PASSING = {"no_leader", "not_leader", "busy", "leader_unreachable", "failed"}


def examples(page: str) -> list[tuple[str, str]]:
    """(kind, line), in their order."""
    return [(kind, line) for kind, body in FENCE.findall(page) for line in body.splitlines()]


def test_every_command_has_an_example() -> None:
    shown = [line for kind, line in examples(PAGE) if kind == "sh"]
    assert [
        name for name in sorted(commands()) if not any(re.search(rf"\braftmq {name}\b", line) for line in shown)
    ] == []


def test_every_address_has_an_example() -> None:
    shown = [
        match.group(1, 2) for kind, line in examples(PAGE) if kind == "http" and (match := REQUEST.fullmatch(line))
    ]
    assert len(shown) == sum(kind == "http" for kind, _ in examples(PAGE)), "each is METHOD PATH and perhaps a body"
    missing = []
    for route in ROUTES:
        pattern = re.compile(re.sub(r"{\w+}", "[^/?]+", re.escape(route.path).replace(r"\{", "{").replace(r"\}", "}")))
        if not any(method == route.method and pattern.fullmatch(path.partition("?")[0]) for method, path in shown):
            missing.append(f"{route.method} {route.path}")
    assert missing == []


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """The folder in which the commands run; whatever they started is ended."""
    yield tmp_path
    command(tmp_path, "raftmq down || true")


def command(place: Path, line: str) -> subprocess.CompletedProcess[str]:
    """Runs a line as typed in that folder, on ports that are free."""
    names = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(place)}
    keep = {name: value for name, value in os.environ.items() if not name.startswith(("RAFTMQ", "PATH", "HOME"))}
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        cwd=place,
        env=keep | names,
        capture_output=True,
        text=True,
        timeout=at_most(300),
        check=False,
        stdin=subprocess.DEVNULL,
    )


def request(place: Path, line: str) -> tuple[int, Any]:
    """Asks the first node, and then the one that leads if it says so, as the operator of the cluster."""
    match = REQUEST.fullmatch(line)
    assert match is not None
    method, path, body = match.groups()
    deadline = time.monotonic() + PATIENCE_S
    asked = 0
    while True:
        nodes = read_cluster(place / ".raftmq").nodes
        node = next((each for each in nodes if each.admin_port == asked), nodes[0])
        proof = next(proofs_for(address_of(node), method, path, (body or "").encode()))
        connection = http.client.HTTPConnection("127.0.0.1", node.admin_port, timeout=at_most(60))
        connection.request(method, path, body, proof | ({"Content-Type": "application/json"} if body else {}))
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        if answer.status < 400 or json.loads(data)["error"]["code"] not in PASSING or time.monotonic() > deadline:
            return answer.status, data[:300]
        named = re.fullmatch(r"ask that node: 127.0.0.1:(\d+)", json.loads(data)["error"]["hint"])
        asked = int(named[1]) if named else 0
        time.sleep(0.5)  # a leader is being elected, after what an example did


@pytest.mark.live
@pytest.mark.ci
@pytest.mark.timeout(1200)
def test_what_is_shown_works(place: Path) -> None:
    base, failed = free_base_port(12), []
    for kind, shown in examples(PAGE.partition(NOT_RUN)[0]):
        if kind == "http":
            status, data = request(place, shown)
            if status >= 400:
                failed.append(f"{shown}: {status} {data!r}")
            continue
        line = shown.replace("raftmq up ", f"raftmq up --base-port {base} ")
        if ADMIN in line or SERVER in line:
            node = read_cluster(place / ".raftmq").nodes[0]
            line = line.replace(ADMIN, f"127.0.0.1:{node.admin_port}")
            line = line.replace(SERVER, f"127.0.0.1:{node.namesrv_port}")
        ended = command(place, line)
        if ended.returncode:
            failed.append(f"{shown}: {ended.returncode} {ended.stdout[-300:]} {ended.stderr[-600:]}")
    assert not failed, "\n".join(failed)
