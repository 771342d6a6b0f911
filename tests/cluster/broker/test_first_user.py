"""The first Super out of a file: a new cluster is asked to judge requests while it is still on its way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.broker.access.user_admin import FIRST_AWAITED, Asker, FirstUser, UserAdmin
from cluster.broker.refusal import Reason, Refused
from cluster.replication.outcome import Outcome
from statemachine.access.user_rows import Mode
from statemachine.levels import ACCESS_LEVEL

OPERATOR = Asker("operator", "")
AWAITED = (Reason.UNAVAILABLE, FIRST_AWAITED)  # the same request may succeed in a moment


class Leader:
    """Keeps what is proposed. Nothing is ever committed; a test answers."""

    def __init__(self, folder: Path, text: str | None = "root\nroot-secret\n") -> None:
        self.state = SimpleNamespace(access=SimpleNamespace(next_id=1, users={}, key_id=""), level=ACCESS_LEVEL - 1)
        self.open = True
        self.proposed: list[Callable[[Any], object]] = []
        secrets: Any = SimpleNamespace(key_to_use="key", encrypted=lambda *_: b"sealed", problem="")
        self.users = UserAdmin(self, secrets, lambda: True)  # type: ignore[arg-type]
        path = folder / "first-user"
        if text is not None:
            path.write_text(text)
            path.chmod(0o600)
        self.first = FirstUser(str(path), self, self.users)  # type: ignore[arg-type]

    def writes_open(self) -> bool:
        return self.open

    def log_time_ms(self) -> int:
        return 0

    def propose(self, _: object, done: Callable[[Any], object]) -> None:
        self.proposed.append(done)

    def refusal(self) -> tuple[Reason, str] | None:
        """What a request for enforce is refused with at once; None if it was proposed."""
        try:
            self.users.set_mode(OPERATOR, Mode.ENFORCE, lambda _: None)
        except Refused as refused:
            return refused.reason, refused.remark
        self.proposed.pop()
        return None


def test_the_mode_waits_for_the_level_and_the_commit(tmp_path: Path) -> None:
    leader = Leader(tmp_path)
    leader.first.writes_opened()
    leader.first.tick(0)
    assert (leader.refusal(), leader.proposed) == (AWAITED, [])
    leader.state.level = ACCESS_LEVEL
    assert leader.refusal() == AWAITED
    leader.first.tick(1)
    assert (leader.refusal(), len(leader.proposed)) == (AWAITED, 1)
    result = SimpleNamespace(ok=True, code="ok", value=None)
    leader.proposed.pop()(SimpleNamespace(unacceptable=False, outcome=Outcome.OK, remark="", results=[result]))
    assert leader.refusal() is None


@pytest.mark.parametrize("text", [None, "", "root\n", "root\nsecret\nmore\n"], ids=["absent", "empty", "short", "long"])
def test_a_file_that_holds_no_user_is_not_waited_for(tmp_path: Path, text: str | None) -> None:
    leader = Leader(tmp_path, text)
    leader.state.level = ACCESS_LEVEL
    leader.first.writes_opened()
    leader.first.tick(0)
    assert (leader.refusal(), leader.proposed) == (None, [])


def test_who_leads_no_more_does_not_wait(tmp_path: Path) -> None:
    leader = Leader(tmp_path)
    leader.first.writes_opened()
    leader.state.level, leader.open = ACCESS_LEVEL, False
    leader.first.tick(0)
    assert leader.refusal() is None


def test_a_cluster_that_had_a_user_waits_for_none(tmp_path: Path) -> None:
    leader = Leader(tmp_path)
    leader.state.access.next_id = 2
    leader.first.writes_opened()
    assert leader.refusal() is None
