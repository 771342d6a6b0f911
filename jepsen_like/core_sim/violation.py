"""The violation that a run found: the name of the checker, and the contradiction in words."""

from __future__ import annotations

from raftlog.errors import InvariantViolationError

_RULES = (
    ("election safety", "election-safety"),
    ("log matching", "log-matching"),
    ("leader completeness", "leader-completeness"),
    ("state machine safety", "state-machine-safety"),
    ("only what is committed is applied", "state-machine-safety"),
    ("a majority's disks hold", "majority-durable"),
    ("one vote per term", "one-vote"),
    ("voted for itself", "one-vote"),
    ("match never falls", "match-falls"),
    ("the term never falls", "term-falls"),
    ("a committed entry stays", "commit-falls"),
    ("the commit index never falls", "commit-falls"),
    ("a leader only appends", "leader-append-only"),
    ("the newest members in the log are in force", "members-in-force"),
    ("electable members count majorities that meet", "members-majorities"),
    ("members change", "members-change"),
    ("only voters campaign", "members-role"),
    ("who is no voter by a committed entry does not lead", "members-role"),
    ("the log goes to the members in force", "members-role"),
)


class PromiseBroken(Exception):
    """A promise was broken. `checker` is the stable name of the checker, which seeded bugs refer to."""

    def __init__(self, checker: str, detail: str) -> None:
        super().__init__(f"{checker}: {detail}")
        self.checker = checker
        self.detail = detail


def from_invariant(error: InvariantViolationError, otherwise: str) -> PromiseBroken:
    """Returns the violation for a broken rule of `invariants.raft_group`. `otherwise` is the checker's name if the rule
    has no name of its own.
    """
    text = str(error)
    name = next((name for rule, name in _RULES if rule in text), otherwise)
    return PromiseBroken(name, text)
