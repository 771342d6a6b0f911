"""GET /v1/writes of either group says what becomes of a write to both, and a name is not forgotten meanwhile."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cluster.admin.errors import ApiError
from cluster.admin.handlers import staged_writes
from cluster.replication.outcome import Outcome, ProposeResult
from raftlog.types import EntryId
from statemachine.delivery.prepared_writes import EndPrepared
from tests.support.write_kit import commit, groups_of_writes, prepared


def call_of(log: Any, body: Any = None) -> Any:
    """A request at the leader of one of two groups, whose entries are applied at once."""

    def propose(commands: Any, done: Any) -> None:
        done(ProposeResult(Outcome.OK, log.run(*commands), EntryId(1, 1), ""))

    port = SimpleNamespace(
        state=log.state, config=SimpleNamespace(node=SimpleNamespace(id=1)), services=SimpleNamespace(propose=propose)
    )
    return SimpleNamespace(port=port, consistency="linearizable", body=body)


async def test_each_group_shows_what_it_knows_of_a_write_to_both(new_log: Any) -> None:
    two = groups_of_writes(new_log)
    first, second = two.first.log, two.second.log
    decider, attempt = prepared(two, "query q", 7)
    at_ms = second.log.now_ms
    shown = await staged_writes.list_writes(call_of(second))
    [there] = shown.prepared
    assert (there.name, there.write, there.state, there.attempts, there.messages) == ("query q", 7, "undecided", 1, 2)
    assert (there.deciding_group, there.decider, there.prepared_ms) == (1, decider, at_ms)
    assert [(one.attempt, one.state) for one in shown.attempts] == [(attempt, "prepared")]
    shown = await staged_writes.list_writes(call_of(first))
    assert (shown.prepared, shown.decisions) == ([], [])
    assert [(one.attempt, one.state, one.messages) for one in shown.attempts] == [(decider, "open", 0)]

    commit(two, decider, "query q", 7)
    [decision] = (await staged_writes.list_writes(call_of(first))).decisions
    assert (decision.name, decision.write, decision.decider, decision.waiting_groups) == ("query q", 7, decider, [2])
    assert decision.committed_ms == 7
    assert second.one(EndPrepared(decider, True, at_ms)).ok
    [there] = (await staged_writes.list_writes(call_of(second))).prepared
    assert there.state == "committed"
    for number in range(staged_writes.GROUP_WRITES_SHOWN):
        prepared(two, f"query {number}", 0)
    shown = await staged_writes.list_writes(call_of(second))
    assert (len(shown.prepared), shown.more) == (staged_writes.GROUP_WRITES_SHOWN, True)
    two.run(3000)
    assert not (await staged_writes.list_writes(call_of(first))).decisions


async def test_a_name_with_a_prepared_write_is_not_forgotten(new_log: Any) -> None:
    two = groups_of_writes(new_log)
    decider, _ = prepared(two)
    commit(two, decider)
    two.run(3000)
    prepared(two, write=1)
    wanted = staged_writes.ForgetRequest(name="q")
    with pytest.raises(ApiError) as caught:
        await staged_writes.forget_write(call_of(two.second.log, wanted))
    assert caught.value.code == "refused"
    assert caught.value.message == "write 1 of 'q' is prepared and waits for its decision; nothing was forgotten"
    assert caught.value.hint.startswith("raftmq writes abort q 1 ")
