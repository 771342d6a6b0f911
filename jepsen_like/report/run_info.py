"""What a report says about a run besides its history."""

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
    """When, for people."""
    facts: Mapping[str, object] = {}
    """Options, versions, counts: anything worth a line."""
    machine: Mapping[str, object] = {}
    """See machine_facts."""
    verdict: Outcome | None = None
    """Of the whole run, which may know more than its checkers do; None: what the checkers say."""
    reasons: Sequence[str] = ()
    """Why the verdict is what it is, besides what the checkers found."""
    explanation: str = ""
    """What happened, told step by step; plain text, blank lines separate paragraphs."""


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
