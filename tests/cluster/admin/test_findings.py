"""Findings: since when they hold, what the sum of all nodes shows, and which one explains another."""

from __future__ import annotations

import asyncio
import re
import shutil
import threading
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from cluster.admin.findings.catalogue import BECAUSE_OF, command_of
from cluster.admin.findings.finding import Cause, Finding
from cluster.admin.findings.merge import merged
from cluster.admin.findings.other_nodes import (
    OtherNodes,
    clock_conditions,
    clock_offset_ms,
    setting_conditions,
    why_silent,
)
from cluster.admin.findings.rules import own_conditions, suspicion
from cluster.admin.findings.watch import DataWatch, FindingsWatch, Memory
from cluster.config import local_layout
from cluster.config.local_layout import Place, link_object, place_of
from cluster.members.checks import quorum_of
from cluster.peer.connections import OTHER_SECRET
from cluster.peer.links import LinkView
from cluster.runtime.events import rfc3339
from cluster.runtime.findings import CLUSTER, Condition
from tests.support.alarm_keys import alarm_keys
from tests.support.codes import CODES, KEYS
from tests.support.rows import each_row
from tests.support.wait_until import until

ROOT = Path(__file__).parents[3]
NOW_MS = 1_700_000_000_000


def found(node: int, code: str, about: str, seconds: int = 0) -> Finding:
    (finding,) = Memory(node).note([Condition(KEYS[code], about, "as the test says")], NOW_MS + 1000 * seconds, 0)
    return finding


def told(findings: list[Finding]) -> dict[tuple[str, str], Cause | None]:
    return {each.key: each.because_of for each in findings}


# --- since when ------------------------------------------------------------------------------------------------------


def test_a_condition_is_a_finding_once_it_has_held_and_keeps_its_beginning() -> None:
    heard: list[tuple[str, bool]] = []
    memory = Memory(1, lambda finding, begins: heard.append((finding.code, begins)))
    condition = Condition(KEYS["no_leader"], CLUSTER, "term 3", hold_ms=2000)
    assert memory.note([condition], NOW_MS, 0) == []
    assert memory.note([condition], NOW_MS + 1999, 1999) == []
    (finding,) = memory.note([condition._replace(says="term 4")], NOW_MS + 2000, 2000)
    assert (finding.says, finding.since, finding.severity) == ("term 4", rfc3339(NOW_MS), "critical")
    assert heard == [("no_leader", True)]
    assert memory.note([], NOW_MS + 3000, 3000) == []
    assert heard == [("no_leader", True), ("no_leader", False)]
    assert memory.note([condition], NOW_MS + 4000, 4000) == [], "it begins anew"


def test_what_never_became_a_finding_does_not_end() -> None:
    heard: list[bool] = []
    memory = Memory(1, lambda finding, begins: heard.append(begins))
    memory.note([Condition(KEYS["no_leader"], CLUSTER, "", hold_ms=2000)], NOW_MS, 0)
    memory.note([], NOW_MS, 5000)
    assert heard == []


def test_the_command_names_the_node_that_it_is_about() -> None:
    assert found(1, "node_down", "node 3").do_now == "raftmq restart 3"
    assert found(2, "log_damage", "node 2").do_now == "raftmq repair --node 2"


def test_since_is_utc_with_milliseconds() -> None:
    assert rfc3339(NOW_MS + 5) == "2023-11-14T22:13:20.005Z"


def test_since_does_not_move_on_while_a_finding_lasts() -> None:
    """A link that cannot be mended goes from one bad state into another."""
    memory = Memory(1)
    (silent,) = memory.note([Condition(KEYS["link_suspect"], "link 1-3", "silent", since_ms=NOW_MS - 500)], NOW_MS, 0)
    (closed,) = memory.note(
        [Condition(KEYS["link_suspect"], "link 1-3", "closed", since_ms=NOW_MS + 20)], NOW_MS + 30, 30
    )
    assert (closed.says, closed.since) == ("closed", silent.since)
    assert silent.since == rfc3339(NOW_MS - 500)


