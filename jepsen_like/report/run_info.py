"""Facts about a run that its report shows in addition to the history."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import psutil

from jepsen_like.checkers.verdict import Outcome


class RunInfo(NamedTuple):
    """The description of one run: its faults, its subject, and how to repeat it."""

    title: str
    """The title, e.g. `chaos part-kill, seed 7`."""
    replay: str
    """The command that repeats the run."""
    started: str = ""
    """Time of the start, as text for people."""
    facts: Mapping[str, object] = {}
    """Options, versions, counts: anything worth a line in the report."""
    machine: Mapping[str, object] = {}
    """Facts about the machine, as `machine_facts` returns them."""
    verdict: Outcome | None = None
    """The verdict on the whole run, which may consider more than the checkers; None: the checkers' own verdict."""
    reasons: Sequence[str] = ()
    """Reasons of the verdict, besides the findings of the checkers."""
    explanation: str = ""
    """An explanation of the run's events, step by step, as plain text with blank lines between paragraphs."""


def machine_facts() -> dict[str, str]:
    """Returns facts about this machine, for `RunInfo.machine`."""
    memory = psutil.virtual_memory().total
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processors": f"{os.cpu_count()}",
        "memory": f"{memory / 2**30:.1f} GiB",
        "python": f"{platform.python_implementation()} {platform.python_version()}, {sys.byteorder} endian",
        "load": f"{load} (1, 5, 15 minutes)",
    }
