"""`raftmq inspect-consistency`: checks whether all nodes hold the same data."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from cluster.config.local_layout import name_of
from raftmq.commands.shared_options import cluster_options, plain, print_json
from raftmq.local.http.admin_http import AdminApi, ApiRefusal
from raftmq.local.http.all_groups import all_groups, in_one
from raftmq_wire.errors import ExitCode, LocalError

if TYPE_CHECKING:
    from cluster.repair.consistency_views import ConsistencyView, EntryView
    from cluster.repair.node_comparison import Comparison, Difference

_APPLY_WAIT_S, _POLL_S = 5.0, 0.05


class Remote:
    """A node that is inspected over HTTP; implements `cluster.repair.node_comparison.ComparedNode`."""

    def __init__(self, address: str) -> None:
        self._api = AdminApi([address])

    def view(self, index: int | None = None) -> ConsistencyView:
        """Returns the node's view of its data. `index`: the entry as of which rows are compared; None for a view
        without sums of rows. Waits up to _APPLY_WAIT_S until the node has applied that entry; if it then has not, the
        view has no sums either. Raises LocalError."""
        from cluster.repair.consistency_views import ConsistencyView

        deadline = time.monotonic() + _APPLY_WAIT_S
        while True:
            path = "/v1/consistency" if index is None else f"/v1/consistency/{index}"
            view: ConsistencyView = _convert(self._api.local(path), ConsistencyView)
            if view.sums or index is None or time.monotonic() > deadline:
                return view
            time.sleep(_POLL_S)

    def entry(self, index: int) -> EntryView:
        """Returns the node's view of one entry."""
        from cluster.repair.consistency_views import EntryView

        entry: EntryView = _convert(self._api.local(f"/v1/consistency/entries/{index}"), EntryView)
        return entry

    def chunks(self, position: int, end_position: int, chunk_bytes: int) -> list[str | None]:
        """Returns the CRC of each chunk of the node's log between the positions; None for a chunk that cannot be
        read."""
        body = {"position": position, "end_position": end_position, "chunk_bytes": chunk_bytes}
        found: list[str | None] = self._api.post("/v1/consistency/log", body)["crcs"]
        return found


def _convert(answer: dict[str, Any], kind: Any) -> Any:
    import msgspec

    return msgspec.convert(answer, kind)


@click.command("inspect-consistency")
@cluster_options
def inspect(data: str | None, admin: str | None, as_json: bool) -> int:
    """Compare the nodes with each other while they run: log, consume queues, index and metadata.

    Logs are compared by their header chain and by checksums of the bytes on disk, rows by a digest as of one entry.
    Prints the first difference with its position. Exit code: 0 if everything is equal, 1 if something differs, 3 if
    the comparison was not possible.
    """
    reports: dict[int, Comparison] = {}
    silent: dict[int, LocalError] = {}
    for group, addresses in all_groups(admin, data, members=True).items():
        try:
            reports[group] = _inspected(addresses)
        except LocalError as error:
            if error.exit_code is not ExitCode.UNREACHABLE:
                raise
            silent[group] = error
    if not reports:
        raise next(iter(silent.values()))
    if as_json:
        import msgspec

        told = {group: msgspec.to_builtins(report, str_keys=True) for group, report in reports.items()}
        told |= {group: {"nodes": [], "findings": [], "unknown": [_unseen(why)]} for group, why in silent.items()}
        print_json({"schema": 1, **in_one(dict(sorted(told.items())))})
    else:
        for group, report in reports.items():
            _print(report, group)
        for group, why in silent.items():
            click.echo(f"group {group}: unknown: {_unseen(why)}")
    if any(report.findings for report in reports.values()):
        return ExitCode.FAILED
    return ExitCode.UNKNOWN if silent or any(report.unknown for report in reports.values()) else ExitCode.OK


def _unseen(error: LocalError) -> str:
    return f"{error.what}: {error.why}"


def _inspected(addresses: Sequence[str]) -> Comparison:
    """Compares the nodes of one group. Raises LocalError if none answers."""
    from cluster.repair.node_comparison import Inspection

    marker, unmarked = _mark(addresses)
    nodes: dict[int, Remote] = {}
    silent: list[str] = []
    refused: ApiRefusal | None = None
    for address in addresses:
        try:
            nodes[Remote(address).view().node] = Remote(address)
        except ApiRefusal as error:
            refused = refused or error
            silent.append(f"{address} was not compared: {error.what}")
        except LocalError as error:
            silent.append(f"{address} was not compared: {error.why or error.what}")
    if not nodes and refused is not None:
        raise refused
    if not nodes:
        raise LocalError("no node answers", "; ".join(silent), "raftmq status", ExitCode.UNREACHABLE)
    inspection = Inspection(nodes)
    inspection.unknown += [*silent, *unmarked]
    return inspection.run(marker)


def _mark(addresses: Sequence[str]) -> tuple[int | None, list[str]]:
    try:
        return int(AdminApi(addresses).post("/v1/consistency", {})["index"]), []
    except LocalError as error:
        return None, [f"{error.what}: {error.why}"]


def _print(report: Comparison, group: int) -> None:
    names = f"node{'s' if len(report.nodes) > 1 else ''} {_names(report.nodes, group)}"
    click.echo(
        f"{names}: log up to entry {report.index} ({report.bytes_compared:,} bytes each), "
        + (f"rows as of entry {report.marker}" if report.marker >= 0 else "no rows")
    )
    for finding in report.findings:
        click.echo(plain(_sentence(finding, group)))
    for doubt in report.unknown:
        click.echo(plain(f"unknown: {doubt}"))
    if not report.findings and not report.unknown:
        click.echo("equal: header chain, log bytes, consume queues, index, dedup, offsets, groups, topics, meta")


def _names(nodes: Iterable[int], group: int) -> str:
    return ", ".join(str(name_of(group, node)) for node in nodes)


def _sentence(finding: Difference, group: int) -> str:
    held = ", ".join(
        f"node {name_of(group, node)} {value or 'nothing readable'}" for node, value in sorted(finding.nodes.items())
    )
    where = (
        f"position {finding.position} (entry {finding.index})"
        if finding.position is not None
        else (f"entry {finding.index}")
    )
    own = f"; damaged on node {_names(finding.damaged, group)}, being repaired" if finding.damaged else ""
    return f"DIFFERENT: {finding.what}, first at {where}: {held}{own}"