# --- the sum of all nodes --------------------------------------------------------------------------------------------


def test_a_node_that_nobody_reaches_is_down_and_explains_what_follows() -> None:
    views = {
        1: [
            found(1, "link_suspect", "link 1-3"),
            found(1, "no_quorum_margin", CLUSTER),
            found(1, "node_silent", "node 3"),
            found(1, "follower_behind", "node 3"),
        ],
        2: [found(2, "link_suspect", "link 2-3", seconds=1), found(2, "no_quorum_margin", CLUSTER, seconds=2)],
    }
    findings = merged(views, (1, 2, 3))
    down = Cause("node_down", "node 3")
    assert told(findings) == {
        ("node_down", "node 3"): None,
        ("link_suspect", "link 1-3"): down,
        ("link_suspect", "link 2-3"): down,
        ("no_quorum_margin", CLUSTER): down,
        ("node_silent", "node 3"): down,
        ("follower_behind", "node 3"): down,
    }
    assert findings[0].key == ("node_down", "node 3"), "causes first"
    assert findings[0].since == rfc3339(NOW_MS)
    margin = next(each for each in findings if each.code == "no_quorum_margin")
    assert (margin.seen_by, margin.since) == ([1, 2], rfc3339(NOW_MS))


@pytest.mark.parametrize(("lost", "do_now"), [([], "raftmq restart 3"), ([3], "raftmq node replace 3")])
def test_a_margin_that_is_gone_because_of_a_node_has_the_command_for_that_node(lost: list[int], do_now: str) -> None:
    says = quorum_of((1, 2, 3), lambda voter: voter != 3).finding
    margin = Condition(KEYS["no_quorum_margin"], CLUSTER, says)
    views = {
        node: Memory(node).note([margin, Condition(KEYS["link_suspect"], link_object(1, node, 3), "")], NOW_MS, 0)
        for node in (1, 2)
    }
    (merged_margin,) = [each for each in merged(views, (1, 2, 3), lost=lost) if each.code == "no_quorum_margin"]
    assert merged_margin.do_now == do_now
    assert "restart" not in merged_margin.says, "a node that lost its disk does not start"


@pytest.mark.parametrize(
    ("lost", "do_now"),
    [([], "raftmq restart 3"), ([3], "raftmq node replace 3"), ([3, 4], "raftmq node replace 3")],
)
def test_a_node_that_lost_its_disk_is_replaced_and_not_started(lost: list[int], do_now: str) -> None:
    views = {node: [found(node, "link_suspect", link_object(1, node, 3))] for node in (1, 2, 5)}
    (down,) = [each for each in merged(views, (1, 2, 3, 4, 5), lost=lost) if each.code == "node_down"]
    assert (down.object, down.do_now) == ("node 3", do_now)
    assert ("its data directory was lost" in down.says) == bool(lost)


def test_without_a_majority_of_disks_nothing_is_replaced() -> None:
    views = {1: [found(1, "link_suspect", link_object(1, 1, node)) for node in (2, 3)]}
    downs = [each for each in merged(views, (1, 2, 3), lost=(2, 3)) if each.code == "node_down"]
    assert [each.do_now for each in downs] == ["raftmq runbook no_quorum"] * 2


def test_an_empty_directory_of_a_node_of_this_machine_is_lost(tmp_path: Path) -> None:
    own = str(tmp_path / "n1" / "data")
    assert local_layout.is_lost(own, 3), "no directory"
    other = tmp_path / "n3" / "data"
    other.mkdir(parents=True)
    (other / "LOCK").touch()
    assert local_layout.is_lost(own, 3), "a lock alone"
    (other / "STATE_SUSPECT").touch()
    assert local_layout.is_lost(own, 3), "its node wrote this when its directory was deleted"
    (other / "IDENTITY").touch()
    assert not local_layout.is_lost(own, 3)


