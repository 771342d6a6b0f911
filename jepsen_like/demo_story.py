"""The demo's output: a few numbered lines for a person, or only the result line for programs."""

from __future__ import annotations

import json
import sys
from contextlib import AbstractContextManager
from typing import Any

from rich.console import Console

from jepsen_like.checker_log import LogVerdict

RESULT_KEYS = ("seed", "acked", "read", "lost", "duplicated", "failover_ms", "term_before", "term_after")


class DemoStory:
    """Prints the steps of the demo. `quiet` leaves only the result line."""

    def __init__(self, *, quiet: bool) -> None:
        self.console = Console(file=sys.stdout, quiet=quiet, highlight=False, soft_wrap=True)
        self._chapter = 0

    def chapter(self, title: str) -> None:
        """Prints the title of a new step."""
        self._chapter += 1
        self.console.print(f"[bold]{self._chapter}. {title}[/]")

    def tell(self, text: str) -> None:
        """Prints a line below the step's title."""
        self.console.print(f"   {text}")

    def working(self, text: str) -> AbstractContextManager[object]:
        """Shows a spinner on a terminal while something takes time; shows nothing elsewhere."""
        return self.console.status(text)

    def verdict(self, verdict: LogVerdict, shown: int = 5) -> None:
        """Prints the checker's verdict, with the first proofs if anything is wrong."""
        self.tell(
            f"acknowledged {verdict.acked:,}, failed {verdict.failed:,}, unknown {verdict.unknown:,}"
            + (f" (of which {verdict.unknown_stored:,} are stored)" if verdict.unknown else "")
        )
        for kind in ("lost", "duplicated", "reordered", "phantom"):
            found = [anomaly for anomaly in verdict.anomalies if anomaly.kind == kind]
            self.tell(f"{kind:<11} {'[green]0[/]' if not found else f'[red]{len(found):,}[/]'}")
            for anomaly in found[:shown]:
                self.tell(f"  {anomaly.message_id}: {anomaly.what}")
        for item in verdict.incomplete[:shown]:
            self.tell(f"[red]not read to the end[/]: {item.topic}/{item.queue_id} on node {item.node}")

    def result(self, result: dict[str, Any]) -> None:
        """Prints the last line: one JSON object."""
        assert tuple(result) == RESULT_KEYS
        self.console.file.write(json.dumps(result) + "\n")
        self.console.file.flush()
