"""`make sim-night`: a wide search of many seeds, which takes hours. Every step runs, whatever the step before found."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import click

from jepsen_like.commit_seed import commit_of, commit_seed
from jepsen_like.live.conclusion import GATE_CODE, Conclusion
from jepsen_like.live.nemeses.scenarios import SCENARIOS, Scenario

CORE_SEEDS, FULL_SEEDS, CHAOS_S = 100_000, 2_000, 600
VERDICTS = {each.exit_code: each.value for each in Conclusion} | {GATE_CODE: "valid, but a gate was missed"}
COMMIT_DIGITS = 8


class NightStep(NamedTuple):
    """One command of `raftmq`, with its exit code and duration."""

    arguments: tuple[str, ...]
    code: int
    seconds: float

    @property
    def line(self) -> str:
        """One line of text about this step, for the summary."""
        outcome = "ok" if self.code == 0 else f"exit {self.code}"
        return f"{outcome:<8} {self.seconds:>7.0f} s  raftmq {shlex.join(self.arguments)}"

    def option(self, name: str) -> str:
        """The value of an option of the command; "" if it has none."""
        return dict(zip(self.arguments, self.arguments[1:], strict=False)).get(name, "")


def full_runs() -> list[Scenario]:
    """Returns the scenarios that can be run, in the order of `raftmq chaos list`."""
    return [scenario for scenario in SCENARIOS.values() if scenario.waits_for is None]


def is_full(scenario: Scenario, time_s: float) -> bool:
    """Returns True if a run of that length plays all of the scenario, so that its gates count."""
    return scenario.is_scripted or time_s >= scenario.full_s


def table_lines(steps: Sequence[NightStep], date: str, commit: str) -> list[str]:
    """Returns the lines of the table in docs/chaos.md, one for each full run of a scenario."""
    lines = []
    for step in steps:
        scenario = SCENARIOS.get(step.option("--scenario"))
        if scenario is not None and is_full(scenario, float(step.option("--time"))):
            verdict = VERDICTS.get(step.code, f"ended with code {step.code}")
            cells = (f"`{scenario.name}`", date, commit[:COMMIT_DIGITS] or "-", step.option("--seed"), verdict)
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def plan(
    first_seed: int, core: int, full: int, chaos_s: int, jobs: int, *, bugs: bool = True, scenarios: bool = True
) -> list[tuple[str, ...]]:
    """Returns the commands to run, each as the arguments of `raftmq`. A search over a range of seeds counts rare states
    over the whole range, and fails if one of them never occurred.
    """
    chaos = ("chaos", "run", "--seed", str(first_seed))
    seeds = ("--first-seed", str(first_seed), "--jobs", str(jobs))
    return [
        ("sim", "run", "--core", *seeds, "--seeds", str(core)),
        ("sim", "run", *seeds, "--seeds", str(full)),
        *([("sim", "bugs")] if bugs else []),
        (*chaos, "--time", str(chaos_s)),
        *(
            (*chaos, "--time", f"{min(chaos_s, scenario.full_s):g}", "--scenario", scenario.name)
            for scenario in (full_runs() if scenarios else ())
        ),
    ]


def perform(commands: Sequence[tuple[str, ...]], run: Callable[[tuple[str, ...]], int]) -> list[NightStep]:
    """Runs all commands, one after the other."""
    steps = []
    for arguments in commands:
        click.echo(f"--- raftmq {shlex.join(arguments)}")
        begun = time.monotonic()
        steps.append(NightStep(arguments, run(arguments), time.monotonic() - begun))
    return steps


def seeds_from(first_seed: int | None) -> tuple[int, str]:
    """Returns (first seed, text that says where the seed comes from). The seed is `first_seed`, or made from the commit
    if that is None.
    """
    return commit_seed() if first_seed is None else (first_seed, "as given")


def conclude(steps: Sequence[NightStep], date: str, commit: str) -> int:
    """Prints the summary of all steps; returns exit code 1 if any step failed, else 0."""
    for step in steps:
        click.echo(step.line)
    if lines := table_lines(steps, date, commit):
        click.echo("rows for the table of full runs:")
        for line in lines:
            click.echo(line)
    return 1 if any(step.code for step in steps) else 0


def _raftmq(arguments: tuple[str, ...]) -> int:
    return subprocess.run([sys.executable, "-m", "raftmq.cli", *arguments], check=False).returncode


@click.command()
@click.option("--first-seed", type=click.IntRange(min=0), help="Made from the commit unless given.")
@click.option("--core", default=CORE_SEEDS, show_default=True, help="Seeds of the core simulator.")
@click.option("--full", default=FULL_SEEDS, show_default=True, help="Seeds of the full-node simulator.")
@click.option("--chaos-s", default=CHAOS_S, show_default=True, help="Seconds of the mix, and at most of a scenario.")
@click.option("--bugs/--no-bugs", default=True, show_default=True, help="Hunt the seeded bugs, too: half an hour.")
@click.option("--scenarios/--no-scenarios", default=True, show_default=True, help="Play each scenario, too: hours.")
@click.option("--jobs", default=2, show_default=True, help="Processes of a search.")
@click.pass_context
def main(
    context: click.Context,
    first_seed: int | None,
    core: int,
    full: int,
    chaos_s: int,
    jobs: int,
    *,
    bugs: bool,
    scenarios: bool,
) -> None:
    """Search wide. Exit code: 0 if every step ended with 0."""
    seed, origin = seeds_from(first_seed)
    click.echo(f"seeds from {seed} ({origin})")
    date, commit = time.strftime("%Y-%m-%d", time.gmtime()), commit_of()
    steps = perform(plan(seed, core, full, chaos_s, jobs, bugs=bugs, scenarios=scenarios), _raftmq)
    context.exit(conclude(steps, date, commit))


if __name__ == "__main__":
    main()
