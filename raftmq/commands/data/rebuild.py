"""`raftmq rebuild`: rebuilds the state of a stopped node from a checkpoint and its log, after showing a plan."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from raftmq.commands.data.fsck import node_of
from raftmq.commands.shared_options import NodeDirectory, json_option, show
from raftmq_wire.errors import ExitCode, LocalError

if TYPE_CHECKING:
    from cluster.state.rebuild import RebuildPlan


@click.command()
@click.argument("directory", metavar="DIR", type=NodeDirectory())
@click.option(
    "--plan",
    "--dry-run",
    "plan_only",
    is_flag=True,
    help="Only show what would be done (the default without --yes).",
)
@click.option("--yes", is_flag=True, help="Do it.")
@click.option(
    "--from",
    "back",
    type=click.Choice(["checkpoint", "segment", "start"]),
    default="checkpoint",
    show_default=True,
    help="How far to go back: the newest sound checkpoint, one below the third-last segment (after an unclean stop: "
    "below the newest sound one), or the beginning of the log.",
)
@json_option
def rebuild(directory: Path, plan_only: bool, yes: bool, back: str, as_json: bool) -> int:
    """Rebuild the state of the stopped node whose data directory is DIR; shows a plan first.

    The old state moves to trash/ in DIR; the log is not changed. When the node starts, it applies the entries above
    the checkpoint again.
    """
    from cluster.state.fsck import check_is_of_a_node
    from cluster.state.overlay_fs import OverlayFileSystem
    from cluster.state.rebuild import Rebuild, RebuildError
    from raftlog.errors import IdentityError, RaftLogError
    from raftlog.storage.files.fs import OsFileSystem

    if plan_only and yes:
        raise LocalError(
            "--plan and --yes exclude each other",
            "--plan only shows the plan, --yes carries it out",
            f"raftmq rebuild {directory} --plan",
            ExitCode.USAGE,
        )
    try:
        check_is_of_a_node(directory)
        work = Rebuild(OsFileSystem() if yes else OverlayFileSystem(), directory, int(time.time() * 1000))
        try:
            plan = work.plan(back)
            trash = work.carry_out(plan) if yes else ""
        finally:
            work.close()
    except (RebuildError, IdentityError, RaftLogError) as error:
        what, _, rest = str(error).partition("\n")
        why, _, fix = rest.rpartition("\n")
        raise LocalError(
            what.rstrip("."), why or "nothing was changed", fix or f"raftmq fsck {directory}", ExitCode.REFUSED
        ) from None
    answer = {"done": yes, "set_aside_as": trash, "plan": _as_json(plan)}
    show(as_json, answer, *_lines(plan, trash, done=yes))
    return ExitCode.OK


def _lines(plan: RebuildPlan, trash: str, *, done: bool) -> list[str]:
    source = f"checkpoint {plan.checkpoint}" if plan.checkpoint else "nothing: every entry is applied again"
    vote = (
        f"  vote      withheld until the log has caught up: {plan.applied} had been applied, the log ends at "
        f"{plan.replay_to}"
    )
    node = node_of(plan.directory)
    who = plan.directory if node is None else f"node {node}, {plan.directory}"
    return [
        f"{'rebuilt' if done else 'plan for'} {who}",
        *(f"  because   {reason}" for reason in plan.because),
        f"  state     from {source}",
        f"  replay    {plan.entries:,} entries ({plan.bytes:,} bytes), {plan.replay_from}..{plan.replay_to}, from "
        f"position {plan.position:,}, when the node starts",
        *(f"  set aside {path} -> {trash or 'trash/NNNNNN-state, with a report beside it'}" for path in plan.set_aside),
        *([vote] if plan.withholds_vote else []),
        *([] if done else [f"nothing was changed; to do it: raftmq rebuild {plan.directory} --yes"]),
    ]


def _as_json(plan: RebuildPlan) -> dict[str, Any]:
    node = node_of(plan.directory)
    return {**plan._asdict(), "directory": str(plan.directory), **({} if node is None else {"node": node})}