def test_a_node_that_did_not_prove_the_secret_runs_and_its_links_say_what_to_type() -> None:
    refused = Condition(KEYS["link_suspect"], link_object(1, 1, 3), OTHER_SECRET, do_now="raftmq secret status")
    silent = Condition(KEYS["node_silent"], "node 3", "it answers with status 403")
    views = {1: Memory(1).note([refused, silent], NOW_MS, 0), 2: [found(2, "link_suspect", link_object(1, 2, 3))]}
    assert told(merged(views, (1, 2, 3))) == {
        ("link_suspect", link_object(1, 1, 3)): None,
        ("link_suspect", link_object(1, 2, 3)): Cause("node_silent", "node 3"),
        ("node_silent", "node 3"): None,
    }


@pytest.mark.parametrize("why", ["another node reaches it", "it answers"])
def test_a_cut_link_is_not_a_node_that_is_down(why: str) -> None:
    views = {1: [found(1, "link_suspect", "link 1-3")], 2: []}
    if why == "it answers":
        views = {1: views[1], 2: [found(2, "link_suspect", "link 2-3")], 3: []}
    assert "node_down" not in {each.code for each in merged(views, (1, 2, 3))}


def test_a_node_that_is_cut_off_does_not_speak_for_the_cluster() -> None:
    """A leader that any node knows has a majority. Where nobody knows one, it is the cluster's finding."""
    views = {
        1: [found(1, "link_suspect", "link 1-3"), found(1, "no_leader", CLUSTER), found(1, "no_quorum", CLUSTER)],
        2: [],
        3: [found(3, "no_quorum_margin", CLUSTER), found(3, "link_suspect", "link 1-3")],
    }
    findings = merged(views, (1, 2, 3), leaders={1: None, 2: 3, 3: 3})
    link = Cause("link_suspect", "link 1-3")
    assert told(findings) == {
        ("link_suspect", "link 1-3"): None,
        ("no_quorum", "node 1"): link,
        ("no_leader", "node 1"): Cause("no_quorum", "node 1"),
        ("no_quorum_margin", CLUSTER): link,
    }
    assert {each.severity for each in findings} == {"warning"}
    assert all("although node 3 leads" in each.says for each in findings if each.object == "node 1")
    alone = merged({1: views[1]}, (1, 2, 3), leaders={1: None})
    assert {each.key: each.severity for each in alone}["no_leader", CLUSTER] == "critical"


def test_slow_disks_everywhere_are_one_finding() -> None:
    one = {1: [found(1, "disk_slow", "node 1")], 2: []}
    assert told(merged(one, (1, 2))) == {("disk_slow", "node 1"): None}
    both = {1: one[1], 2: [found(2, "disk_slow", "node 2")]}
    (slow,) = merged(both, (1, 2))
    assert (slow.object, slow.seen_by) == (CLUSTER, [1, 2])
    assert slow.says.startswith("the disks of all 2 nodes")


def test_nobody_has_to_reach_a_node_that_was_removed() -> None:
    views = {1: [found(1, "link_suspect", "link 1-3")], 2: [found(2, "link_suspect", "link 2-3")]}
    assert merged(views, (1, 2)) == []


def test_the_worst_come_first() -> None:
    views = {1: [found(1, "backup_off", CLUSTER), found(1, "disk_full", "node 1"), found(1, "disk_slow", "node 1")]}
    assert [each.severity for each in merged(views, (1,))] == ["critical", "warning", "info"]


def test_causes_are_codes_and_no_finding_explains_itself_in_a_circle() -> None:
    relations = {relation for causes in BECAUSE_OF.values() for _, relation in causes}
    assert relations == {"same", "end", "any"}
    assert {code for causes in BECAUSE_OF.values() for code, _ in causes} | set(BECAUSE_OF) <= set(CODES)

    def above(code: str, seen: tuple[str, ...] = ()) -> None:
        assert code not in seen, f"circle: {seen}"
        for cause, _ in BECAUSE_OF.get(code, ()):
            above(cause, (*seen, code))

    for code in BECAUSE_OF:
        above(code)


