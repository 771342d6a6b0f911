"""Every setting of a topic or a group that a request can store: two values are two behaviours, or the second one is
refused by name, or the answer names it as a setting that decides nothing.

Nothing here knows what a setting is for. The fields come from what the state stores; one script does everything that
clients do with a group or a topic, and its transcript, without the answers that only show settings, is compared.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, fields
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from cluster.admin.errors import ApiError
from cluster.admin.handlers.metadata import _check_groups
from cluster.admin.handlers.upgrade import ignored_broadcasts
from cluster.backup.metadata import group_record
from cluster.broker.reads.tier_read_policy import ReadLevels
from cluster.broker.topics import ATTRIBUTE_VALUES
from cluster.flow.quota_limits import BACKLOG_BYTES
from cluster.remoting.handlers import topics_admin
from cluster.retention.backlog_eviction import grown
from cluster.retention.policy import gone_earlier
from cluster.runtime import metered_json
from raftlog.work import at_once
from raftmq.commands.nodes.upgrade import _broadcasts
from raftmq_wire.codec import decode_header, encode_frame
from raftmq_wire.message_format import decode_message_id
from statemachine import levels
from statemachine.access.quotas import Quota
from statemachine.cluster_wide.cluster_level import Finalize
from statemachine.consuming import groups
from statemachine.tier import TierState
from statemachine.topics.topics import RETENTION, TopicConfig
from tests.support.rows import each_row
from tests.support.sim_cluster import ClientPath, SimCluster, send_frame

NOTIFY = 40
MESSAGES = 3
MODES = {"modes.slave_read_enable": True, "modes.access_message_in_memory_max_ratio": 0}
"""Consumers that are behind are sent to a follower."""
HOUR_MS = 3_600_000
NOT_SET = {"name", "id", "subscriptions", "refuses_broadcasts", "created_ms", "changed_ms", "changed_by", "place"}
"""Fields that no request of RocketMQ's sets: names, what heartbeats say, and what the state derives."""
POLICIES = ({"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 77_000}}, {"kind": "?"})
TOPIC_NAMES = {"read_queues": "readQueueNums", "write_queues": "writeQueueNums", "sys_flag": "topicSysFlag"}


class Limited:
    """A state whose topics keep more than a quota allows."""

    quotas = SimpleNamespace(limited={BACKLOG_BYTES}, by_subject={"topic=*": Quota({BACKLOG_BYTES: 1}, 0, "")})

    def __init__(self, state: Any) -> None:
        self._state = state

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)


class Bed:
    """A cluster with a topic, and answers to single requests."""

    def __init__(self, sim: SimCluster) -> None:
        self.sim = sim
        self._made = 0
        self._opaque = 0
        sim.create_topic("T", 1)
        sent = [self.ask(send_frame(0, "T", b"m%d" % number, key=f"K{number}")) for number in range(MESSAGES)]
        self.positions = [decode_message_id(ext["msgId"])[1] for _, _, ext, _ in sent]

    def new_name(self) -> str:
        self._made += 1
        return f"made{self._made:04}"  # as many bytes in each message

    def request(self, code: int, body: bytes = b"", path: ClientPath | None = None, **ext: Any) -> Any:
        fields = {name: str(value) for name, value in ext.items()}
        return self.ask(encode_frame(code, 0, 0, ext=fields, body=body, version=401, language="JAVA"), path)

    def ask(self, frame: bytes, path: ClientPath | None = None) -> tuple[int, str, dict[str, str], bytes]:
        """Returns code, remark, fields and body of the answer."""
        path = path or self.sim.leader().connect()
        count = len(replies(path))
        path.ask(frame)
        self.sim.loop.run_until(lambda: len(replies(path)) > count, 20, "an answer")
        header, body = replies(path)[-1]
        return header.code, header.remark or "", dict(json.loads(bytes(header.extFields) or b"{}")), body


def replies(path: ClientPath) -> list[tuple[Any, bytes]]:
    """The answers that the client has received, without requests of the node's own."""
    found = []
    for frame in path.written:
        end = 8 + int.from_bytes(frame[5:8], "big")
        header = decode_header(frame[4], frame[8:end])
        if header.code != NOTIFY:
            found.append((header, frame[end:]))
    return found


def notices(path: ClientPath) -> int:
    return len(path.written) - len(replies(path))


@pytest.fixture(scope="module")
def bed() -> Iterator[Bed]:
    with SimCluster(11, **MODES) as sim:
        sim.propose(sim.leader(), Finalize(levels.LEVEL))
        sim.loop.run_until(lambda: all(n.state.level == levels.LEVEL for n in sim.running), 10, "the level")
        yield Bed(sim)


# --- what clients do ------------------------------------------------------------------------------------------------


def beat(bed: Bed, path: ClientPath, client_id: str, group: str, model: str) -> int:
    row = {"topic": "T", "subString": "*", "subVersion": 1}
    data = {"groupName": group, "messageModel": model, "subscriptionDataSet": [row]}
    body = json.dumps({"clientID": client_id, "consumerDataSet": [data]}).encode()
    code: int = bed.request(34, body, path)[0]
    return code


def pull(bed: Bed, group: str, topic: str = "T", queue_id: int = 0, flags: int = 0) -> tuple[int, int]:
    """The code and the number of bytes of messages."""
    wish: Any = {"queueId": queue_id, "queueOffset": 0, "maxMsgNums": 32, "sysFlag": flags, "subVersion": 1}
    answer = bed.request(11, consumerGroup=group, topic=topic, subscription="*", **wish)
    return answer[0], len(answer[3])


def asked_next(bed: Bed, group: str) -> str:
    """The node that a consumer which is behind is sent to, once a follower is known to have caught up."""
    wish: Any = {"queueId": 0, "queueOffset": 0, "maxMsgNums": 1, "sysFlag": 4, "subscription": "*"}
    for _ in range(50):
        found: str = bed.request(11, consumerGroup=group, topic="T", **wish)[2].get("suggestWhichBrokerId", "")
        if found != "0":
            break
        bed.sim.loop.run_for(0.1)
    return found


def route(bed: Bed, topic: str) -> Any:
    code, _, _, body = bed.request(105, topic=topic)
    found = json.loads(body) if code == 0 else {}
    return code, found.get("orderTopicConf"), [{**each, "brokerName": ""} for each in found.get("queueDatas", [])]


def use_group(bed: Bed, group: str) -> list[Any]:
    """The transcript of everything that clients do with a group."""
    sim, state = bed.sim, bed.sim.leader().state
    one, other = sim.leader().connect(), sim.leader().connect()
    seen: list[Any] = [beat(bed, one, "one", group, "CLUSTERING")]
    sim.loop.run_for(1)
    before = notices(one)
    seen.append(beat(bed, other, "other", group, "CLUSTERING"))
    sim.loop.run_for(1)
    seen += [notices(one) - before, pull(bed, group), pull(bed, group, flags=4), route(bed, f"%RETRY%{group}")]
    seen.append(bed.request(14, consumerGroup=group, topic="T", queueId=0)[::2])
    for position in bed.positions:
        seen.append(bed.request(36, group=group, offset=position, delayLevel=0, originTopic="T")[0])
    sim.loop.run_for(1)
    retry, dead = (state.topics.get(prefix + group) for prefix in ("%RETRY%", "%DLQ%"))
    now = sim.leader().raw.log_time_ms()
    waiting = [row for row in state.timers.due(1 << 62) if retry is not None and row.topic_id == retry.id]
    seen.append([(row.queue_id, round((row.due_ms - now) / 5000)) for row in waiting])
    seen.append(0 if dead is None else state.max_offset(dead.id, 0))
    seen += [beat(bed, one, "one", group, "BROADCASTING"), pull(bed, group), pull(bed, group, flags=4)]
    one.close()
    other.close()
    return [*seen, asked_next(bed, group)]


def use_topic(bed: Bed, topic: str) -> list[Any]:
    """The transcript of everything that clients and the node's own services do with a topic."""
    sim, state = bed.sim, bed.sim.leader().state
    seen: list[Any] = [route(bed, topic)]
    for queue_id in (0, 1, 2, 6):
        sent = bed.ask(send_frame(0, topic, b"twice", queue_id=queue_id, key="K"))
        seen += [sent[0], pull(bed, "readers", topic, queue_id, flags=4)]
        seen.append(bed.ask(send_frame(0, topic, b"twice", queue_id=queue_id, key="K"))[2].get("queueOffset"))
    held = [node.append for node in sim.followers()]
    for lane in held:
        lane.hold()
    path = sim.leader().connect()
    path.ask(send_frame(1, topic, b"early"))
    sim.loop.run_for(0.1)
    seen.append(len(replies(path)))
    for lane in held:
        lane.release()
    sim.settle()
    config = state.topics[topic]
    later = sim.leader().raw.log_time_ms() + HOUR_MS
    seen.append(any(each[0] == config.id for each in gone_earlier(state, 24 * HOUR_MS, later).queues))
    limited: Any = Limited(state)
    seen.append(any(each[0] == config.id for each in grown(limited).queues))
    in_tier = SimpleNamespace(at=lambda _: SimpleNamespace(state=TierState.VERIFIED))
    view: Any = SimpleNamespace(
        topics_by_id=state.topics_by_id, fetch=state.fetch, applied_mark=state.applied_mark, tier=in_tier
    )
    levels = ReadLevels(sim.leader().running.config, view, lambda: later, lambda: 0)
    seen.append(levels.prefers_tier(config.id, 0, 0))
    return seen


# --- settings and their values --------------------------------------------------------------------------------------


def put_group(bed: Bed, name: str, field: str | None, value: Any) -> tuple[int, str]:
    body = {"groupName": name, **({} if field is None else {field: value})}
    answer: tuple[int, str] = bed.request(200, json.dumps(body).encode())[:2]
    return answer


def put_topic(bed: Bed, name: str, field: str | None, value: Any) -> tuple[int, str]:
    ext: Any = {"topic": name, "readQueueNums": 4, "writeQueueNums": 4, "perm": 6, "topicSysFlag": 0, "order": "false"}
    ext |= {"topicFilterType": "SINGLE_TAG", "defaultTopic": "TBW102"}
    if field in (*ATTRIBUTE_VALUES, RETENTION):
        ext["attributes"] = f"+{field}={value}"
    elif field is not None:
        ext[field] = str(value).lower() if isinstance(value, bool) else value
    answer: tuple[int, str] = bed.request(17, **ext)[:2]
    return answer


def other_values(default: Any) -> list[Any]:
    """Values that a field with this default may also have."""
    if isinstance(default, bool):
        return [not default]
    if isinstance(default, int):
        return [value for value in (0, 1, 2, 3, 7) if value != default]
    return list(POLICIES) if isinstance(default, str) else [{"a": "b"}]


def camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def settings_of_groups() -> dict[str, list[Any]]:
    """Every field of a stored group that a request sets -> values beside the default."""
    found = {}
    for field in fields(groups.GroupConfig):
        if field.name not in NOT_SET:
            made: Any = field.default_factory
            found[camel(field.name)] = other_values(made() if made is not MISSING else field.default)
    return found


def settings_of_topics() -> dict[str, list[Any]]:
    """The same of a topic; its attributes are fields of their own."""
    found: dict[str, list[Any]] = {
        TOPIC_NAMES.get(field.name, field.name): [0, 1, 2, 7] if field.default is not False else [True]
        for field in fields(TopicConfig)
        if field.name not in {*NOT_SET, "attributes"}
    }
    attributes = {**ATTRIBUTE_VALUES, RETENTION: ("0", "1000")}
    # The only value of an attribute is what happens anyway.
    return found | {name: ["?", *(values if len(values) > 1 else ())] for name, values in attributes.items()}


Put = Callable[[Bed, str, str | None, Any], tuple[int, str]]
Use = Callable[[Bed, str], list[Any]]


def verdict(bed: Bed, put: Put, use: Use, field: str, values: list[Any]) -> str:
    """Returns works, refused, told or ignored: what comes of the values beside the default."""
    usual = bed.new_name()
    assert put(bed, usual, None, None) == (0, "")
    expected, said = use(bed, usual), set()
    for value in values:
        name = bed.new_name()
        code, remark = put(bed, name, field, value)
        named = field in remark
        if code:
            assert named, f"{field}={value} is refused with {code} {remark!r}, which does not name it"
            said.add("refused")
        elif use(bed, name) != expected:
            return "works"
        else:
            said.add("told" if named and "decides nothing" in remark else "ignored")
    return "ignored" if "ignored" in said else "told" if "told" in said else "refused"


@each_row("field", settings_of_groups())
def test_each_setting_of_a_group_is_obeyed_or_refused(bed: Bed, field: str) -> None:
    found = verdict(bed, put_group, use_group, field, settings_of_groups()[field])
    unread = field in ("consumeFromMinEnable", "consumeMessageOrderly", "consumeTimeoutMinute")
    fixed = field in ("brokerId", "groupSysFlag", "attributes")
    assert found == ("told" if unread else "refused" if fixed else "works")


@each_row("field", settings_of_topics())
def test_each_setting_of_a_topic_is_obeyed_or_refused(bed: Bed, field: str) -> None:
    found = verdict(bed, put_topic, use_topic, field, settings_of_topics()[field])
    told, fixed = ("message.type",), ("queue.type", "cleanup.policy")
    assert found == ("told" if field in told else "refused" if field in fixed else "works")


@pytest.mark.parametrize(("put", "use"), [(put_group, use_group), (put_topic, use_topic)])
def test_equal_settings_are_equal_behaviours(bed: Bed, put: Put, use: Use) -> None:
    """Otherwise every setting would seem to work."""
    names = [bed.new_name() for _ in range(3)]
    assert [put(bed, name, None, None) for name in names] == [(0, "")] * 3
    first, *others = [use(bed, name) for name in names]
    assert others == [first] * 2


@dataclass(frozen=True, slots=True)
class PlantedConfig(groups.GroupConfig):
    """A group with one setting more, which nobody obeys."""

    planted_enable: bool = True


class PlantedData(topics_admin.GroupData, rename="camel"):
    """The body of a request that stores it."""

    planted_enable: bool = True


def test_a_setting_that_is_stored_and_ignored_is_found(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "GroupConfig", PlantedConfig)
    monkeypatch.setattr(groups, "_CONFIG_FIELDS", (*groups._CONFIG_FIELDS, "planted_enable"))
    monkeypatch.setattr(topics_admin, "_decode_group", metered_json.decoder(PlantedData, strict=False))
    shown = topics_admin.group_fields

    def with_planted(group: groups.GroupConfig) -> dict[str, Any]:
        return {**shown(group), "plantedEnable": getattr(group, "planted_enable", True)}

    monkeypatch.setattr(topics_admin, "group_fields", with_planted)
    assert settings_of_groups()["plantedEnable"] == [False]
    name = bed.new_name()
    assert put_group(bed, name, "plantedEnable", False) == (0, "")
    table = json.loads(bed.request(201)[3])["subscriptionGroupTable"]
    assert table[name]["plantedEnable"] is False, "it is stored and shown"
    assert verdict(bed, put_group, use_group, "plantedEnable", [False]) == "ignored"


def test_the_configuration_of_a_broker_is_not_stored_over_remoting(bed: Bed) -> None:
    """25 would store any key. Those of HTTP are tried in tests/architecture/test_read_settings.py."""
    code, remark, _, _ = bed.request(25, b"notifyConsumerIdsChangedEnable=false\n")
    assert (code, "UPDATE_BROKER_CONFIG" in remark) == (3, True)


def test_every_field_of_the_body_is_stored_or_the_name() -> None:
    named = {field.encode_name for field in msgspec.structs.fields(topics_admin.GroupData)}
    assert named == {"groupName", *settings_of_groups()}


def test_a_refusal_of_broadcasters_below_level_13_does_not_count_and_finalize_names_it() -> None:
    with SimCluster(12) as sim:

        def finalize(level: int) -> None:
            sim.propose(sim.leader(), Finalize(level))
            sim.loop.run_until(lambda: all(node.state.level == level for node in sim.running), 10, "the level")

        finalize(levels.SETTINGS_LEVEL - 1)
        bed = Bed(sim)
        code, remark = put_group(bed, "g", "consumeBroadcastEnable", False)
        assert (code, "raftmq upgrade finalize" in remark, "consumeBroadcastEnable" in remark) == (0, True, True)
        assert put_group(bed, "other", None, None) == (0, "")
        path = sim.leader().connect()
        beat(bed, path, "one", "g", "BROADCASTING")
        assert pull(bed, "g")[0] == 0
        finalize(levels.SETTINGS_LEVEL)
        assert pull(bed, "g")[0] == 0
        shown = json.loads(bed.request(201)[3])["subscriptionGroupTable"]["g"]
        assert shown["consumeBroadcastEnable"] is True, "what is shown is what counts"
        assert at_once(ignored_broadcasts(sim.leader().state)) == ["g"]
        assert put_group(bed, "g", "consumeBroadcastEnable", False) == (0, "")
        assert pull(bed, "g")[0] == 16
        assert at_once(ignored_broadcasts(sim.leader().state)) == []


def test_the_command_names_the_groups() -> None:
    assert _broadcasts({}) == _broadcasts({"broadcast_groups": []}) == []
    (line,) = _broadcasts({"broadcast_groups": ["a", "b"]})
    assert line.startswith("consumeBroadcastEnable=false of a, b was set before level 13")


def test_a_document_is_judged_as_a_request() -> None:
    with SimCluster(13) as sim:
        leader = sim.leader()
        record = group_record(groups.GroupConfig("g", broker_id=3))
        port: Any = SimpleNamespace(state=leader.state)
        with pytest.raises(ApiError, match="brokerId is 3"):
            _check_groups(port, [record])
        _check_groups(port, [group_record(groups.GroupConfig("g", refuses_broadcasts=True))])
        assert group_record(groups.GroupConfig("g", refuses_broadcasts=True)).consume_broadcast_enable is False
        ignored = groups.GroupConfig("g", consume_broadcast_enable=False)
        assert group_record(ignored).consume_broadcast_enable is True
