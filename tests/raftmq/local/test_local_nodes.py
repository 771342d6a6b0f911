"""Files and ports of a local cluster whose nodes come and go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from cluster.config.loading import load
from cluster.config.local_layout import ClusterFile, read_cluster, write_cluster
from cluster.config.node_files import (
    move_ports,
    plan_moved,
    plan_node,
    plan_nodes,
    read_nodes,
    write_config_like,
    write_configs,
)
from raftmq.local import process
from raftmq.local.cluster import LocalCluster, why_not_ready
from raftmq.local.http.admin_http import ApiRefusal
from raftmq.local.membership import LocalMembers, unfinished, unheard, with_files
from raftmq.local.process import free_base_port, is_running
from raftmq.local.status import GroupStatus, NodeView
from raftmq_wire.errors import ExitCode, LocalError
from tests.support.answering_api import MakeApi
from tests.support.idle_nodes import idle


def test_a_new_node_has_the_usual_ports_of_its_number_or_free_ones_above(tmp_path: Path) -> None:
    usual = plan_nodes(tmp_path, 3, None)
    assert plan_node(tmp_path, 4, usual, lambda port: True).ports == {
        "name server": 9879,
        "broker": 10941,
        "peer": 10942,
        "admin": 9647,
    }
    taken = plan_node(tmp_path, 4, usual, lambda port: port != 9647)
    assert sorted(taken.ports.values()) == [10933, 10934, 10935, 10936]
    own = plan_nodes(tmp_path, 3, 20000)
    above = plan_node(tmp_path, 7, own, lambda port: port != 20013)
    assert sorted(above.ports.values()) == [20014, 20015, 20016, 20017]
    assert above.log == str(tmp_path / "n7" / "node.log")
    with pytest.raises(LocalError, match="free ports"):
        plan_node(tmp_path, 4, own, lambda port: False)


def test_a_new_node_is_configured_like_the_others(tmp_path: Path) -> None:
    nodes = plan_nodes(tmp_path, 3, 20000)
    write_configs(nodes, failpoints=True)
    with nodes[0].config_path.open("a") as file:
        file.write('\n[retention]\nhours = 5\n\n[cluster]\nname = "Ours"\n')
    fourth = plan_node(tmp_path, 4, nodes, lambda port: True)
    write_config_like(fourth, [*nodes, fourth], nodes[0].config_path)
    config = load(fourth.config_path)
    assert (config.node.id, config.peer.port, config.retention.hours) == (4, fourth.peer_port, 5)
    assert (config.cluster.name, config.failpoints.enabled) == ("Ours", True)
    assert [peer.id for peer in config.peers] == [1, 2, 3, 4]


def test_other_ports_are_told_to_who_joined_and_about_who_joined(tmp_path: Path) -> None:
    nodes = plan_nodes(tmp_path, 3, 20000)
    write_configs(nodes)
    fourth = plan_node(tmp_path, 4, nodes, lambda port: True)
    write_config_like(fourth, [*nodes, fourth], nodes[0].config_path)
    nodes[0].home.rename(tmp_path / "away")  # node 1 was removed
    left = [*nodes[1:], fourth]
    moved = plan_moved(left, 30000)
    assert [(node.id, node.namesrv_port, node.admin_port) for node in moved] == [
        (2, 30000, 30009),
        (3, 30001, 30010),
        (4, 30002, 30011),
    ]
    move_ports(moved)
    assert read_nodes(tmp_path) == moved
    for node in moved:
        peers = load(node.config_path).peers
        assert [(peer.id, peer.port) for peer in peers] == [(2, 30006), (3, 30007), (4, 30008)]
        assert peers[2].listeners == {"broker": "127.0.0.1:30005", "namesrv": "127.0.0.1:30005"}


def test_cluster_json_remembers_whose_place_a_node_is_to_take(tmp_path: Path) -> None:
    nodes = plan_nodes(tmp_path, 3, None)
    write_cluster(tmp_path, ClusterFile([*nodes[:2], replace(nodes[2], replaces=2)]))
    assert [node.replaces for node in read_cluster(tmp_path).nodes] == [None, None, 2]
    assert (tmp_path / "cluster.json").read_text().count("replaces") == 1
    assert [node.id for node in read_cluster(tmp_path).without(2).nodes] == [1, 3]


def test_an_interrupted_command_goes_on_with_the_node_that_it_began(tmp_path: Path) -> None:
    nodes = plan_nodes(tmp_path, 5, None)
    join: dict[str, Any] = {"taken_ids": [1, 2, 3, 4]}
    begun = [*nodes[:3], replace(nodes[3], replaces=2), nodes[4]]
    assert unfinished(begun, None, 2, join) == begun[3], "a member already: it is waited for"
    assert unfinished(begun, None, 3, join) is None
    assert unfinished(begun, None, None, join) == begun[4], "no member yet"
    assert unfinished(begun, 5, None, join) == begun[4]
    assert unfinished(begun, 6, None, join) is None
    assert unfinished(begun[:4], None, None, join) is None


def test_a_new_node_takes_after_one_whose_files_are_there(tmp_path: Path) -> None:
    nodes = plan_nodes(tmp_path, 3, 20000)
    write_configs(nodes)
    assert with_files(nodes, 1) == [nodes[1], nodes[2], nodes[0]], "the disk of node 1 may be lost"
    nodes[1].config_path.unlink()
    assert with_files(nodes, 1) == [nodes[2], nodes[0]]
    assert with_files(nodes, None) == [nodes[0], nodes[2]]


@pytest.mark.parametrize("led", [True, False])
def test_a_new_node_of_which_nothing_is_heard_is_not_waited_for_for_ever(
    tmp_path: Path, make_api: MakeApi, led: bool
) -> None:
    member = {"id": 1, "role": "learner", "live": False, "lag_entries": None, "caught_up": False}
    no_leader = ApiRefusal("no_leader", "no leader is known", "", "", ExitCode.REFUSED)
    api = make_api({"GET /v1/members": {"members": [member], "committed": True} if led else no_leader})
    members = LocalMembers(LocalCluster(tmp_path), unheard_s=0.0)
    with idle(plan_nodes(tmp_path, 1, 20000)) as (node,):
        record = replace(node, admin_port=api.port)
        write_cluster(tmp_path, ClusterFile([record]))
        with pytest.raises(LocalError, match=f"has {'heard nothing of it' if led else 'had no leader'} for 0 s"):
            members.wait_promoted(record, "voter")


def test_the_words_of_a_node_that_does_not_join_are_shown_once() -> None:
    links = [{"finding": "", "reason": "refused"}, {"finding": "", "reason": "refused"}, {"finding": "", "reason": ""}]
    status = {"alarms": [{"key": "peer_secret", "text": "this node has no secret"}], "links": links}
    told = unheard(5, status, 60.0, led=True)
    assert told.why == "this node has no secret; refused"
    assert unheard(5, None, 60.0, led=True).why == "it does not answer"


def test_a_node_that_was_removed_does_not_keep_the_cluster_from_being_ready(tmp_path: Path) -> None:
    nodes = plan_nodes(tmp_path, 3, None)
    said = {"term": 4, "role": "follower", "leader": 1, "writes_open": False, "alarms": [], "peers": []}
    views = [
        NodeView(nodes[0], True, {**said, "role": "leader", "writes_open": True}),
        NodeView(nodes[1], True, said),
        NodeView(nodes[2], True, {**said, "term": 3, "leader": None, "alarms": [{"key": "removed"}]}),
    ]
    assert GroupStatus(views).ready
    silent = [*views[:2], views[2]._replace(status=None)]
    assert not GroupStatus(silent).ready


def test_a_node_that_does_not_join_is_explained_by_itself_and_not_by_one_that_is_down(tmp_path: Path) -> None:
    nodes = plan_nodes(tmp_path, 3, None)
    said = {"term": 4, "role": "follower", "leader": None, "writes_open": False, "alarms": [], "peers": []}
    lonely = said | {"alarms": [{"key": "peer_secret", "text": "this node has no secret"}]}
    view = GroupStatus(
        [NodeView(nodes[0], False, None), NodeView(nodes[1], True, lonely), NodeView(nodes[2], True, None)]
    )
    assert why_not_ready(view, [2]) == "leader None, term 4; node 2: this node has no secret"
    assert why_not_ready(view, []) == "no answer from node 3"


def test_why_a_node_ended_is_told_without_the_labels_of_its_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (node,) = plan_nodes(tmp_path, 1, None)
    node.home.mkdir()
    monkeypatch.setattr(process, "exit_code", lambda pid: ExitCode.REFUSED)
    for label in ("type:    ", "do:      "):
        Path(node.log).write_text(f"INFO it starts\nit ends\nbecause: so it is\n{label}something\n")
        error = process.ended(replace(node, pid=1))
        assert (error.what, error.why, error.fix) == ("node 1: it ends", "so it is", "something")
        assert error.exit_code is ExitCode.REFUSED


@pytest.mark.live
def test_a_start_that_fails_says_that_its_nodes_were_stopped_and_where_their_logs_are(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path / "c")
    with pytest.raises(LocalError, match="the cluster is not ready after 0 s") as raised:
        cluster.up(1, free_base_port(4), timeout_s=0.0)
    assert not any(is_running(node) for node in cluster.nodes)
    told = raised.value.why
    assert "node 1, which this command had started, was stopped again" in told
    assert [str(path) for path in tmp_path.glob("c/n*/node.log")] == [cluster.nodes[0].log]
    assert told.endswith(f"logs: {tmp_path}/c/n*/node.log")