# --- comparing nodes -------------------------------------------------------------------------------------------------


def test_the_clock_that_is_off_is_the_one_that_differs_from_the_others() -> None:
    (condition,) = clock_conditions({1: 0, 2: 5003, 3: 4998}, 500)
    assert condition.object == "node 1"
    assert "behind the others'" in condition.says
    assert list(clock_conditions({1: 0, 2: 400, 3: -100}, 500)) == []
    (of_two,) = clock_conditions({1: 0, 2: 5000}, 500)
    assert of_two.object == CLUSTER


@each_row(("theirs", "took", "offset"), [(1000, 0, 0), (1005, 10, 0), (1500, 10, 490), (600, 10, -400), (1010, 10, 0)])
def test_the_duration_of_a_request_is_not_counted_as_an_offset(theirs: int, took: int, offset: int) -> None:
    assert clock_offset_ms(theirs, 1000, took) == offset


def test_settings_are_compared_where_every_node_has_them() -> None:
    settings = {
        1: {"send.deadline_ms": "3000", "new.key": "1"},
        2: {"send.deadline_ms": "5000"},
        3: {"send.deadline_ms": "3000"},
    }
    (condition,) = setting_conditions(settings)
    assert condition.object == "setting send.deadline_ms"
    assert "3000 on node 1, 5000 on node 2, 3000 on node 3" in condition.says


def link(state: str, reason: str = "", finding: str = "") -> LinkView:
    fields: dict[str, Any] = dict.fromkeys(("silent_ms", "round_trip_ms", "match_index", "lag_entries"))
    return LinkView(
        peer=2, state=state, since_ms=0, age_ms=0, reason=reason, control=True, bulk=True, finding=finding, **fields
    )


def test_a_link_that_rests_is_not_suspect() -> None:
    assert suspicion(link("TRANSFER")) == ""
    assert suspicion(link("SUSPEND", "neither of the two leads")) == ""
    assert suspicion(link("SUSPEND", "it catches up, and waits for ha.catch_up_bytes_per_second")) == ""
    assert suspicion(link("SUSPEND", "silent for 900 ms")) == "silent for 900 ms"
    assert suspicion(link("SHUTDOWN", "no connection for bulk")) == "no connection for bulk"
    assert link_object(1, 3, 1) == "link 1-3"


# --- over HTTP -------------------------------------------------------------------------------------------------------


async def test_a_refused_connection_is_told_in_words(unused_tcp_port: int) -> None:
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientConnectorError) as refused:
            await session.get(f"http://127.0.0.1:{unused_tcp_port}/")
    assert why_silent(refused.value) == f"127.0.0.1:{unused_tcp_port}: Connection refused"


async def test_health_has_the_findings_of_alarms(client: Any, node: Any) -> None:
    node.alarms.raise_alarm(KEYS["digest_mismatch"], "at index 5: nodes 2 and 3 differ")
    node.alarms.raise_alarm(KEYS["fenced"], "its rows differ", stops_service=True)
    answer = await client.get("/v1/health")
    findings = {each["code"]: each for each in (await answer.json())["findings"]}
    assert answer.status == 503
    assert findings["digest_unequal"]["says"] == "at index 5: nodes 2 and 3 differ"
    assert findings["digest_unequal"]["since"] == rfc3339(NOW_MS)
    assert findings["fenced"]["object"] == "node 1"
    assert findings["fenced"]["runbook"] == "docs/runbooks.md#fenced"
    own = await (await client.get("/v1/findings")).json()
    assert {each["code"] for each in own["findings"]} >= {"digest_unequal", "fenced"}
    metrics = await (await client.get("/metrics")).text()
    assert 'raftmq_findings{code="fenced",severity="critical"} 1.0' in metrics


