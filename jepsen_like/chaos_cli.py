"""`raftmq chaos`: runs a real cluster under faults, and checks whether it kept its promises."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

import click

from jepsen_like.check_cli import check_command
from jepsen_like.fuzz_cli import fuzz_command
from raftmq.commands.command_group import command_group
from raftmq.local_path import LocalPath

if TYPE_CHECKING:
    from jepsen_like.live.outcome import RunFindings
    from jepsen_like.live.plan import Plan
    from jepsen_like.live.run_lifecycle import RunRequest

TIME_S = 60.0


@command_group()
def chaos() -> None:
    """Run a real cluster under faults and check its promises."""


chaos.add_command(check_command)
chaos.add_command(fuzz_command)


@chaos.command("run")
@click.option("--scenario", metavar="NAME", help="A named set of faults (raftmq chaos list).")
@click.option(
    "--nemesis", metavar="A,B", help="Only these faults (default without --scenario: all that work on this machine)."
)
@click.option("--subject", default="raftmq", show_default=True, metavar="NAME", help="raftmq or pysyncobj.")
@click.option(
    "--time",
    "time_s",
    type=click.FloatRange(min=1),
    metavar="S",
    help=f"Seconds under faults (default {TIME_S:g}; with --scenario those of a full run).",
)
@click.option(
    "--scale",
    type=click.FloatRange(min=0.001, max=1),
    metavar="F",
    help="Length of a scripted scenario or of hostile clients; less than 1 is a rehearsal.",
)
@click.option(
    "--seed", type=click.IntRange(min=0), help="Seed for the choice of faults; it is printed, so a run can be repeated."
)
@click.option(
    "--beside",
    metavar="A,B",
    help="Hostile clients one by one, --time each, while this happens: nothing, snapshot, checkpoint, kills (or all).",
)
@click.option("--at-once", metavar="N", help="Hostile clients: how many attacks share a hand (a core each), or all.")
@click.option("--rate", type=click.IntRange(min=1), help="Sends per second (raftmq 2000, pysyncobj 6000).")
@click.option("--secured", is_flag=True, help="Over TLS between nodes too, the load as a user with few rights.")
@click.option("--out", type=LocalPath(path_type=Path), metavar="DIR", help="The run's new folder.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def run_command(
    scenario: str | None,
    nemesis: str | None,
    subject: str,
    time_s: float | None,
    scale: float | None,
    seed: int | None,
    beside: str | None,
    at_once: str | None,
    rate: int | None,
    secured: bool,
    out: Path | None,
    as_json: bool,
) -> int:
    """Run a cluster under faults.

    Exit code: 0 valid, 1 invalid, 3 unknown, 6 unsupported, 7 valid but a gate of a full run (600 s and more; with
    --scenario what is said in "raftmq chaos list") was missed (2: wrong command, 5: refused to start).
    """
    from jepsen_like.live.conclusion import Conclusion
    from jepsen_like.live.run_lifecycle import perform, run_folder
    from raftmq.commands.shared_options import ended_like_ctrl_c, print_json

    def tell(text: str) -> None:
        if not as_json:
            click.echo(text)

    wish = _wish(scenario, nemesis, subject, time_s, scale, seed, rate)
    if beside is not None:
        wish = _beside(wish, beside)
    wish = with_at_once(wish, at_once)._replace(secured=secured)
    if wish.scenario is not None and (why := _unsupported(wish)):
        tell(f"{Conclusion.UNSUPPORTED.value}: {why}")
        if as_json:
            print_json(
                {"schema": 1, "verdict": Conclusion.UNSUPPORTED.value, "scenario": wish.scenario.name, "reasons": [why]}
            )
        return Conclusion.UNSUPPORTED.exit_code
    folder = run_folder(out, wish.seed)
    with ended_like_ctrl_c():
        plan, outcome = perform(wish, folder, tell)
    if as_json:
        print_json(outcome.to_json(plan) | {"folder": str(folder)})
    else:
        _show(outcome, plan, folder)
    return outcome.exit_code(plan)


def _wish(
    scenario: str | None,
    nemesis: str | None,
    subject: str,
    time_s: float | None,
    scale: float | None,
    seed: int | None,
    rate: int | None,
) -> RunRequest:
    from cluster.config.source import nearest
    from jepsen_like.live.nemeses.scenarios import NEMESES, nemeses_named, scenario_named
    from jepsen_like.live.plan import all_hostile
    from jepsen_like.live.run_lifecycle import SUBJECTS, RunRequest
    from raftmq_wire.errors import ExitCode, LocalError

    if scenario is not None and nemesis is not None:
        raise LocalError(
            "--scenario and --nemesis exclude each other",
            "a scenario is a fixed set of faults",
            "raftmq chaos run --nemesis A,B",
            ExitCode.USAGE,
        )
    if subject not in SUBJECTS:
        raise LocalError(
            f"there is no subject {subject!r}",
            f"there are {', '.join(SUBJECTS)}",
            f"raftmq chaos run --subject {nearest(subject, SUBJECTS) or SUBJECTS[0]}",
            ExitCode.USAGE,
        )
    chosen = tuple(nemeses_named(nemesis)) if nemesis is not None else None
    named = scenario_named(scenario) if scenario is not None else None
    if named is not None:
        chosen = tuple(NEMESES[name] for name in named.nemeses)
    is_sized = (named is not None and named.is_scripted) or all_hostile(chosen)
    if scale is not None and not is_sized:
        raise LocalError(
            "--scale is for scripted scenarios and hostile clients",
            "--time sets the duration of the others",
            "raftmq chaos run --scenario report-001 --scale 0.1",
            ExitCode.USAGE,
        )
    seed = secrets.randbelow(2**31) if seed is None else seed
    if time_s is None:
        time_s = TIME_S if named is None else named.full_s
    return RunRequest(subject, named, chosen, time_s, seed, rate, 1.0 if scale is None else scale)


def _beside(wish: RunRequest, names: str) -> RunRequest:
    """Returns the request changed so that each of its attacks is played by itself during each of the events in `names`
    (names from `concurrent_events.BESIDE` separated by commas, or "all"). Raises LocalError.
    """
    from cluster.config.source import nearest
    from jepsen_like.live.plan import all_hostile
    from jepsen_like.live.stories.concurrent_events import BESIDE
    from raftmq_wire.errors import ExitCode, LocalError

    if wish.scenario is not None or not all_hostile(wish.nemeses):
        raise LocalError(
            "--beside is for hostile clients",
            "each of them is played by itself",
            "raftmq chaos run --nemesis turns --beside all --time 20",
            ExitCode.USAGE,
        )
    chosen = tuple(BESIDE) if names == "all" else tuple(name.strip() for name in names.split(","))
    for name in chosen:
        if name not in BESIDE:
            raise LocalError(
                f"there is no {name!r} to play beside",
                f"there are {', '.join(BESIDE)}, and all",
                f"raftmq chaos run --nemesis turns --beside {nearest(name, tuple(BESIDE)) or 'all'}",
                ExitCode.USAGE,
            )
    return wish._replace(beside=chosen)


def with_at_once(wish: RunRequest, number: str | None) -> RunRequest:
    """Returns the request with `at_once` set, the number of attacks that run at the same time. `number` is the value of
    --at-once: a number from 1 on, "all" (`at_once` becomes None), or None if the user gave none; then it is the number
    of cores, at least two. Raises LocalError for any other value, and if the attacks come one by one.
    """
    from jepsen_like.live.plan import HOSTILE, story_of
    from raftmq_wire.errors import ExitCode, LocalError

    if number is None:
        return wish._replace(at_once=max(2, len(os.sched_getaffinity(0))))
    if story_of(wish.nemeses, wish.beside) != HOSTILE:
        raise LocalError(
            "--at-once is for hostile clients that are played together",
            "other faults, and attacks with --beside, come one by one",
            "raftmq chaos run --scenario hostile --at-once 4",
            ExitCode.USAGE,
        )
    if number != "all" and not (number.isdecimal() and int(number) > 0):
        raise LocalError(
            f"--at-once {number} is no number of attacks",
            "it is a number from 1 on, or all",
            "raftmq chaos run --scenario hostile --at-once all",
            ExitCode.USAGE,
        )
    return wish._replace(at_once=None if number == "all" else int(number))


def _unsupported(wish: RunRequest) -> str | None:
    """Returns the reason why the scenario cannot be run at all; None if it can."""
    assert wish.scenario is not None
    if wish.scenario.waits_for is not None:
        return f"{wish.scenario.name} waits for {wish.scenario.waits_for}, which is not built yet"
    if wish.subject not in wish.scenario.subjects:
        return f"{wish.scenario.name} cannot be played on {wish.subject}"
    return None


def _show(outcome: RunFindings, plan: Plan, folder: Path) -> None:
    from jepsen_like.live.summary import last_line, lines

    for line in lines(outcome, plan):
        click.echo(line)
    click.secho(last_line(outcome, plan, folder), bold=True)


@chaos.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
def list_command(as_json: bool) -> None:
    """List scenarios and faults, and the features some of them wait for."""
    from jepsen_like.live.nemeses.scenarios import FAMILIES, NEMESES, SCENARIOS

    if as_json:
        told = {
            "schema": 1,
            "scenarios": [
                {
                    "name": s.name,
                    "does": s.does,
                    "nemeses": list(s.nemeses),
                    "scripted": s.is_scripted,
                    "full_s": None if s.is_scripted else s.full_s,
                    "waits_for": s.waits_for,
                }
                for s in SCENARIOS.values()
            ],
            "nemeses": [{"name": n.name, "does": n.does} for n in NEMESES.values()],
        }
        click.echo(json.dumps(told))
        return
    click.echo("scenarios")
    for scenario in SCENARIOS.values():
        length = "to its end" if scenario.is_scripted else f"{scenario.full_s:g} s"
        note = f"waits for {scenario.waits_for}" if scenario.waits_for else length
        click.echo(f"  {scenario.name:<20} {scenario.does}    [{note}]")
    click.echo("faults")
    for nemesis in NEMESES.values():
        click.echo(f"  {nemesis.name:<20} {nemesis.does}")
    for name, members in FAMILIES.items():
        click.echo(f"  {name:<20} all of {', '.join(members)}")


@chaos.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
def doctor_command(as_json: bool) -> int:
    """Test which faults this machine supports. Exit code 1 if one of them does not work here."""
    from jepsen_like.live.doctor import examine
    from raftmq.commands.shared_options import ended_like_ctrl_c

    with ended_like_ctrl_c():
        findings = examine(Path.cwd(), lambda text: click.echo(text, err=True))
    if as_json:
        click.echo(json.dumps({"schema": 1, "findings": [finding._asdict() for finding in findings]}))
    else:
        for finding in findings:
            mark = "yes" if finding.works else "no"
            click.echo(f"{mark:<4} {finding.name:<22} {finding.told}    [{finding.faults}]")
    return 0 if all(finding.works or not finding.needed for finding in findings) else 1
