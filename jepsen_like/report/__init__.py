"""The report of a run: one self-contained HTML page."""

from jepsen_like.report.page import write_report
from jepsen_like.report.run_info import RunInfo, machine_facts

__all__ = ["RunInfo", "machine_facts", "write_report"]
