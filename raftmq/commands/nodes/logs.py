"""`raftmq logs`: prints the logs of local nodes."""

from __future__ import annotations

import time
from pathlib import Path

import click

from raftmq.commands.shared_options import data_dir, data_option, json_option, print_json

_POLL_S = 0.2


@click.command()
@click.argument("node", type=int, required=False)
@click.option("--follow", "-f", is_flag=True, help="Keep printing new lines until Ctrl-C.")
@click.option(
    "--lines", "-n", type=click.IntRange(min=0), default=50, show_default=True, help="Number of lines per node."
)
@data_option
@json_option
def logs(node: int | None, follow: bool, lines: int, data: str | None, as_json: bool) -> None:
    """Show the output of one NODE, or of all nodes."""
    from cluster.config.local_layout import read_cluster
    from raftmq.local.process import log_tail

    cluster = read_cluster(data_dir(data))
    nodes = cluster.nodes if node is None else [cluster.node(node)]

    def show(node_id: int, line: str) -> None:
        if as_json:
            print_json({"node": node_id, "line": line})
        else:
            click.echo(line if len(nodes) == 1 else f"n{node_id} | {line}")

    ends = {each.id: _size(Path(each.log)) for each in nodes}
    for each in nodes:
        for line in log_tail(each, lines) if lines else ():
            show(each.id, line)
    while follow:
        for each in nodes:
            fresh, ends[each.id] = _read_from(Path(each.log), ends[each.id])
            for line in fresh:
                show(each.id, line)
        time.sleep(_POLL_S)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _read_from(path: Path, start: int) -> tuple[list[str], int]:
    """Returns whole lines after byte `start`, and where the next read starts; reads from the top if the file became
    shorter."""
    if not path.exists():
        return [], 0
    with path.open("rb") as file:
        file.seek(start if start <= _size(path) else 0)
        begin = file.tell()
        whole, newline, _ = file.read().rpartition(b"\n")
    return whole.decode("utf-8", "replace").splitlines(), begin + len(whole) + len(newline)
