"""`raftmq recovery`: shows what the last start of each node found and did, and the reason why that was safe."""

from __future__ import annotations

from typing import Any

import click

from cluster.config.local_layout import NodeName
from raftmq.commands.point_in_time import time_text
from raftmq.commands.shared_options import cluster_options, show
from raftmq.commands.value_types import NodeNameType
from raftmq.local.http.all_groups import all_groups, ask_all_of
from raftmq_wire.errors import ExitCode

_MIB = 1 << 20
_ENDED = {
    "orderly": "stopped in order",
    "process_died": "the process died, the machine kept running",
    "machine_restarted": "the machine was restarted",
}


@click.command()
@click.option("--node", type=NodeNameType(click.IntRange(1)), metavar="N", help="Only this node.")
@cluster_options
def recovery(node: NodeName | None, data: str | None, admin: str | None, as_json: bool) -> int:
    """Show what the last start of each node found and did.

    Exit code: 4 if no node answers, or the one named with --node does not.
    """
    answers, silent = ask_all_of(all_groups(admin, data, members=True), "/v1/recovery", node)
    shown = [answer.view for answer in answers]
    show(as_json, {"nodes": shown}, *(line for answer in shown for line in lines_of(answer)))
    for error in silent.values() if node is None and not as_json else ():
        click.echo(f"({error.what}: {error.why})", err=True)
    return ExitCode.OK


def lines_of(answer: dict[str, Any]) -> list[str]:
    """Returns the lines about the last start of one node."""
    told = answer["recovery"]
    stages = ", ".join(f"{name} {milliseconds:.0f} ms" for name, milliseconds in told["stages_ms"].items())
    lines = [
        f"node {answer['node']}: up {answer['uptime_ms'] / 1000:.0f} s; before that: {_previous(told['previous'])}",
        f"  stages   {stages}",
        f"  scanned  {scanned(told)} of log; cut {told['torn_bytes_cut']:,} torn bytes",
        f"  state    {told['state_found'].replace('_', ' ')}; source: {_source(told)}",
        f"  replay   {_replay(told)}",
        f"  synced   {_synced(told['checkpoints'])}",
    ]
    lines += [
        f"  damage   entries {one['first_index']}..{one['last_index']}, "
        f"positions {one['first_position']}..{one['end_position']}: {one['why']}"
        for one in told["damage"]
    ]
    lines += [f"  alarm    {text}" for text in told["alarms"]]
    lines += [f"  because  {reason}" for reason in told["reasons"]]
    return lines


def scanned(told: dict[str, Any]) -> str:
    """Returns the amount of data that a start read, and how much of it is preallocated space without data. `told`: an
    answer of `GET /v1/recovery`."""
    text, zeroed = f"{told['bytes_scanned'] / _MIB:.1f} MiB", told.get("bytes_zeroed", 0)
    return f"{text} ({zeroed / _MIB:.1f} MiB of it zero-filled room)" if zeroed else text


def _previous(run: dict[str, Any] | None) -> str:
    if run is None:
        return "no earlier run is known"
    return f"pid {run['pid']}, {_ENDED.get(run['ended'], run['ended'])}, synced up to entry {run['synced_index']}"


def _source(told: dict[str, Any]) -> str:
    aside = f", the old state is in {told['state_set_aside']}" if told["state_set_aside"] else ""
    return f"{told['state_source']} {told['state_checkpoint']}".strip() + aside


def _replay(told: dict[str, Any]) -> str:
    done = f"{told['entries_replayed']:,} entries applied again"
    if not told["replaying"]:
        return done
    left = told["replay_target"] - told["replay_index"]
    return f"{done}, {left:,} to go; served up to entry {told['replay_index']}"


def _synced(times: dict[str, Any]) -> str:
    def at(ms: int) -> str:
        return time_text(ms) if ms else "not yet"

    newest = times["checkpoint_index"]
    return (
        f"entry {times['synced_index']} (log {at(times['log_flushed_ms'])}, queues {at(times['queues_flushed_ms'])}, "
        f"index {at(times['index_flushed_ms'])}); "
        + (f"newest checkpoint at entry {newest}" if newest >= 0 else "no checkpoint yet")
    )
