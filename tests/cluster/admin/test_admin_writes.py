"""/v1/writes."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from cluster.admin.handler_request import Call
from cluster.admin.handlers import staged_writes
from cluster.admin.handlers.staged_writes import ATTEMPTS_SHOWN
from cluster.broker.refusal import Reason, Refused
from cluster.broker.rights import Party
from cluster.broker.transactions.staged_writes import DISCARDED_MAX, StagedWriteRequests
from cluster.replication.outcome import Outcome
from raftlog.work import charge
from statemachine.access.users import NOBODY
from statemachine.delivery.staged_writes import CommitWrite, DiscardAttempts, OpenAttempt


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


def opens(requests: StagedWriteRequests, user: int, name: str) -> int | None:
    """The number of an attempt that the user opens; None if it has to wait."""
    told: list[Any] = []
    try:
        requests.open(Party(user, "10.0.0.1"), name, 1, told.append)
    except Refused as refused:
        return None if refused.reason is Reason.BUSY and "of this user" in refused.remark else -1
    return int(told[0])


def requests_of(node: Any, user_attempts_max: int) -> StagedWriteRequests:
    return StagedWriteRequests(node, cast("Any", None), cast("Any", None), node.rights, user_attempts_max)


async def test_no_user_takes_the_places_for_attempts_of_all(node: Any) -> None:
    """Whoever may write under one name can open attempts, and stage nothing for them until they expire."""
    requests = requests_of(node, user_attempts_max=8)
    mine = [opens(requests, 1, f"query {n}") for n in range(8)]
    assert None not in mine
    assert [opens(requests, 1, "query 0"), opens(requests, 1, "query 9")] == [None, None]
    assert opens(requests, 2, "query z") is not None
    node.apply([DiscardAttempts([number]) for number in mine[:3] if number is not None])
    assert [opens(requests, 1, f"query {n}") is not None for n in range(4)] == [True, True, True, False]
    assert all(opens(requests, NOBODY, "query n") is not None for _ in range(20)), "nobody is proven: no part"


async def test_an_attempt_that_is_not_opened_takes_no_place(node: Any) -> None:
    requests = requests_of(node, user_attempts_max=2)
    node.fate = Outcome.FAIL
    for _ in range(5):
        requests.open(Party(1, "10.0.0.1"), "query q", 1, lambda _: None)
    node.fate, waiting = Outcome.OK, list[Any]()
    node.propose = lambda commands, done: waiting.append(done)
    for _ in range(2):  # what is under way counts
        requests.open(Party(1, "10.0.0.1"), "query q", 1, lambda _: None)
    assert opens(requests, 1, "query q") is None


async def test_an_abort_goes_on_when_its_client_is_gone(node: Any) -> None:
    """Half of it would be discarded otherwise, and its request wait for ever in the node."""
    node.apply([OpenAttempt("q", 4, 5) for _ in range(3 * DISCARDED_MAX)])
    node.turns.share = 1
    propose = node.propose

    def gone(commands: Any, done: Any, *rest: Any) -> None:
        charge(2)
        node.turns.drop("the connection")  # what its end does (`cluster.admin.resource_limits`)
        propose(commands, done, *rest)

    node.propose = gone
    body = staged_writes.AbortRequest(name="q", write=4)
    asked = asyncio.ensure_future(
        staged_writes.abort_write(Call(node, cast("Any", None), {}, body, "local", owner="the connection"))
    )
    for _ in range(200):
        await asyncio.sleep(0)
    attempts, is_answered = list(node.state.writes.attempts()), asked.done()
    asked.cancel()
    assert (attempts, is_answered) == ([], True)
