"""Checkers decide what a history proves about the system that made it. See docs/checkers.md.

verdict = check(ops, "log")
verdict.outcome            # "valid", "invalid" or "unknown"
print(verdict.text(ops))   # anomalies with the steps that prove them
"""

from jepsen_like.checkers.compose import check, check_file
from jepsen_like.checkers.history_steps import VOCABULARY
from jepsen_like.checkers.verdict import Anomaly, CheckerResult, Outcome, Verdict
from jepsen_like.checkers.workload import WORKLOADS, Workload, workload_named

__all__ = [
    "VOCABULARY",
    "WORKLOADS",
    "Anomaly",
    "CheckerResult",
    "Outcome",
    "Verdict",
    "Workload",
    "check",
    "check_file",
    "workload_named",
]
