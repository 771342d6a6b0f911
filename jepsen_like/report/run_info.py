"""The facts about a run that its report adds to the history."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import psutil

from jepsen_like.checkers.verdict import Outcome


class RunInfo(NamedTuple):
    """One run: what was done to whom, and how to do it again."""

    title: str
    """E.g. `chaos part-kill, seed 7`."""
    replay: str
    """The command that repeats it."""
    started: str = ""
    """Time of the start, for people."""
    facts: Mapping[str, object] = {}
    """Options, versions, counts: anything worth a line."""
    machine: Mapping[str, object] = {}
    """Facts about the machine, as `machine_facts` returns them."""
    verdict: Outcome | None = None
    """The verdict on the whole run, which may know more than its checkers do; None: the checkers' own."""
    reasons: Sequence[str] = ()
    """Reasons of the verdict, besides what the checkers found."""
    explanation: str = ""
    """The events, told step by step; plain text, blank lines separate paragraphs."""


def machine_facts() -> dict[str, str]:
    """The machine of this process, for `RunInfo.machine`."""
    memory = psutil.virtual_memory().total
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processors": f"{os.cpu_count()}",
        "memory": f"{memory / 2**30:.1f} GiB",
        "python": f"{platform.python_implementation()} {platform.python_version()}, {sys.byteorder} endian",
        "load": f"{load} (1, 5, 15 minutes)",
    }
