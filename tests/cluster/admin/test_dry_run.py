"""Whatever destroys something can be asked first what it would destroy."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import click

from cluster.admin.openapi import document
from cluster.admin.routes import ROUTES
from cluster.backup.manifest import MANIFEST, Manifest, encode
from cluster.tier.scrub.scrub_service import _NOTHING, _view
from cluster.tier.scrub.scrubber import ScrubOptions
from raftmq.cli import cli
from tests.support.rows import each_row

DESTROYS_NOTHING = {
    "POST /v1/groups": "creates a group or changes its settings; offsets stay",
    "POST /v1/members": "adds a learner",
    "POST /v1/broker-groups": "adds a group of brokers, in which nothing is yet",
    "DELETE /v1/broker-groups/{group}/drain": "the group takes messages again; undone by the same path",
    "POST /v1/members/{id}/promote": "a learner becomes a voter",
    "POST /v1/members/claims": "gives an initial node to its machine, once",
    "POST /v1/members/{id}/drain": "moves leadership; undone by the same request",
    "POST /v1/leader/transfer": "moves leadership",
    "POST /v1/config/reload": "reads a file",
    "PUT /v1/log-level": "undone by the same request",
    "PUT /v1/failpoints": "undone by the same request, and only where faults are allowed",
    "POST /v1/alarms/{key}/ack": "an acknowledgement; what was lost is lost already",
    "POST /v1/consistency": "writes a marker",
    "POST /v1/consistency/log": "only reads",
    "POST /v1/repair": "replaces what is damaged; GET /v1/repair shows it first",
    "POST /v1/scrub": "only reads",
    "POST /v1/tier/seal": "closes a segment",
    "DELETE /v1/clients/{address}": "closes a connection; the client connects again",
    "DELETE /v1/members/{id}/clients/{address}": "the same on another node",
    "POST /v1/session": "makes a login, and ends the oldest of fifty",
    "DELETE /v1/session": "a logout; the user logs in again",
    "POST /v1/users": "creates a user, and changes none",
    "PUT /v1/users/{user}": "undone by the same request, but for the secret, which nobody can read anyway",
    "DELETE /v1/users/{user}": "no message goes; GET /v1/acl/{user} shows the rules that do",
    "POST /v1/acl/test": "only reads",
    "PUT /v1/acl/{user}": "GET /v1/acl/{user} shows the rule whose place is taken",
    "DELETE /v1/acl/{user}": "GET /v1/acl/{user} shows what goes",
    "POST /v1/tokens": "makes a token",
    "PUT /v1/quotas/learnt/{digest}": "nothing is in force by that",
    "PUT /v1/tokens/{token}": "the same on the leader",
    "DELETE /v1/tokens/{token}": "the user makes another one",
    "PUT /v1/auth/key": "the secrets stay the same; undone by the same request with the former key",
    "PUT /v1/auth": "undone by the same request; raftmq auth mode shows what it would stop",
}
"""Changes that take no dry_run, and why they need none."""
DESTROYING = (
    "backup create",
    "config set",
    "dlq purge",
    "group clone",
    "group delete",
    "group reset",
    "metadata import",
    "node maintenance",
    "node remove",
    "rebuild",
    "repair",
    "retention",
    "tier sweep",
    "topic delete",
    "unsafe-recover",
    "writes abort",
    "writes forget",
)


def changing_operations() -> dict[str, bool]:
    """ "METHOD path" of every operation that changes something -> whether it takes dry_run."""
    api = document(ROUTES)
    schemas = api["components"]["schemas"]
    found = {}
    for path, operations in api["paths"].items():
        for method, operation in operations.items():
            if method == "get":
                continue
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            fields = schemas.get(body.get("$ref", "").rpartition("/")[2], {}).get("properties", {})
            asks = {parameter["name"] for parameter in operation["parameters"]}
            found[f"{method.upper()} {path}"] = "dry_run" in fields or "dry_run" in asks
    return found


def test_what_destroys_takes_dry_run() -> None:
    operations = changing_operations()
    assert sorted(name for name, takes in operations.items() if not takes) == sorted(DESTROYS_NOTHING)
    assert len(operations) > len(DESTROYS_NOTHING)


@each_row("name", DESTROYING)
def test_so_do_the_commands(name: str) -> None:
    command: Any = cli
    with click.Context(cli) as context:
        for word in name.split():
            command = command.get_command(context, word)
    assert "--dry-run" in {option for parameter in command.params for option in parameter.opts}


async def test_an_import_is_checked_and_not_made(client: Any, node: Any) -> None:
    topic = {"name": "new", "read_queues": 1, "write_queues": 1, "perm": 6, "order": False}
    topic |= {"sys_flag": 0, "attributes": {}}
    body = {"topics": [topic], "dry_run": True}
    answer = await client.post("/v1/metadata", json=body)
    view = await answer.json()
    assert (answer.status, view["topics"], view["dry_run"]) == (200, 1, True), view
    assert "new" not in node.state.topics
    offset = {"group": "g", "topic": "none", "queue_id": 0, "offset": 1}
    refused = await client.post("/v1/metadata", json={"offsets": [offset], "dry_run": True})
    assert refused.status == 404


async def test_a_dry_sweep_changes_nothing_in_the_store(client: Any, node: Any) -> None:
    class Scrubs:
        """Keeps what it is asked for."""

        view = _view(1, 1, _NOTHING)
        wishes: ClassVar[list[ScrubOptions]] = []

        def begin(self, wishes: ScrubOptions) -> bool:
            self.wishes.append(wishes)
            return True

    node.tier_scrubs = Scrubs()
    for dry in (True, False):
        body = {"reads": False, "repairs": True, "sweeps": True, "dry_run": dry}
        assert (await client.post("/v1/tier/scrub", json=body)).status == 202
    assert Scrubs.wishes == [ScrubOptions(False, False, False), ScrubOptions(False, True, True)]


async def test_a_dry_backup_names_the_older_ones_that_would_go(make_node: Any, serve: Any, tmp_path: Path) -> None:
    """The new one counts, those of another cluster and what a person put aside do not."""
    node = make_node(1, backup__roots=str(tmp_path))
    own = node.status().cluster_id
    for at, (name, uuid, folder) in enumerate([("a", own, "a"), ("x", "other", "x"), ("b", own, "b"), ("a", own, "c")]):
        made = Manifest(
            name=name,
            made_ms=at,
            node=1,
            cluster_uuid=uuid,
            cluster_name="",
            broker_name="",
            group_id=1,
            index=1,
            term=1,
            position=0,
            header_crc=0,
            timestamp_ms=0,
            segment_size=0,
            origin=[],
            digest={},
            segments=[],
            state=[],
            bytes_total=0,
            bytes_new=0,
            versions={},
        )
        (tmp_path / folder).mkdir()
        (tmp_path / folder / MANIFEST).write_bytes(encode(made))
    begun: list[str] = []
    node.backups.begin = lambda to, **_: begun.append(to)
    client = await serve(node)
    for keep, gone in ((3, []), (2, ["a"]), (1, ["a", "b"]), (None, [])):
        answer = await client.post("/v1/backup", json={"to": str(tmp_path), "keep": keep, "dry_run": True})
        assert (answer.status, (await answer.json())["would_remove"]) == (200, gone)
    fresh = await client.post("/v1/backup", json={"to": f"{tmp_path}/new", "keep": 1, "dry_run": True})
    assert (await fresh.json())["would_remove"] == []
    stored = await client.post("/v1/backup", json={"to": f"file://{tmp_path}/store", "keep": 1, "dry_run": True})
    assert (stored.status, (await stored.json())["would_remove"]) == (200, [])
    assert begun == []
