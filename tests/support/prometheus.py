"""A real Prometheus beside a test: what it scrapes, and which rules of deploy/alerts.yml fire there."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from raftmq.local.process import free_base_port
from tests.support.pace import at_most

RULES = Path(__file__).parents[2] / "deploy/alerts.yml"


class Alert(NamedTuple):
    """A rule that holds."""

    name: str
    severity: str
    code: str
    """The label, "" without one."""
    leads_to: str
    """The runbook's address."""
    state: str
    """pending, firing"""


def without_waits(rules: str) -> str:
    """The same rules; they fire at once."""
    return re.sub(r"^ +for: .*\n", "", rules, flags=re.MULTILINE)


@contextmanager
def prometheus(folder: Path, targets: Sequence[str], rules: str = "", every: str = "1s") -> Iterator[str]:
    """One that scrapes them as job raftmq, and evaluates the rules as often; its URL."""
    port = free_base_port(1)
    folder.mkdir(exist_ok=True)
    (folder / "rules.yml").write_text(rules or "groups: []\n")
    (folder / "prometheus.yml").write_text(
        f"global: {{scrape_interval: {every}, evaluation_interval: {every}}}\n"
        "rule_files: [rules.yml]\n"
        f"scrape_configs: [{{job_name: raftmq, static_configs: [{{targets: {json.dumps(list(targets))}}}]}}]\n"
    )
    command = ["prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data"]
    with (folder / "prometheus.log").open("wb") as log:
        running = subprocess.Popen(
            [*command, f"--web.listen-address=127.0.0.1:{port}"], cwd=folder, stdout=log, stderr=log
        )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        running.terminate()
        running.wait(30)


def answer(url: str, expression: str) -> Any:
    """Returns the result of an instant query: the vector, also an empty one; None while Prometheus does not answer
    yet."""
    query = urllib.parse.urlencode({"query": expression.replace("$__rate_interval", "1m")})
    try:
        with urllib.request.urlopen(f"{url}/api/v1/query?{query}", timeout=at_most(10)) as reply:
            return json.load(reply)["data"]["result"]
    except (ConnectionError, urllib.error.URLError) as error:
        if isinstance(error, urllib.error.HTTPError) and error.code == 400:
            pytest.fail(f"{expression}: {error.read().decode()}")
        return None


def alerts(url: str) -> list[Alert] | None:
    """Returns the alerts that hold; None while Prometheus does not answer yet."""
    try:
        with urllib.request.urlopen(f"{url}/api/v1/alerts", timeout=at_most(10)) as reply:
            held = json.load(reply)["data"]["alerts"]
    except (ConnectionError, urllib.error.URLError):
        return None
    return [
        Alert(
            each["labels"]["alertname"],
            each["labels"]["severity"],
            each["labels"].get("code", ""),
            each["annotations"]["runbook"].rpartition(" ")[2],
            each["state"],
        )
        for each in held
    ]
