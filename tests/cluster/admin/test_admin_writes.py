"""/v1/writes."""

from __future__ import annotations

from typing import Any

from cluster.admin.handlers.staged_writes import ATTEMPTS_SHOWN
from cluster.broker.transactions.staged_writes import DISCARDED_MAX
from cluster.replication.outcome import Outcome
from statemachine.delivery.staged_writes import CommitWrite, OpenAttempt


async def test_writes_are_listed_aborted_and_forgotten(client: Any, node: Any) -> None:
    node.apply([OpenAttempt("query q", 4, 5), OpenAttempt("query q", 5, 6), CommitWrite("write w", 0, 7, [])])
    found = await (await client.get("/v1/writes?consistency=linearizable")).json()
    assert [(one["attempt"], one["name"], one["write"], one["state"]) for one in found["attempts"]] == [
        (1, "query q", 4, "open"),
        (2, "query q", 5, "open"),
    ]
    assert found["committed"] == [{"name": "write w", "write": 0, "messages": 0, "committed_ms": 7}]
    assert (found["staged"], found["bytes"], found["more"], node.reads_confirmed) == (0, 0, False, 1)
    assert (found["prepared"], found["decisions"]) == ([], [])
    for path, body in (("abort", {"name": "query q", "write": 4}), ("forget", {"name": "write w"})):
        planned = await client.post(f"/v1/writes/{path}", json={**body, "dry_run": True})
        assert (planned.status, (await planned.json())["dry_run"]) == (200, True)
    assert [one.number for one in node.state.writes.attempts()] == [1, 2]
    assert node.state.writes.committed("write w") is not None
    gone = await client.post("/v1/writes/abort", json={"name": "query q", "write": 4})
    assert (gone.status, (await gone.json())["attempts"]) == (200, 1)
    assert [one.number for one in node.state.writes.attempts()] == [2]
    again = await client.post("/v1/writes/abort", json={"name": "query q", "write": 4})
    assert again.status == 404
    forgotten = await client.post("/v1/writes/forget", json={"name": "write w"})
    assert (forgotten.status, (await forgotten.json())["write"]) == (200, 0)
    assert node.state.writes.committed("write w") is None
    assert (await client.post("/v1/writes/forget", json={"name": "write w"})).status == 404


async def test_more_writes_than_are_shown_are_said_to_be_there(client: Any, node: Any) -> None:
    node.apply([OpenAttempt("q", number, 5) for number in range(ATTEMPTS_SHOWN + 1)])
    found = await (await client.get("/v1/writes")).json()
    assert (len(found["attempts"]), found["more"]) == (ATTEMPTS_SHOWN, True)
    await client.post("/v1/writes/abort", json={"name": "q", "write": 4})
    assert not (await (await client.get("/v1/writes")).json())["more"]


async def test_an_abort_that_discards_a_part_is_not_said_to_have_changed_nothing(client: Any, node: Any) -> None:
    node.apply([OpenAttempt("q", 4, 5) for _ in range(DISCARDED_MAX + 2)])
    first: list[Any] = []
    propose = node.propose

    def lost_after_the_first(commands: Any, done: Any, *rest: Any) -> None:
        node.fate = Outcome.FAIL if first else Outcome.OK
        first.append(commands)
        propose(commands, done, *rest)

    node.propose = lost_after_the_first
    answer = await client.post("/v1/writes/abort", json={"name": "q", "write": 4})
    assert (answer.status, (await answer.json())["error"]["code"]) == (504, "unknown_outcome")
    assert len(list(node.state.writes.attempts())) == 2
    answer = await client.post("/v1/writes/abort", json={"name": "q", "write": 4})
    assert (answer.status, (await answer.json())["error"]["code"]) == (503, "failed"), "nothing more was changed"
