"""The log checker, with its anomalies summarized in four kinds: lost, duplicated, reordered, phantom.

`jepsen_like.checkers.log` does the checking, and distinguishes finer kinds, which are grouped here; the demo and the
simulator report these four. Operations and their values are those of `jepsen_like.checkers.history_steps`.

Meaning of each outcome of a send, per replica:

    outcome   0 copies            1 copy     2 or more
    ok        lost                fine       duplicated
    info      fine, unless        fine       duplicated
              another replica
              has it: lost
    fail      fine                phantom    phantom, duplicated
    never     -                   phantom    phantom, duplicated
    sent

*reordered* is everything about order: a gap or a step back inside one queue, an offset other than the acknowledged one,
replicas that hold different messages at one offset, and a message that was acknowledged before another was even sent
but stands behind it (real-time order).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from jepsen_like.checkers import log
from jepsen_like.checkers.history_steps import MalformedStep, Operations
from jepsen_like.checkers.messages import Messages
from jepsen_like.checkers.verdict import Anomaly, Findings
from jepsen_like.history import Op, pair_up

_KINDS = {
    **dict.fromkeys(("lost-write", "lost-on-node"), "lost"),
    **dict.fromkeys(("duplicate",), "duplicated"),
    **dict.fromkeys(("phantom", "aborted-read", "future-read", "misplaced"), "phantom"),
    **dict.fromkeys(
        ("replica-skip", "replica-nonmonotonic", "offset-mismatch", "inconsistent-offset", "realtime-order"),
        "reordered",
    ),
}


class LogAnomaly(NamedTuple):
    """One proof that a promise was broken. `ops` are the indexes of the history's steps that prove it."""

    kind: str
    """"lost", "duplicated", "reordered" or "phantom"."""
    what: str
    node: int | None
    message_id: str
    ops: tuple[int, ...]


class Incomplete(NamedTuple):
    """A queue of a replica that was not read to its end, so that the checker cannot tell which messages are missing
    there.
    """

    node: int
    topic: str
    queue_id: int


class LogVerdict(NamedTuple):
    """The findings of the log checker. Counts are over every replica: one message lost on two replicas counts twice."""

    acked: int
    failed: int
    unknown: int
    read: dict[int, int]
    """Number of messages that each node returned, including repeated ones."""
    unknown_stored: int
    """The number of sends with unknown outcome that turned out to be stored."""
    anomalies: list[LogAnomaly]
    incomplete: list[Incomplete]

    def count(self, kind: str) -> int:
        """Returns the number of anomalies of one kind."""
        return sum(anomaly.kind == kind for anomaly in self.anomalies)

    @property
    def valid(self) -> bool | None:
        """True: no anomaly, and everything was read. False: an anomaly was found. None: no anomaly, but not everything
        was read."""
        if self.anomalies:
            return False
        return None if self.incomplete else True


def check_log(ops: Iterable[Op]) -> LogVerdict:
    """Checks a history of sends and final reads. Raises ValueError if ids repeat or steps cannot be paired."""
    try:
        messages = Messages.of(Operations(pair_up(ops)))
    except MalformedStep as error:
        raise ValueError(str(error)) from error
    findings = Findings(limit=None)
    log.judge(messages, findings, ordered=False)
    counts = log.statistics(messages)
    return LogVerdict(
        acked=counts["acked"],
        failed=counts["failed"],
        unknown=counts["unknown"],
        read={int(node): rows for node, rows in counts["read"].items()},
        unknown_stored=counts["unknown_stored"],
        anomalies=[coarse for anomaly in findings.kept for coarse in _coarse(anomaly, messages)],
        incomplete=[Incomplete(node, *queue) for node, queue in log.unread(messages)],
    )


def _coarse(anomaly: Anomaly, messages: Messages) -> list[LogAnomaly]:
    """Returns the anomaly in this module's kinds. A message that is lost everywhere counts once for every replica."""
    kind = _KINDS[anomaly.kind]
    nodes = messages.nodes if anomaly.kind == "lost-write" else [anomaly.node]
    return [LogAnomaly(kind, anomaly.what, node, anomaly.subject, anomaly.ops) for node in nodes]


def summary(verdict: LogVerdict) -> dict[str, Any]:
    """Returns the verdict as one JSON object, with at most ten anomalies of each kind."""
    kinds = ("lost", "duplicated", "reordered", "phantom")
    shown = [a for kind in kinds for a in [b for b in verdict.anomalies if b.kind == kind][:10]]
    return {
        "valid": verdict.valid,
        "acked": verdict.acked,
        "failed": verdict.failed,
        "unknown": verdict.unknown,
        "unknown_stored": verdict.unknown_stored,
        "read": verdict.read,
        **{kind: verdict.count(kind) for kind in kinds},
        "anomalies": [anomaly._asdict() for anomaly in shown],
        "incomplete": [item._asdict() for item in verdict.incomplete],
    }
