"""Runs the attacker (`jepsen_like.hostile.attacker`) in a separate process, and receives the reports of its rounds."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec

from jepsen_like.client_kit.wire import Target
from jepsen_like.hostile.attacker import AttackOrders
from jepsen_like.live.subjects.line_process import LineProcess
from jepsen_like.live.subjects.processes import Processes

if TYPE_CHECKING:
    from jepsen_like.live.subjects.raftmq_subject import RaftMQSubject

READY_S = 60.0
_SHOWN = 3


class AttackRound(msgspec.Struct):
    """The report of one round of an attack, made at its start and again at its end."""

    attack: str
    node: int
    round: int
    at_ns: int = 0
    """Time of the round's start on the clock of the history; 0 in the report of its end."""
    sent: int = 0
    answered: int = 0
    closed: int = 0
    wrong: list[str] = []
    took_s: float = -1.0
    error: str = ""

    @property
    def is_over(self) -> bool:
        """True if this reports the round's end."""
        return self.took_s >= 0


class AssaultError(OSError):
    """The attacker could not begin; the text is its output."""


def broken_in(rounds: Iterable[AttackRound]) -> str:
    """Returns what the rounds that are over found broken: how often, and the first proofs; "" if they found nothing."""
    wrong = [text for each in rounds if each.is_over for text in each.wrong]
    return f"{len(wrong)} times: {'; '.join(dict.fromkeys(wrong[:_SHOWN]))}" if wrong else ""


def orders_for(subject: RaftMQSubject, leader: int, attacks: list[str], seed: int, size: float) -> AttackOrders:
    """Returns the orders to attack these nodes at their own ports, without the proxies. Raises OSError if the leader
    does not answer."""
    targets = [Target(node.id, node.namesrv_port, node.peer_port, node.admin_port) for node in subject.nodes]
    cluster = str(subject.request(leader, "GET", "/v1/status")["cluster_id"])
    return AttackOrders(targets, leader, cluster, attacks, seed, size)


class Assault:
    """A context in which the attacker plays rounds. Raises AssaultError if the attacker is not ready in time."""

    def __init__(self, processes: Processes, orders: AttackOrders, on_round: Callable[[AttackRound], None]) -> None:
        """`on_round` is called on another thread, twice per round."""
        self._orders = orders
        self._on_round = on_round
        self._processes = processes
        self._ready = threading.Event()
        self._noise: list[str] = []
        self.died = False
        """True if the attacker ended without being told to."""

    def __enter__(self) -> Self:
        self._process = LineProcess(
            self._processes, "jepsen_like.hostile.attacker", self._hear, self._ready.set, with_errors=True
        )
        with contextlib.suppress(BrokenPipeError):
            self._process.order(self._orders)
        if not self._ready.wait(READY_S) or not self._process.is_heard:
            self._process.end()
            raise AssaultError(f"the attacker could not begin: {' | '.join(self._noise[-3:]) or 'it said nothing'}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.died = self._process.has_ended
        self._process.end()

    def deal(self, attacks: Sequence[str]) -> None:
        """Makes the attacker play these attacks from now on. With an empty list no new round begins, and rounds in
        progress go on to their ends.
        """
        with contextlib.suppress(BrokenPipeError):  # the attacker has died, which the end of the context reports
            self._process.say(json.dumps(list(attacks)))

    @property
    def noise(self) -> list[str]:
        """The last five lines of the attacker's output that are no reports: they say why it died."""
        return self._noise[-5:]

    def _hear(self, line: str) -> None:
        try:
            row: dict[str, Any] = json.loads(line)
            if "ready" in row:
                self._ready.set()
            else:
                self._on_round(msgspec.convert(row, AttackRound))
        except (ValueError, TypeError):
            self._noise.append(line.strip())