async def test_a_probe_for_life_looks_at_nothing_else(client: Any, node: Any, nobody: Any) -> None:
    node.leader = nobody
    node.failure = "fdatasync failed"
    node.status = lambda: pytest.fail("it looks at the status")
    answer = await client.get("/v1/health/live")
    assert (answer.status, await answer.json()) == (200, {"node": 1, "live": True})


@pytest.mark.usefixtures("seeded")
async def test_ready_depends_on_the_leader(client: Any, node: Any, nobody: Any) -> None:
    assert (await client.get("/v1/health/ready")).status == 200
    node.leader = nobody
    answer = await client.get("/v1/health/ready")
    assert (answer.status, (await answer.json())["reasons"]) == (503, ["no leader is known in term 3"])


async def test_a_node_whose_data_directory_is_deleted_while_it_runs_is_to_be_replaced(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "IDENTITY").touch()
    watch, memory = DataWatch(data, 3), Memory(3)

    async def advice() -> list[str]:
        for _ in range(2):
            await asyncio.wait([watch.look()])
        watch.look()
        return [f"{each.severity} {each.do_now}" for each in memory.note(watch.conditions(), NOW_MS, 0)]

    assert await advice() == []
    shutil.rmtree(data)
    assert await advice() == ["critical raftmq node replace 3"]
    data.mkdir()
    (data / "STATE_SUSPECT").touch()
    assert await advice() == ["critical raftmq node replace 3"], "the node wrote this"
    (data / "IDENTITY").touch()
    assert await advice() == [], "it was moved back"


async def test_a_look_that_hangs_is_the_only_one(tmp_path: Path) -> None:
    hang, calls = threading.Event(), list[Path]()

    def hangs(path: Path) -> bool:
        calls.append(path)
        return hang.wait()

    watch = DataWatch(tmp_path, 3, lacks_identity=hangs)
    looks = [watch.look() for _ in range(3)]
    hang.set()
    await asyncio.wait(looks)
    assert len(calls) == 1


# --- documentation ---------------------------------------------------------------------------------------------------


def test_every_code_has_a_runbook_and_no_other_has() -> None:
    page = (ROOT / "docs/runbooks.md").read_text()
    sections = re.findall(r"^## (\w+)\n\n(\w+)\.", page, re.MULTILINE)
    assert sorted(sections) == [(code, row.severity) for code, row in sorted(CODES.items())]


def test_every_alarm_of_the_code_has_a_code() -> None:
    keys = alarm_keys()
    assert {"disk_full", "digest_mismatch", "backup_overdue", "unsafe_recovered", "removed"} <= keys
    assert keys <= set(KEYS)


# --- clusters that `raftmq up` did not make --------------------------------------------------------------------------


@each_row("place", ["machine", "container", "kubernetes"])
@each_row("code", sorted(CODES))
def test_elsewhere_no_finding_names_a_command_of_local_clusters(code: str, place: Place) -> None:
    """`restart`, `logs`, `up`, `down` and `kill` work on processes beside them."""
    from raftmq.cli import COMMANDS

    words = re.findall(r"raftmq ([a-z]+(?:-[a-z]+)*)", command_of(CODES[code], 3, place))
    assert set(words) <= set(COMMANDS) - {"restart", "logs", "up", "down", "kill"}
    assert set(re.findall(r"raftmq ([a-z]+(?:-[a-z]+)*)", command_of(CODES[code], 3))) <= set(COMMANDS)


def test_a_node_knows_where_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, mark = str(tmp_path / "n1/data"), tmp_path / "mark"
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert place_of(data, [str(mark)]) == "machine"
    mark.touch()
    assert place_of(data, [str(mark)]) == "container"
    monkeypatch.setenv("RAFTMQ_PLACE", "compose")
    assert place_of(data) == "compose"
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    assert place_of(data) == "kubernetes"
    (tmp_path / "cluster.json").write_text("{}")
    assert place_of(data) == "up"


