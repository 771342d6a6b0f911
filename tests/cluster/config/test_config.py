"""Configuration: precedence, derived values, and the exact text of every error."""

from __future__ import annotations

import os
import re
import typing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.config.address import split_address
from cluster.config.config import Config, ConfigError, dump
from cluster.config.loading import load
from tests.support.rows import each_row

THREE_NODES = """\
[node]
id = 2
data_dir = "data"

[[listeners]]
name = "broker"
port = 10921

[[listeners]]
name = "namesrv"
port = 9877

[peer]
port = 10922

[[peers]]
id = 1
port = 10912
admin = "127.0.0.1:9644"
listeners = { broker = "127.0.0.1:10911", namesrv = "127.0.0.1:9876" }

[[peers]]
id = 2
port = 10922

[[peers]]
id = 3
port = 10932

[peers.listeners]
broker = "127.0.0.1:10931"
namesrv = "127.0.0.1:9878"

[raft]
tick_ms = 20
"""
MINIMAL: dict[str, Any] = {"node.id": 1, "node.data_dir": "/data"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "raftmq.toml"
    path.write_text(THREE_NODES)
    return path


def error_of(path: Path | None = None, env: dict[str, str] | None = None, **sources: Any) -> list[str]:
    """The three lines, with the file's folder cut off."""
    with pytest.raises(ConfigError) as caught:
        load(path, env, sources.get("overrides"))
    text = str(caught.value)
    return (text.replace(f"{path.parent}/", "") if path else text).split("\n")


def test_later_sources_win(file: Path) -> None:
    assert load(file).raft.tick_ms == 20
    assert load(file, {"RAFTMQ_RAFT__TICK_MS": "30"}).raft.tick_ms == 30
    assert load(file, {"RAFTMQ_RAFT__TICK_MS": "30"}, {"raft.tick_ms": 40}).raft.tick_ms == 40
    assert load(file, {}, {"raft.tick_ms": "40"}).raft.tick_ms == 40
    assert load(file).raft.heartbeat_ticks == 2


def test_environment_reaches_items_of_lists(file: Path) -> None:
    config = load(file, {"RAFTMQ_PEERS__2__HOST": "n3", "RAFTMQ_PEERS__2__LISTENERS__BROKER": "n3:1"})
    assert config.peer_of(3).address == "n3:10932"
    assert config.peer_of(3).listeners == {"broker": "n3:1", "namesrv": "127.0.0.1:9878"}


def test_a_node_can_be_described_by_its_environment_alone() -> None:
    env = {
        "RAFTMQ_NODE__ID": "1",
        "RAFTMQ_NODE__DATA_DIR": "/data",
        "RAFTMQ_LISTENERS__0__NAME": "broker",
        "RAFTMQ_LISTENERS__0__PORT": "10911",
        "RAFTMQ_TOPICS__AUTO_CREATE": "false",
        "RAFTMQ_DATA": "not configuration: no double underscore",
        "HOME": "/root",
    }
    config = load(None, env)
    assert config.listeners[0].port == 10911
    assert config.topics.auto_create is False


def test_only_values_given_as_text_are_read_as_numbers(tmp_path: Path) -> None:
    path = tmp_path / "raftmq.toml"
    path.write_text('[node]\nid = "1"\ndata_dir = "d"\n')
    assert error_of(path)[0] == 'raftmq.toml:2: node.id cannot be "1"'
    assert load(None, {"RAFTMQ_NODE__ID": "1", "RAFTMQ_NODE__DATA_DIR": "7"}).node.data_dir.endswith("/7")


def test_a_node_without_peers_is_a_cluster_of_one() -> None:
    config = load(None, {}, MINIMAL | {"listeners.0.name": "broker", "listeners.0.port": 10911})
    assert config.voter_ids == (1,)
    assert config.peers[0].admin == "127.0.0.1:9644"
    assert config.broker_addresses("broker") == {1: "127.0.0.1:10911"}


def test_advertised_addresses_are_filled_in(file: Path) -> None:
    config = load(file)
    assert config.listeners[0].advertised == "127.0.0.1:10921"
    assert config.broker_addresses("namesrv") == {1: "127.0.0.1:9876", 2: "127.0.0.1:9877", 3: "127.0.0.1:9878"}
    told = load(file, {}, {"peers.1.listeners.broker": "me:1", "peers.1.listeners.namesrv": "me:2"})
    assert told.listeners[0].advertised == "me:1"
    assert config.broker_addresses("other") == {}


def test_a_relative_data_directory_counts_from_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = file.parent / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert load(file).node.data_dir == str(file.parent / "data")
    assert load(file, {"RAFTMQ_NODE__DATA_DIR": "mine"}).node.data_dir == str(elsewhere / "mine")


def test_dump_loads_to_the_same_configuration(file: Path, tmp_path: Path) -> None:
    awkward = {"cluster.name": 'a "quoted"\\ n\u00e4me\x7f\t\u2028', "send.deadline_ms": 9000}
    config = load(file, {}, awkward)
    again = tmp_path / "again.toml"
    again.write_text(dump(config), encoding="utf-8")
    assert load(again) == config
    assert config.cluster.name == awkward["cluster.name"]


WRONG_VALUES = [
    # key, value, first line after the origin, second line, third line
    ("raft.tick_mss", 5, "unknown key raft.tick_mss",
     "[raft] has tick_ms, heartbeat_ticks, election_ticks, inflight_bytes_max, append_bytes_max, "
     "preferred_leaders, preferred_lag_entries",
     "did you mean tick_ms?"),
    ("topics.zzz", 5, "unknown key topics.zzz", "[topics] has auto_create, default_queues, spread, gather_after_ms",
     "use one of: auto_create, default_queues, spread, gather_after_ms"),
    ("peers.0.prot", 5, "unknown key peers.0.prot",
     "[peers.0] has id, host, port, heartbeat_host, heartbeat_port, admin, listeners",
     "did you mean port?"),
    ("rafft.tick_ms", 5, "unknown section rafft",
     f"a configuration has {', '.join(Config.__struct_fields__)}",
     "did you mean raft?"),
    ("raft.tick_ms", "fast", 'raft.tick_ms cannot be "fast"', "raft.tick_ms is a whole number from 10 to 1000",
     "write, for example: tick_ms = 50"),
    ("raft.tick_ms", 0, "raft.tick_ms cannot be 0", "raft.tick_ms is a whole number from 10 to 1000",
     "write, for example: tick_ms = 50"),
    ("raft.election_ticks", -1, "raft.election_ticks cannot be -1",
     "raft.election_ticks is a whole number from 3 to 100", "write, for example: election_ticks = 10"),
    ("peer.port", 65536, "peer.port cannot be 65536", "peer.port is a whole number from 1 to 65535",
     "write, for example: port = 10912"),
    ("listeners.0.port", True, "listeners.0.port cannot be true",
     "listeners.0.port is a whole number from 1 to 65535", "write, for example: port = 10911"),
    ("failpoints.enabled", "maybe", 'failpoints.enabled cannot be "maybe"', "failpoints.enabled is true or false",
     "write, for example: enabled = false"),
    ("cluster.name", "", 'cluster.name cannot be ""', "cluster.name is a text in quotes, not empty",
     'write, for example: name = "DefaultCluster"'),
    ("cluster.name", 5, "cluster.name cannot be 5", "cluster.name is a text in quotes, not empty",
     'write, for example: name = "DefaultCluster"'),
    ("cluster.id", "XYZ", 'cluster.id cannot be "XYZ"', "cluster.id is a UUID in lower case, or empty",
     'write, for example: id = ""'),
    ("log_output.level", "loud", 'log_output.level cannot be "loud"',
     'log_output.level is one of "debug", "info", "warning", "error"', 'write, for example: level = "info"'),
    ("raft", 5, "raft cannot be 5", "raft is a table", "write it as [raft] with its keys below"),
    ("peers", {}, "peers cannot be {}", "peers is a list of tables", "write each item as [[peers]]"),
    ("peers", [5], "peers.0 cannot be 5", "peers.0 is a table", "write it as [peers.0] with its keys below"),
    ("peers.0.listeners", "x:1", 'peers.0.listeners cannot be "x:1"',
     'peers.0.listeners is a table of name = "host:port"', 'write {broker = "127.0.0.1:10911"}'),
    ("peers.7.port", 5, "peers has no item 7", "peers is a list with 3 item(s), counted from 0",
     "use peers.3 to add one, or 0 to 2"),
    ("raft.tick_ms.x", 5, "raft.tick_ms is a single value and has no x",
     "raft.tick_ms is neither a section nor a list", "set raft.tick_ms itself"),
    # relations
    ("raft.election_ticks", 2, "raft.election_ticks 2 is too small for raft.heartbeat_ticks",
     "a leader must send a heartbeat before its followers start an election",
     "set raft.election_ticks to 3 or more, or lower raft.heartbeat_ticks"),
    ("raft.inflight_bytes_max", 5, "raft.inflight_bytes_max 5 is too small for raft.append_bytes_max",
     "one append must fit into what may be in flight to a peer",
     "set raft.inflight_bytes_max to 1048576 or more, or lower raft.append_bytes_max"),
    ("limits.frame_bytes_max", 4194304, "limits.frame_bytes_max 4194304 is too small for limits.message_bytes_max",
     "the largest message and its header must fit into a frame",
     "set limits.frame_bytes_max to 4259840 or more, or lower limits.message_bytes_max"),
    ("limits.connection_inflight_bytes_max", 1,
     "limits.connection_inflight_bytes_max 1 is too small for limits.frame_bytes_max",
     "otherwise the largest frame would always exceed the limit of bytes in flight",
     "set limits.connection_inflight_bytes_max to 16777216 or more, or lower limits.frame_bytes_max"),
    ("limits.node_inflight_bytes_max", 1,
     "limits.node_inflight_bytes_max 1 is too small for limits.connection_inflight_bytes_max",
     "one connection must not have more in flight than the whole node",
     "set limits.node_inflight_bytes_max to 67108864 or more, or lower limits.connection_inflight_bytes_max"),
    ("log.segment_size_bytes", 65536,
     "log.segment_size_bytes 65536 is too small for limits.batch_bytes_max plus limits.message_bytes_max",
     "an entry never spans two segment files",
     "set log.segment_size_bytes to 5308416 or more, or lower limits.batch_bytes_max plus limits.message_bytes_max"),
    ("send.deadline_ms", 1999, "send.deadline_ms 1999 is too small for send.leader_wait_ms",
     "the time a send may take includes the wait for a leader",
     "set send.deadline_ms to 2000 or more, or lower send.leader_wait_ms"),
    ("node.id", 4, "node.id 4 is not among the peers",
     "[[peers]] lists every member, including this node, and has ids 1, 2, 3",
     "use one of these ids, or add a [[peers]] table for this node"),
    ("peers.2.id", 1, "two peers have id 1", "an id names one member of the group",
     "give each [[peers]] its own id"),
    ("peers.2.port", 10912, "two peers have the address 127.0.0.1:10912",
     "each node needs its own address for the other nodes", "give each [[peers]] its own host or port"),
    ("peers.0.admin", "9644", "peers.0.admin is not an address", '"9644" is not host:port',
     'write it as "127.0.0.1:10911"'),
    ("peers.0.listeners.broker", "h:0", "peers.0.listeners.broker is not an address", '"h:0" is not host:port',
     'write it as "127.0.0.1:10911"'),
    ("peers.0.listeners.brokr", "h:1", "peers.0.listeners.brokr names a listener that this node does not have",
     "this node's [[listeners]] are broker, namesrv; every node has the same ones", "did you mean broker?"),
    ("peers.0.listeners", {"broker": "h:1"}, "peers.0 (node 1) has no address for listener namesrv",
     "routes for this listener would not contain that node", 'write listeners = {namesrv = "127.0.0.1:9877"} there'),
    ("listeners.1.name", "broker", "two listeners are called broker",
     "a route contains the addresses of the listener that received the request, found by its name",
     "give each [[listeners]] its own name"),
    ("listeners.1.port", 10921, "listeners.1.port 10921 is also listeners.0.port",
     "each port of a node serves one purpose", "give listeners.1 another port"),
    ("admin.port", 10922, "admin.port 10922 is also peer.port", "each port of a node serves one purpose",
     "give admin another port"),
]  # fmt: skip


@each_row(("key", "value", "what", "why", "fix"), WRONG_VALUES)
def test_wrong_values_say_what_why_and_what_to_type(
    file: Path, key: str, value: Any, what: str, why: str, fix: str
) -> None:
    lines = error_of(file, overrides={key: value})
    origin, colon, first = lines[0].partition(": ")
    assert [first, *lines[1:]] == [what, why, fix]
    assert colon
    assert origin == f"flag {key}" or re.match(r"raftmq\.toml:\d+$", origin), lines[0]


@pytest.mark.parametrize(
    ("old", "new", "origin"),
    [
        ("tick_ms = 20", "tick_mss = 20", "raftmq.toml:35: unknown key raft.tick_mss"),
        ("tick_ms = 20", 'tick_ms = "20"', 'raftmq.toml:35: raft.tick_ms cannot be "20"'),
        ("[raft]", "[rafts]", "raftmq.toml:34: unknown section rafts"),
        ("port = 10932", "port = 0", "raftmq.toml:28: peers.2.port cannot be 0"),
        ("port = 10932", "", "raftmq.toml:26: peers.2.port is missing"),
        ('namesrv = "127.0.0.1:9878"', "namesrv = 5", "raftmq.toml:32: peers.2.listeners.namesrv cannot be 5"),
        ('name = "namesrv"', 'name = "broker"', "raftmq.toml:10: two listeners are called broker"),
        ("port = 10912", "port = ", "raftmq.toml:18: not valid TOML"),
        ("id = 2\ndata", "data", "raftmq.toml:1: node.id is missing"),
        (
            "port = 9877",
            'port = 9877\nbind = "0.0.0.0"',
            "raftmq.toml:9: listeners.1.advertised cannot be 0.0.0.0:9877",
        ),
        ("port = 9877", 'port = 9877\nadvertised = "h"', "raftmq.toml:12: listeners.1.advertised is not an address"),
    ],
)
def test_errors_name_the_line_of_the_file(file: Path, old: str, new: str, origin: str) -> None:
    assert THREE_NODES.count(old) >= 1
    file.write_text(THREE_NODES.replace(old, new, 1))
    assert error_of(file)[0] == origin


def test_errors_name_the_environment_variable(file: Path) -> None:
    assert error_of(file, {"RAFTMQ_RAFT__TICK_MS": "x"})[0] == (
        'environment variable RAFTMQ_RAFT__TICK_MS: raft.tick_ms cannot be "x"'
    )
    assert error_of(file, {"RAFTMQ_RAFTS__TICK_MS": "5"})[0] == (
        "environment variable RAFTMQ_RAFTS__TICK_MS: unknown section rafts"
    )


def test_own_listener_with_two_addresses(file: Path) -> None:
    overrides = {"peers.1.listeners": {"broker": "a:1", "namesrv": "a:2"}, "listeners.0.advertised": "b:1"}
    lines = error_of(file, overrides=overrides)
    assert lines[0].endswith("listener broker of this node has two addresses")
    assert lines[1] == "peers.1.listeners says a:1, [[listeners]] says b:1"


def test_a_bind_to_every_address_takes_the_port_from_all(file: Path) -> None:
    lines = error_of(file, overrides={"admin.bind": "0.0.0.0", "admin.port": 10921})
    assert lines[0] == "flag admin.port: admin.port 10921 is also listeners.0.port"


def test_missing_file_and_unreadable_file(tmp_path: Path) -> None:
    assert error_of(tmp_path / "none.toml")[0] == "none.toml: no such configuration file"
    (tmp_path / "latin.toml").write_bytes(b"# caf\xe9\n")
    assert error_of(tmp_path / "latin.toml")[0] == "latin.toml: cannot be read as a configuration file"


def test_a_missing_id_says_three_ways_to_give_it() -> None:
    assert error_of() == [
        "configuration: node.id is missing",
        "node.id is a whole number from 1 to 65535 and has no default",
        "write id = 1 under [node], or set RAFTMQ_NODE__ID",
    ]


@pytest.mark.parametrize(("text", "parts"), [("h:1", ("h", 1)), ("[::1]:65535", ("::1", 65535))])
def test_addresses(text: str, parts: tuple[str, int]) -> None:
    assert split_address(text) == parts


@each_row("text", ["", "h", "h:", ":1", "h:0", "h:65536", "h:x", "::1:5", "[]:1", "h:\u0661"])
def test_not_addresses(text: str) -> None:
    with pytest.raises(ValueError, match=r"host:port|brackets"):
        split_address(text)


KEYS = [*sorted({key for key, *_ in WRONG_VALUES}), "", ".", "peers.0", "peers.\u00b2.port", "raft.0.x", "__"]
VALUES = st.recursive(
    st.sampled_from([None, True, False, "\udc80"]) | st.integers() | st.floats() | st.text() | st.datetimes(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(overrides=st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=12), VALUES, max_size=4))
@settings(deadline=None)
def test_whatever_is_given_is_loaded_or_refused_in_three_lines(overrides: dict[str, Any]) -> None:
    problems: list[ConfigError] = []
    try:
        assert dump(load(None, {}, MINIMAL | overrides))
    except ConfigError as error:
        problems.append(error)
    for problem in problems:
        assert all((problem.what, problem.why, problem.fix))
        assert str(problem).encode()


def test_bytes_that_are_no_text() -> None:
    name = os.fsdecode(b"RAFTMQ_CLUSTER__NAME")
    assert error_of(env={name: os.fsdecode(b"caf\xe9")})[0] == f"environment variable {name}: not valid UTF-8"


def test_configurations_cannot_be_changed(file: Path) -> None:
    with pytest.raises(AttributeError):
        load(file).raft.tick_ms = 5  # type: ignore[misc]


def test_retention_in_hours_or_milliseconds_at_hours_of_the_day() -> None:
    default = load(None, {}, MINIMAL).retention
    assert (default.keep_ms, default.delete_hours) == (72 * 3_600_000, frozenset({4}))
    assert load(None, {}, MINIMAL | {"retention.ms": 500}).retention.keep_ms == 500
    assert load(None, {}, MINIMAL | {"retention.hours": 0}).retention.keep_ms == 0
    assert load(None, {}, MINIMAL | {"retention.delete_when": "4;16; 23"}).retention.delete_hours == {4, 16, 23}
    assert load(None, {}, MINIMAL | {"retention.delete_when": ""}).retention.delete_hours == frozenset()


@each_row("hours", ["24", "4,16", "04;", "x", "4;4", "-1"])
def test_hours_that_no_day_has(hours: str) -> None:
    found = error_of(None, {}, overrides=MINIMAL | {"retention.delete_when": hours})
    assert found[0].endswith(f"retention.delete_when cannot be '{hours}'")
    assert found[2].startswith("write hours of the day")


def test_disk_percentages_rise() -> None:
    found = error_of(None, {}, overrides=MINIMAL | {"retention.disk_refuse_writes_percent": 80})
    assert found[0].endswith("retention.disk_refuse_writes_percent 80 is below retention.disk_force_clean_percent 85")
    assert (
        found[2]
        == "set retention.disk_refuse_writes_percent to 85 or more, or lower retention.disk_force_clean_percent"
    )


def test_every_key_and_default_is_documented() -> None:
    """docs/configuration.md has one row `| key | default | ... |` per key, under a heading per section."""
    text = (Path(__file__).parents[3] / "docs" / "configuration.md").read_text()
    documented: dict[str, str] = {}
    section = ""
    for line in text.splitlines():
        if heading := re.match(r"## .*`\[+(\w+)\]+`", line):
            section = heading[1]
        elif row := re.match(r"\| `(\w+)` \| (.+?) \|", line):
            documented[f"{section}.{row[1]}"] = row[2].strip("`")
    assert documented == expected_rows()


def expected_rows() -> dict[str, str]:
    rows: dict[str, str] = {}
    for section in msgspec.structs.fields(Config):
        kind = typing.get_args(section.type)[0] if typing.get_origin(section.type) is tuple else section.type
        for field in msgspec.structs.fields(kind):
            if field.required:
                rows[f"{section.name}.{field.name}"] = "required"
            elif field.default is msgspec.NODEFAULT:
                rows[f"{section.name}.{field.name}"] = "{}"
            else:
                rows[f"{section.name}.{field.name}"] = msgspec.json.encode(field.default).decode()
    return rows


def test_the_file_to_start_from_is_a_configuration(tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "docs" / "configuration.md").read_text()
    path = tmp_path / "raftmq.toml"
    path.write_text(text.split("```toml\n")[1].split("```")[0])
    assert load(path).voter_ids == (1, 2, 3)


def test_members_of_the_first_group_are_a_list_of_addresses(tmp_path: Path) -> None:
    path = tmp_path / "raftmq.toml"
    text = '[node]\nid = 1\ndata_dir = "data"\n[cluster]\nfirst_group = {}\n'
    path.write_text(text.format('["10.0.0.1:10912", "[fe80::1]:10912"]'))
    config = load(path)
    assert config.cluster.first_group == ("10.0.0.1:10912", "[fe80::1]:10912")
    again = tmp_path / "again.toml"
    again.write_text(dump(config))
    assert load(again) == config
    by_variables = {"RAFTMQ_CLUSTER__FIRST_GROUP__0": "a:1", "RAFTMQ_CLUSTER__FIRST_GROUP__1": "b:2"}
    assert load(None, by_variables, MINIMAL).cluster.first_group == ("a:1", "b:2")
    assert load(None, {}, MINIMAL).cluster.first_group == ()
    path.write_text(text.format('["10.0.0.1:10912", "10.0.0.2"]'))
    with pytest.raises(
        ConfigError, match=r"raftmq\.toml:5: cluster\.first_group\.1 is not an address\n.*\nwrite the host"
    ):
        load(path)
    path.write_text(text.format('"10.0.0.1:10912"'))
    with pytest.raises(ConfigError, match=r'cluster\.first_group is a list of "host:port"\nwrite, for example: '):
        load(path)
