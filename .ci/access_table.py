"""`.ci/access_table.py`: writes docs/access-table.md, from the rows by which nodes judge requests.

Each row of the clients' ports is asked for its needs with fields that hold their own names in braces, so that the page
shows which field names the topic or the group. tests/architecture/test_access_page.py compares the page with the rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from cluster.admin.routes import ROUTES
from cluster.requests.judge import needs_of
from cluster.requests.table import VERBS
from raftmq_wire.codes import RequestCode

PAGE = Path(__file__).parents[1] / "docs" / "access-table.md"
CLUSTER = "{cluster}"
_HEARTBEAT = b'{"consumerDataSet":[{"groupName":"{groupName}","subscriptionDataSet":[{"topic":"{topic}"}]}]}'
_QUEUES = b'{"consumerGroup":"{consumerGroup}","mqSet":[{"topic":"{topic}"}]}'
_BODIES = {
    RequestCode.HEART_BEAT: _HEARTBEAT,
    RequestCode.LOCK_BATCH_MQ: _QUEUES,
    RequestCode.UNLOCK_BATCH_MQ: _QUEUES,
    RequestCode.QUERY_ASSIGNMENT: b'{"topic":"{topic}","consumerGroup":"{consumerGroup}"}',
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: b'{"groupName":"{groupName}"}',
}
_NAMES = {"b": "{topic}"}
HEAD = """\
# Access table: the rights that each request needs

<!-- Written by .ci/access_table.py from the codes and routes that nodes serve. -->

[Security](security.md) says what users and rules are. Where a row names several resources, the user needs a right to
each of them; where it names several actions, one of them suffices. `{name}` is the field or the parameter that names
the topic or the group, and `{cluster}` is `cluster.name`. A group's retry topic (`%RETRY%group`) needs a right to the
group: `Sub`, or the one that the row names if that changes the topic. So do its dead letters
(`%DLQ%group`), except when they are sent. The user must be enabled in every row but the open ones.

## Requests to the clients' ports

No node serves a code that is not in this table. A heartbeat needs the rights for every group and topic in it, and one
of producers alone needs a user. The last column is what the node asks for once it has found what the request touches:
[security](security.md#what-does-a-request-touch) says how. Who lacks it gets the answer for something that does not
exist.

| Code | Request | Needs | Judged by what is stored |
|---|---|---|---|
"""
ROUTES_HEAD = """
## Requests to the HTTP API

`HEAD` needs what `GET` needs. The open rows tell nothing about data or the cluster: load balancers, and browsers that
have not logged in yet, ask for them.

| Request | Needs | Judged by what is stored |
|---|---|---|
"""


class _Fields(dict[str, str]):
    """Ext fields, each of which holds its own name."""

    def get(self, name: str, default: object = None) -> str:  # type: ignore[override]  # every field is there
        return _NAMES.get(name, f"{{{name}}}")


def code_rows() -> Iterator[tuple[int, str, str, str]]:
    """Yields (code, name, needs in words, needs by what is stored in words)."""
    for code, verb in sorted(VERBS.items()):
        needs = needs_of(code, _Fields(), _BODIES.get(RequestCode(code), b""), CLUSTER)
        yield (
            code,
            verb.name,
            "a Super" if needs is None else "; ".join(map(str, needs)) or "any user",
            verb.stored,
        )


def page() -> str:
    """Returns the text of the page."""
    codes = [f"| {code} | {name} | {needs} | {stored} |\n" for code, name, needs, stored in code_rows()]
    routes = [f"| `{route.method} {route.path}` | {route.needs.says} | {route.needs.stored} |\n" for route in ROUTES]
    return HEAD + "".join(codes) + ROUTES_HEAD + "".join(routes)


if __name__ == "__main__":
    PAGE.write_text(page())
