"""Findings as services report them: a code, which is declared once beside its rule, and conditions that hold now.

A service reports its conditions by its Part, or raises an alarm. The HTTP API records when they began and shows them
(`cluster.admin.findings`). Each code has a section in docs/runbooks.md.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Severity = Literal["info", "warning", "critical"]
SEVERITIES: tuple[Severity, ...] = ("info", "warning", "critical")
"""The severities, the least first."""
CLUSTER = "cluster"
"""The object of a finding that is about no node, link or group."""


class Code(str):
    """The code of a finding, or the key of an alarm, with what all its findings have in common. Each is declared as a
    constant of the module that reports it."""

    __slots__ = ("do_now", "finding", "severity")

    severity: Severity
    do_now: str
    """The first command to type. `{n}` stands for the number of the node that the finding is about, else of the node
    that found it."""
    finding: str
    """The code of the findings that an alarm with this key makes. It is the key itself, unless several keys share one
    code."""

    def __new__(cls, code: str, severity: Severity, do_now: str, *, finding: str = "") -> Code:
        made = super().__new__(cls, code)
        made.severity, made.do_now, made.finding = severity, do_now, str(finding or code)
        return made

    def alarm(self, key: str) -> Code:
        """Returns the key of an alarm whose findings have this code."""
        return Code(key, self.severity, self.do_now, finding=self)


class Condition(NamedTuple):
    """A problem that a rule found at this moment."""

    code: Code
    object: str
    says: str
    do_now: str = ""
    """A command that replaces the code's; "" for none."""
    severity: Severity | None = None
    """A severity that replaces the code's; None for none."""
    hold_ms: int = 0
    """Milliseconds for which the condition must hold before it becomes a finding."""
    since_ms: int | None = None
    """Milliseconds since the Unix epoch at which the problem began; None: when it was first seen."""
