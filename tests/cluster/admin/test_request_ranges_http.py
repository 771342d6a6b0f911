"""Bodies of the HTTP API beyond their ranges: 400 for that request, and /openapi.json says the same ranges."""

from __future__ import annotations

import json
from typing import Any

from cluster.replication.outcome import Outcome
from tests.support.rows import each_row

GROUP = {
    "name": "g",
    "consume_enable": True,
    "consume_from_min_enable": True,
    "consume_broadcast_enable": True,
    "consume_message_orderly": False,
    "retry_queue_nums": 1,
    "retry_max_times": 16,
    "group_retry_policy": "",
    "broker_id": 0,
    "which_broker_when_consume_slowly": 1,
    "notify_consumer_ids_changed_enable": True,
    "group_sys_flag": 0,
    "consume_timeout_minute": 15,
    "attributes": {},
    "subscriptions": {},
}
TOPIC = {
    "name": "T",
    "read_queues": 1,
    "write_queues": 1,
    "perm": 6,
    "order": False,
    "sys_flag": 0,
    "attributes": {},
}
OFFSET = {"group": "g", "topic": "T", "queue_id": 0, "offset": 1}
MEMBER = {"cluster_id": "c", "uuid": "u", "host": "h", "port": 1}
BAD = {
    "offset 10^23": ("metadata", {"offsets": [OFFSET | {"offset": 10**23}]}),
    "offset 2^63": ("metadata", {"offsets": [OFFSET | {"offset": 2**63}]}),
    "offset -1": ("metadata", {"offsets": [OFFSET | {"offset": -1}]}),
    "offset 1.5": ("metadata", {"offsets": [OFFSET | {"offset": 1.5}]}),
    "offset true": ("metadata", {"offsets": [OFFSET | {"offset": True}]}),
    "queue 10^23": ("metadata", {"offsets": [OFFSET | {"queue_id": 10**23}]}),
    "times 10^30": ("metadata", {"groups": [GROUP | {"retry_max_times": 10**30}]}),
    "version 10^30": ("metadata", {"groups": [GROUP | {"subscriptions": {"T": ["TAG", "*", 10**30]}}]}),
    "attributes of a group": ("metadata", {"groups": [GROUP | {"attributes": {str(at): "" for at in range(65)}}]}),
    "queues 10^23": ("metadata", {"topics": [TOPIC | {"read_queues": 10**23}]}),
    "system flag": ("metadata", {"topics": [TOPIC | {"sys_flag": -(10**23)}]}),
    "topic, queues": ("topics", {"name": "T", "queues": 10**23}),
    "topic, permission": ("topics", {"name": "T", "perm": 16}),
    "topic, attributes": ("topics", {"name": "T", "attributes": {"a": "x" * 5000}}),
    "member, id": ("members", MEMBER | {"id": 10**23}),
    "member, admin": ("members", MEMBER | {"admin": "x" * 1000}),
    "member, listeners": ("members", MEMBER | {"listeners": {str(at): "x" for at in range(17)}}),
    "log, position": ("consistency/log", {"position": 10**23, "end_position": 1}),
    "drain, twice true": ("members/1/drain", {"drain": 1}),
}


@each_row("name", BAD)
async def test_beyond_its_range(client: Any, node: Any, name: str) -> None:
    where, body = BAD[name]
    before = node.state.applied
    answer = await client.post(f"/v1/{where}", json=body)
    assert (answer.status, (await answer.json())["error"]["code"]) == (400, "bad_field")
    assert node.state.applied == before


@each_row("text", ["NaN", "1e400", "[" * 60_000, '{"topics":[{"name":"\\ud800"}]}', '{"name":"\udc80"}', "1" * 60_000])
@each_row("where", ["metadata", "topics", "members"])
async def test_what_is_no_document(client: Any, where: str, text: str) -> None:
    data = text.encode("utf-8", "surrogateescape")
    answer = await client.post(f"/v1/{where}", data=data, headers={"Content-Type": "application/json"})
    assert (answer.status, (await answer.json())["error"]["code"]) == (400, "bad_json")


async def test_what_no_entry_can_hold_is_a_bad_request(client: Any, node: Any) -> None:
    node.fate, node.is_unacceptable = Outcome.FAIL, True
    for where, body in (("topics", {"name": "T"}), ("metadata", {"topics": [TOPIC]})):
        answer = await client.post(f"/v1/{where}", json=body)
        assert (answer.status, (await answer.json())["error"]["code"]) == (400, "bad_command")


async def test_the_document_says_the_same_ranges(client: Any) -> None:
    schemas = json.loads(await (await client.get("/openapi.json")).read())["components"]["schemas"]
    offset = schemas["OffsetRecord"]["properties"]["offset"]
    assert (offset["minimum"], offset["maximum"]) == (0, 2**63 - 1)
    assert schemas["ConsumerGroupRecord"]["properties"]["retry_max_times"]["minimum"] == -1
    assert schemas["TopicRequest"]["properties"]["attributes"]["anyOf"][0]["maxProperties"] == 64