def test_a_finding_names_the_command_of_the_place() -> None:
    links = {node: [found(node, "link_suspect", link_object(1, node, 3))] for node in (1, 2)}
    commands: dict[Place, tuple[str, str]] = {
        "up": ("raftmq logs 3", "raftmq restart 3"),
        "machine": ("journalctl -u raftmq", "raftmq serve --config FILE"),
        "container": ("docker logs CONTAINER", "docker restart CONTAINER"),
        "compose": ("docker compose logs n3", "docker compose restart n3"),
        "kubernetes": ("kubectl logs POD -c node --previous", "kubectl delete pod POD"),
    }
    for place, (logs, restart) in commands.items():
        (finding,) = Memory(1, place=place).note([Condition(KEYS["node_stopped"], "node 3", "")], NOW_MS, 0)
        down = {each.code: each.do_now for each in merged(links, [1, 2, 3], place=place)}
        assert [finding.do_now.partition("    ")[0], down["node_down"].partition("    ")[0]] == [logs, restart]


def test_different_secrets_blame_neither_node_and_lead_to_the_secrets(node: Any) -> None:
    suspect = msgspec.structs.replace(link("SHUTDOWN", OTHER_SECRET), control=False, bulk=False)
    status = msgspec.structs.replace(node.status(), links=[suspect])
    (condition,) = [each for each in own_conditions(node, status, NOW_MS) if each.code == "link_suspect"]
    assert condition.says == f"node 1 to node 2: {OTHER_SECRET}"
    assert condition.do_now == "raftmq secret status"


async def test_one_question_without_an_answer_is_not_silence(make_node: Any) -> None:
    """Nodes that are started together are not all there for the first one."""
    told = []

    async def no_answer(request: web.Request) -> web.Response:
        """What is known when it is asked: what its answers before have said."""
        told.append((around.doubts, [each.code for each in around.conditions() if each.code == "node_silent"]))
        return web.Response(status=500)

    app = web.Application()
    app.router.add_get("/{path:.*}", no_answer)
    async with TestServer(app) as server:
        peers = [{"id": 1, "port": 1}, {"id": 2, "port": 2, "admin": f"127.0.0.1:{server.port}"}]
        around = OtherNodes(make_node(1, peers=peers), fresh_s=0.0)
        while len(told) < 4:
            await around.refresh()
            await asyncio.sleep(0.001)
        await around.close()
    assert told == [(False, []), (True, []), (True, []), (True, ["node_silent"])], "it is asked again soon"


async def test_the_watch_of_a_local_cluster_looks_for_the_data_of_a_silent_node(
    make_node: Any, serve: Any, tmp_path: Path
) -> None:
    (tmp_path / "cluster.json").write_text("{}")
    data = tmp_path / "n3" / "data"
    data.mkdir(parents=True)
    (data / "IDENTITY").touch()
    other = make_node(2)
    at_two = {"admin": f"127.0.0.1:{(await serve(other)).port}"}
    peers = [{"id": 1, "port": 1}, {"id": 2, "port": 2, **at_two}, {"id": 3, "port": 3}]
    node = make_node(1, peers=peers, **{"node.data_dir": str(tmp_path / "n1" / "data")})
    for number, each in ((1, node), (2, other)):
        suspected = Condition(KEYS["link_suspect"], link_object(1, number, 3), "as the test says")
        each.findings = (partial(iter, [suspected]),)
    watch = FindingsWatch(node, look_every_s=0.01)

    def advised(command: str) -> bool:
        return [each.do_now for each in watch.cluster() if each.code == "node_down"] == [command]

    running = asyncio.create_task(watch.run())
    await until(partial(advised, "raftmq restart 3"))
    (data / "IDENTITY").unlink()
    await until(partial(advised, "raftmq node replace 3"))
    running.cancel()
    await watch.close()
