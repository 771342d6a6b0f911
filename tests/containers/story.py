"""The life of docker-compose.yml on a real engine; each step fails if it is not as docs/containers.md says.

Three healthy nodes; the profiles; clients on the host and in the network through three kills of the leader's process;
every query of every panel; old data from the store after `down` and `up`; Spark's count; an emptied volume under load.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from tests.containers.bad_input import refusals
from tests.containers.clients import HOST, TOPIC, Sender, Stored, from_inside, from_the_host
from tests.containers.engines import ENGINES, NODES, PROFILES, Engine, wait
from tests.containers.ground import Ground
from tests.containers.ground import say as tell
from tests.support.own_network import empty
from tests.support.prometheus import answer
from tests.support.tools import ROOT

RATE = 400.0
"""Messages per second of each of the two senders, so that the kills fall into their work."""
LEAST_S = 120.0
"""Seconds that the senders take at least."""
KILLS = ((0.05, 0.25), (0.3, 0.5), (0.55, 0.75))
"""A leader is killed when each of the two senders has a part of its messages acknowledged: at random, between these."""
PORTS = {"n1": 9644, "n2": 9645, "n3": 9646}
PROMETHEUS = "http://127.0.0.1:9090"
SMALL = {
    "RAFTMQ_LOG__SEGMENT_SIZE_BYTES": str(1 << 20),
    "RAFTMQ_LIMITS__MESSAGE_BYTES_MAX": str(1 << 16),
    "RAFTMQ_LIMITS__BATCH_BYTES_MAX": str(1 << 18),
}
"""Segments of 1 MiB, so that the log of the run has some that are closed."""
TIER = "s3://raftmq/tier"
SERVICES = ("access", *NODES, "prometheus", "store", "spark-user", "spark")
"""The services of all profiles but Grafana."""
RESTARTS = 10


def changes(processes: int) -> str:
    """Returns the changes to docker-compose.yml for this run. `processes`: podman gives a container with a limit of its
    own an nproc that root may not always set."""
    limits = {"ulimits": {"nproc": processes}}
    nodes = {name: {"environment": SMALL, **limits} for name in NODES}
    return yaml.safe_dump({"services": {"init": {"environment": SMALL}, **nodes}})


class Story:
    """One project, its users and its nodes as their HTTP API shows them."""

    def __init__(self, engine: Engine, messages: int) -> None:
        self.engine, self.messages = engine, messages
        self.token, self.user = "", {"RAFTMQ_ACCESS_KEY": "", "RAFTMQ_SECRET_KEY": ""}
        self.sent: list[tuple[str, int]] = []

    def tell(self) -> None:
        """Tells all of it; an AssertionError is its failure."""
        self.three_healthy_nodes()
        self.another_project()
        self.profiles()
        self.three_killed_leaders()
        self.every_panel_has_data()
        self.spark_counts()
        self.old_data_comes_from_the_store()
        self.an_emptied_volume()
        self.what_cannot_be_used()

    def three_healthy_nodes(self) -> None:
        self.engine.up()
        tell("three healthy nodes: " + ", ".join(f"{node} {self.engine.health(node)}" for node in NODES))
        self.secrets()
        wait(self.leader, "no node leads")
        status = self.engine.inside("n1", "raftmq", "status")
        assert "leader" in status, status
        wait(self.has_topic, "no topic")
        assert self.refused_without_user(), "an unsigned client is served"

    def has_topic(self) -> bool:
        """Makes the topic unless it is there."""
        self.engine.inside("n2", "raftmq", "topic", "create", TOPIC, "--queues", "4", "--keep", code=None)
        return TOPIC in self.engine.inside("n2", "raftmq", "topic", "list", code=None)

    def secrets(self) -> None:
        """Reads the first user and the token as the page says, when every request is judged."""
        name, secret = self.engine.inside("n1", "cat", "/secrets/first-user").split()
        self.user = {"RAFTMQ_ACCESS_KEY": name, "RAFTMQ_SECRET_KEY": secret}
        wait(lambda: "judged" in self.engine.inside("n1", "ls", "/secrets"), "requests are not judged")
        self.token = self.engine.inside("n1", "cat", "/secrets/scrape-token")
        printed = [self.engine.logs(service) for service in ("init", "keys", "access", *NODES)]
        assert not [text for text in printed if secret in text or self.token in text], "a secret is in a log"

    def refused_without_user(self) -> bool:
        done = self.engine.run(
            [str(Path(sys.executable).with_name("raftmq")), "produce", TOPIC, "--servers", HOST], None, "a line\n"
        )
        return "signed" in done or "16" in done

    def another_project(self) -> None:
        """A second copy of the file cannot have the same ports, as the engine says; its end takes nothing of ours."""
        were = [self.engine.pid(node) for node in NODES]
        named = ("--project-name", "second")
        said = self.engine.file(*named, "up", "--no-build", "--detach", code=None)
        taken = re.search(r"127\.0\.0\.1:\d+.*already (in use|allocated)", said)
        assert taken, said
        self.engine.file(*named, "down", "--volumes", code=None)
        assert [self.engine.pid(node) for node in NODES] == were
        assert self.leader(), "no node leads any more"
        tell(f"a second project: {taken[0]}; the first goes on")

    def profiles(self) -> None:
        self.engine.environment |= {"RAFTMQ_TIER_URL": TIER, "RAFTMQ_SPARK_TOPIC": TOPIC}
        self.everything_up()
        told = [f"{each} {self.engine.inspect(each)['State']['Status']}" for each in ("prometheus", "store", "spark")]
        tell(f"profiles {', '.join(PROFILES)}, without Grafana: {', '.join(told)}")

    def everything_up(self) -> None:
        """Starts the services of all profiles but Grafana, and waits until the nodes are ready."""
        self.engine.up(*SERVICES, profiles=PROFILES)
        for node in NODES:
            wait(partial(self.is_ready, node), f"{node} is not ready")

    def three_killed_leaders(self) -> None:
        half = self.messages // 2
        rate = min(RATE, half / LEAST_S)
        self.sent = [("host", half), ("inside", self.messages - half)]
        senders = [
            from_the_host(self.engine, "host", half, rate, self.user),
            from_inside(self.engine, "inside", self.messages - half, rate, self.user),
        ]
        for least, most in KILLS:
            self.kill_the_leader(senders, random.uniform(least, most))
        for each in senders:
            each.end()
        refused = [each.refused for each in senders]
        stored = Stored(self.user)
        tell(f"Go client on the host, ours in the network: {stored.judge(*self.sent)}; attempts that failed: {refused}")

    def kill_the_leader(self, senders: Sequence[Sender], part: float) -> None:
        """Kills it when every sender has that part of its messages acknowledged, and waits until it is ready again."""
        wait(lambda: all(each.acked > part * each.count for each in senders), "a sender does not get on")
        leader = self.leader()
        was = self.engine.pid(leader)
        os.kill(was, signal.SIGKILL)
        acked = [each.acked for each in senders]
        assert all(each.acked < each.count for each in senders), "a sender was done before the kill"
        wait(lambda: self.leader() not in ("", leader), "no new leader")
        wait(lambda: self.engine.pid(leader) not in (0, was), f"{leader} is not started again by its policy")
        wait(partial(self.is_ready, leader), f"{leader} is not ready again")
        told = " and ".join(f"{count} of {each.count}" for each, count in zip(senders, acked, strict=True))
        tell(f"killed {leader}, which led, at {told}; then {self.leader()} led, and the engine started {leader} again")

    def every_panel_has_data(self) -> None:
        with_reader = self.engine.client("raftmq:0.1.0", "consume", TOPIC, "--group", "readers", environment=self.user)
        self.engine.run([*with_reader, "--servers", "n1:9876;n2:9876;n3:9876", "--max", "1000"])
        expressions = [target["expr"] for panel in self.panels() for target in panel["targets"]]
        empty_ones = set(expressions)

        def all_have_data() -> bool:
            nonlocal empty_ones
            self.engine.inside("n1", "raftmq", "topic", "list")
            empty_ones = {each for each in empty_ones if not answer(PROMETHEUS, each)}
            return not empty_ones

        try:
            wait(all_have_data, "")
        except AssertionError:
            raise AssertionError(f"no data in Prometheus for {sorted(empty_ones)}") from None
        up = answer(PROMETHEUS, 'sum(up{job="raftmq"})')
        assert up is not None
        assert up[0]["value"][1] == "3"
        rules = self.of_prometheus("/api/v1/rules")["groups"]
        told = sum(len(group["rules"]) for group in rules)
        assert told > 0
        tell(f"all {len(expressions)} queries of {len(self.panels())} panels have data; {told} rules are loaded")

    def panels(self) -> list[dict[str, Any]]:
        """The panels of the file that Grafana would be given."""
        compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
        volumes = [volume.split(":") for volume in compose["services"]["grafana"]["volumes"]]
        mounted = {target: source for source, target, *_ in volumes}
        provided = ROOT / mounted["/etc/grafana/provisioning"] / "dashboards"
        (provider,) = [each for file in provided.iterdir() for each in yaml.safe_load(file.read_text())["providers"]]
        boards = (ROOT / mounted[provider["options"]["path"]]).glob("*.json")
        return [
            panel for board in boards for panel in json.loads(board.read_text())["panels"] if panel["type"] != "row"
        ]

    def of_prometheus(self, path: str) -> Any:
        with urllib.request.urlopen(PROMETHEUS + path, timeout=10) as reply:
            return json.load(reply)["data"]

    def spark_counts(self) -> None:
        stored = Stored(self.user).keys.total()
        wait(lambda: self.counted() == stored, f"Spark counts {self.counted()} of {stored}", 300)
        tell(f"Spark counted {self.counted()} messages")

    def counted(self) -> int:
        sums = re.findall(r'"messages": (\d+)', self.engine.logs("spark"))
        return int(sums[-1]) if sums else 0

    def old_data_comes_from_the_store(self) -> None:
        before = Stored(self.user)
        self.engine.inside(
            "n1", "raftmq", "config", "set", "tier.evict", "true", "retention.bytes_max", str(2 << 20),
            "retention.delete_when", "", "retention.every_ms", "500", "--yes",
        )  # fmt: skip
        wait(self.is_evicted, f"nothing is evicted: {self.tier()}")
        objects = self.engine.inside("store", "find", "/store/raftmq", "-type", "f").splitlines()
        assert objects
        self.engine.down()
        self.everything_up()
        tier = self.tier()
        assert tier["log_begins"] > tier["tier_begins"] is not None
        served = sum(map(self.served_from_the_store, NODES))
        after = Stored(self.user)
        from_store = sum(map(self.served_from_the_store, NODES)) - served
        assert after.digest == before.digest, "other messages than before"
        assert from_store > 0
        tell(f"{len(objects)} files in the store; down and up")
        places = f"the nodes' log begins at {tier['log_begins']}, the tier at {tier['tier_begins']}"
        tell(f"{places}: {after.keys.total()} messages read, the same as before, {from_store} bytes from the store")

    def is_evicted(self) -> bool:
        tier = self.tier()
        begins = tier["tier_begins"]
        return begins is not None and tier["log_begins"] > begins

    def tier(self) -> dict[str, Any]:
        leader = self.leader()
        view: dict[str, Any] | None = self.ask(leader, "/v1/tier")[1] if leader else None
        return view or {"tier_begins": None}

    def served_from_the_store(self, node: str) -> int:
        with urllib.request.urlopen(self.request(node, "/metrics"), timeout=10) as reply:
            found = re.search(r"^raftmq_tier_served_bytes_total\S* (\S+)", reply.read().decode(), re.MULTILINE)
        return int(float(found[1])) if found else 0

    def an_emptied_volume(self) -> None:
        """A follower's volume: the container is refused however often it is started, and the member never votes."""
        lost = next(node for node in NODES if node != self.leader())
        count = 30 * 400
        sender = from_the_host(self.engine, "late", count, RATE, self.user)
        wait(lambda: sender.acked > 0, "nothing is sent")
        volume = self.engine.volume(lost)
        self.engine.engine("stop", self.engine.name(lost))
        empty(volume)
        for _ in range(RESTARTS):
            self.engine.engine("restart", self.engine.name(lost), code=None)
            wait(lambda: self.engine.inspect(lost)["State"]["ExitCode"] == 5, "it is not refused")
            assert self.member(lost)["live"] is False
            assert [*volume.rglob("*")] == [], "something was made"
        refused = self.engine.logs(lost).strip().splitlines()[-1]
        self.engine.engine("stop", self.engine.name(lost), code=None)
        sender.end()
        told = Stored(self.user).judge(*self.sent, ("late", count))
        tell(
            f"{lost} with an emptied volume, started {RESTARTS} times: refused each time, never a member that is live."
        )
        tell(f"Meanwhile the other two: {told}. It printed: {refused}")

    def what_cannot_be_used(self) -> None:
        """Volumes and files of other users: each is refused in words."""
        for each in refusals(self.engine):
            assert each.code not in (0, 137), each
            assert "defect" not in each.says, each
            assert each.wants in each.says, each
            tell(f"{each.what}: exit code {each.code}\n{each.says}")

    def member(self, node: str) -> dict[str, Any]:
        """Returns the node as the leader's list of members has it."""
        told: list[dict[str, Any]] = []

        def known() -> bool:
            leader = self.leader()
            status, view = self.ask(leader, "/v1/members?consistency=linearizable") if leader else (0, None)
            told[:] = view["members"] if view is not None and status == 200 else []
            return bool(told)

        wait(known, "no leader tells the members")
        (found,) = [each for each in told if f"n{each['id']}" == node]
        return found

    def leader(self) -> str:
        """Returns the service whose node leads by what a majority says; "" if none is known."""
        for node in NODES:
            status, view = self.ask(node, "/v1/status")
            if status == 200 and view["role"] == "leader" and view["writes_open"]:
                return node
        return ""

    def is_ready(self, node: str) -> bool:
        return self.ask(node, "/v1/health/ready")[0] == 200

    def ask(self, node: str, path: str) -> tuple[int, Any]:
        """Returns status and document of a GET with the token; (0, None) if nothing answers."""
        try:
            with urllib.request.urlopen(self.request(node, path), timeout=5) as reply:
                return reply.status, json.load(reply)
        except urllib.error.HTTPError as error:
            return error.code, None
        except OSError:
            return 0, None

    def request(self, node: str, path: str) -> urllib.request.Request:
        url = f"http://127.0.0.1:{PORTS[node]}{path}"
        return urllib.request.Request(url, headers={"Authorization": f"Bearer {self.token}"})


def main(name: str, folder: Path, messages: int) -> None:
    """Starts the engine, tells the story, and removes all of the project whatever happens."""
    engine = ENGINES[name](Ground(folder))
    engine.changes.write_text(changes(engine.ground.processes))
    tell(engine.start())
    engine.end()
    story = Story(engine, messages)
    try:
        story.tell()
    except BaseException:
        logs = folder / "failed"
        shutil.rmtree(logs, ignore_errors=True)
        logs.mkdir()
        for service in ("init", "keys", *SERVICES):
            (logs / f"{service}.log").write_text(engine.logs(service))
        tell(f"logs of the containers: {logs}")
        raise
    finally:
        engine.end()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
