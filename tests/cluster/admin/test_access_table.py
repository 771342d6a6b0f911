"""Every row of docs/access-table.md: who gets in, as the page says it, through the judge that nodes use."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.admin.handler_request import Call, ReadView
from cluster.admin.routes import ROUTES
from cluster.requests.judge import needs_of
from raftmq_wire.codes import RequestCode
from statemachine.access.access_decision import Allowed, judge
from statemachine.access.user_rows import User

PAGE = (Path(__file__).parents[3] / "docs" / "access-table.md").read_text()
CLUSTER = "DefaultCluster"
BRACES = "{cluster}"
PATHS = {
    "id": "1",
    "queue": "0",
    "index": "1",
    "position": "1",
    "file": "app.js",
    "key": "disk",
    "address": "a:1",
    "group": "2",
}
PATHS |= {"user": "root", "token": "0" * 64, "subject": "user=*", "digest": "a" * 64}
"""Parameters of paths that no rights name -> a value."""
BODIES: dict[tuple[str, str], dict[str, Any]] = {
    ("POST", "/v1/topics"): {"name": "name-1"},
    ("POST", "/v1/groups"): {"name": "name-1"},
    ("POST", "/v1/groups/{name}/clone"): {"source": "source-1", "topic": "topic-1"},
    ("POST", "/v1/groups/{name}/reset"): {"topic": "topic-1", "to": "earliest"},
    ("POST", "/v1/writes/abort"): {"name": "name-1", "write": 0},
    ("POST", "/v1/tokens"): {"user": "root"},
    ("PUT", "/v1/tokens/{token}"): {"user": "root", "label": "", "ends_ms": 1},
}
"""Bodies of the routes that are judged by what the body names: each as `names_in` has it."""
HTTP = dict(re.findall(r"^\| `((?:GET|POST|PUT|DELETE) \S+)` \| ([^|]*) \| [^|]*\|$", PAGE, re.MULTILINE))
CODES = {
    int(code): says for code, says in re.findall(r"^\| (\d+) \| [A-Z_0-9]+ \| ([^|]*) \| [^|]*\|$", PAGE, re.MULTILINE)
}
OPEN, SUPER, ALWAYS, ANYBODY = "open to everybody", "a Super", "a Super, in every mode", "any user"
PROVEN = "a proof of the cluster's secret in the request"
"""The handler checks it: everybody reaches that."""
OWN = "a Super, or the user whose token it is, in every mode"
"""The handler judges whose token it is (test_users_http.py)."""


def names_in(says: str) -> dict[str, str]:
    """Returns what takes the place of each name in braces."""
    return {name: f"{name}-1" for name in re.findall(r"{(\w+)}", says)} | {"cluster": CLUSTER}


def exact_rights(says: str, names: dict[str, str]) -> Iterator[list[tuple[str, list[str]]]]:
    """Yields each smallest set of rules that fits a row: one action on every resource that it names. `names`: what
    takes the place of a name in braces; the others stay."""
    choices = []
    for need in says.split("; "):
        actions, on, resource = need.partition(" on ")
        assert on, need
        name = re.sub(r"{(\w+)}", lambda found: names.get(found[1], found[0]), resource.split(",")[0])
        choices.append([(name, [action]) for action in actions.split(" or ")])
    for chosen in itertools.product(*choices):
        yield list(chosen)


async def reached(call: Call) -> ReadView:
    """Stands in for every handler."""
    return ReadView(node=1, consistency="local", applied_index=0)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
async def test_a_route_lets_in_whom_its_row_names(route: Any, make_node: Any, serve: Any) -> None:
    node = make_node()
    rights = HTTP[f"{route.method} {route.path}"]
    names = names_in(rights)
    sets = [] if rights in (OPEN, PROVEN, SUPER, ALWAYS, ANYBODY, OWN) else list(exact_rights(rights, names))
    root = node.add_user("root", is_super=True)
    nobody = node.add_user("nobody", ("Topic:other", ["All"]), ("Group:other", ["All"]))
    exact = [node.add_user(f"exact{number}", *rules) for number, rules in enumerate(sets)]
    short = [
        node.add_user(f"short{number}-{left}", *[rule for at, rule in enumerate(rules) if at != left])
        for number, rules in enumerate(sets)
        for left in range(len(rules))
    ]
    node.set_mode("enforce")
    client = await serve(node, [each._replace(handler=reached) for each in ROUTES])
    path = re.sub(r"{(\w+)}", lambda found: names.get(found[1]) or PATHS[found[1]], route.path)
    body = BODIES.get((route.method, route.path), {} if route.body else None)

    async def status(token: str | None) -> int:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        answer = await client.request(route.method, path, json=body, headers=headers)
        return int(answer.status)

    refused = {401, 403}
    assert await status(root) not in refused
    if rights in (OPEN, PROVEN):
        assert await status(None) not in refused
        return
    assert await status(None) == 401
    assert await status(nobody) == (200 if rights in (ANYBODY, OWN) else 403)
    for token in exact:
        assert await status(token) == 200
    for token in short:
        assert await status(token) == 403


def user(name: str, rules: list[tuple[str, list[str]]], make_node: Any, *, is_super: bool = False) -> User:
    node = make_node()
    node.add_user(name, *rules, is_super=is_super)
    found: User = node.state.access.users[name]
    return found


class Fields(dict[str, str]):
    """Ext fields, each of which names itself."""

    def get(self, name: str, default: Any = None) -> Any:
        return {"b": "{topic}"}.get(name, f"{{{name}}}")


HEARTBEAT = b'{"consumerDataSet":[{"groupName":"{groupName}","subscriptionDataSet":[{"topic":"{topic}"}]}]}'
QUEUES = b'{"consumerGroup":"{consumerGroup}","mqSet":[{"topic":"{topic}"}]}'
CODE_BODIES = {
    RequestCode.HEART_BEAT: HEARTBEAT,
    RequestCode.LOCK_BATCH_MQ: QUEUES,
    RequestCode.UNLOCK_BATCH_MQ: QUEUES,
    RequestCode.QUERY_ASSIGNMENT: b'{"topic":"{topic}","consumerGroup":"{consumerGroup}"}',
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: b'{"groupName":"{groupName}"}',
}


@pytest.mark.parametrize("code", list(RequestCode), ids=lambda code: code.name)
def test_a_code_lets_in_whom_its_row_names(code: RequestCode, make_node: Any) -> None:
    needs = needs_of(code, Fields(), CODE_BODIES.get(code, b""), BRACES)
    says = CODES.get(code, SUPER)
    if says == SUPER:
        assert needs is None
        return
    assert needs is not None
    root, nobody = user("root", [], make_node, is_super=True), user("nobody", [("Topic:other", ["All"])], make_node)
    assert isinstance(judge(root, "10.0.0.1", needs), Allowed)
    assert isinstance(judge(nobody, "10.0.0.1", needs), Allowed) == (says == ANYBODY)
    for rules in [] if says == ANYBODY else exact_rights(says, {}):
        assert isinstance(judge(user("exact", rules, make_node), "10.0.0.1", needs), Allowed)
        for left in range(len(rules)):
            fewer = [rule for at, rule in enumerate(rules) if at != left]
            assert not isinstance(judge(user("short", fewer, make_node), "10.0.0.1", needs), Allowed)


def test_every_row_of_the_page_was_read() -> None:
    assert set(HTTP) == {f"{route.method} {route.path}" for route in ROUTES}
    assert len(CODES) > 50
