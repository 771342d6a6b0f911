"""`raftmq logs`: prints the logs of local nodes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from raftmq.commands.shared_options import data_dir, data_option, json_option, print_json
from raftmq.commands.value_types import NodeNameType

if TYPE_CHECKING:
    from cluster.config.local_layout import NodeName

_POLL_S = 0.2


@click.command()
@click.argument("node", type=NodeNameType(), required=False)
@click.option("--follow", "-f", is_flag=True, help="Keep printing new lines until Ctrl-C.")
@click.option(
    "--lines", "-n", type=click.IntRange(min=0), default=50, show_default=True, help="Number of lines per node."
)
@data_option
@json_option
def logs(node: NodeName | None, follow: bool, lines: int, data: str | None, as_json: bool) -> None:
    """Show the output of one NODE, or of all nodes and the registry."""
    from cluster.config.local_layout import REGISTRY_GROUP, key_of, read_cluster
    from raftmq.local.process import log_tail

    cluster = read_cluster(data_dir(data))
    nodes = cluster.processes if node is None else [cluster.process(node)]

    def show(name: NodeName, line: str) -> None:
        if as_json:
            print_json({"node": name, "line": line})
        else:
            at = name if key_of(name)[0] == REGISTRY_GROUP else f"n{name}"
            click.echo(line if len(nodes) == 1 else f"{at} | {line}")

    ends = {each.name: _end(Path(each.log)) for each in nodes}
    for each in nodes:
        for line in log_tail(each, lines) if lines else ():
            show(each.name, line)
    while follow:
        for each in nodes:
            fresh, ends[each.name] = _read_from(Path(each.log), ends[each.name])
            for line in fresh:
                show(each.name, line)
        time.sleep(_POLL_S)


class _Place(NamedTuple):
    """A position in a node's log, up to which it was read."""

    file: int
    """The inode: it changes when the log continues in a new file, because the old one is full."""
    offset: int


NOWHERE: Final = _Place(0, 0)


def _end(path: Path) -> _Place:
    try:
        found = path.stat()
    except FileNotFoundError:
        return NOWHERE
    return _Place(found.st_ino, found.st_size)


def _read_from(path: Path, place: _Place) -> tuple[list[str], _Place]:
    """Returns the complete lines after a place, and where the next read starts. If a new file has begun, returns the
    rest of the previous file and the lines of the new one; if the file became shorter, it is read from the top."""
    now = _end(path)
    if now == NOWHERE:
        return [], NOWHERE
    before: list[str] = []
    if place.file not in (0, now.file):
        older = path.with_name(f"{path.name}.1")
        if _end(older).file == place.file:
            before, _ = _read_from(older, place)
        place = _Place(now.file, 0)
    start = place.offset if place.offset <= now.offset else 0
    with path.open("rb") as file:
        file.seek(start)
        whole, newline, _ = file.read().rpartition(b"\n")
    lines = whole.decode("utf-8", "replace").splitlines()
    return before + lines, _Place(now.file, start + len(whole) + len(newline))
