"""`raftmq fsck`: checks that everything in a stopped node's directory is intact, and reports what the next start of the
node would do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cluster.config.loading import load
from cluster.config.local_layout import CLUSTER_FILE, NodeName, name_of
from cluster.config.node_files import node_files
from raftlog.types import FIRST_GROUP
from raftmq.commands.shared_options import NodeDirectory, json_option, show
from raftmq_wire.errors import ExitCode, LocalError

if TYPE_CHECKING:
    from cluster.registry.directory_check import DirectoryReport
    from cluster.state.fsck import FsckReport
    from raftlog.storage.verify.findings import Finding

_SHOWN = 20


@click.command()
@click.argument("directories", nargs=-1, required=True, metavar="DIR...", type=NodeDirectory())
@click.option("--deep", is_flag=True, help="Also compare every message with the row that points to it.")
@json_option
def fsck(directories: tuple[Path, ...], deep: bool, as_json: bool) -> int:
    """Check data directories of stopped nodes; changes nothing.

    DIR is a node's data directory (.raftmq/n1/data), or that of a local cluster (.raftmq) for all its nodes and its
    registry. Exit code: 0 if all are sound, 1 if one is damaged, 2 if one is not a data directory, 5 if a node is
    running on one.
    """
    from cluster.state.fsck import Fsck
    from raftlog.errors import IdentityError

    reports = []
    for directory in (each for named in directories for each in _of_cluster(named)):
        try:
            reports.append(Fsck(directory, deep=deep).run())
        except IdentityError as error:
            raise _refused(error) from None
    registry = [report for named in directories for report in _registry_of(named)]
    answer = {
        "directories": [_as_json(report) for report in reports],
        **({"registry": [_registry_json(report) for report in registry]} if registry else {}),
    }
    lines = [*(line for report in reports for line in _lines(report)), *map(_registry_line, registry)]
    show(as_json, answer, *lines)
    sound = [*(report.sound for report in reports), *(not report.fault for report in registry)]
    return ExitCode.OK if all(sound) else ExitCode.FAILED


def _registry_of(directory: Path) -> list[DirectoryReport]:
    """Returns the reports of the registry's directories of the local cluster in `directory`. Raises ConfigError, and
    LocalError if one of its processes runs."""
    from cluster.config.local_layout import read_cluster
    from raftmq.local.process import is_running
    from raftmq.local.registry_processes import report_on

    if not (directory / CLUSTER_FILE).exists():
        return []
    found = []
    for record in read_cluster(directory).registry:
        if is_running(record):
            what = f"{record.home / 'data'} is in use by process {record.pid}"
            raise _refused(LookupError(f"{what}\nthe files would change"))
        found.append(report_on(record))
    return found


def _registry_line(report: DirectoryReport) -> str:
    if report.fault:
        return f"{report.directory}: DAMAGED, the registry can do without: {report.fault}"
    return f"{report.directory}: sound, up to entry {report.last}"


def _registry_json(report: DirectoryReport) -> dict[str, Any]:
    return {"directory": str(report.directory), "sound": not report.fault, "fault": report.fault or None}


def _of_cluster(directory: Path) -> list[Path]:
    """Returns the data directories of all nodes of the local cluster in `directory`; `directory` if there is none.
    Raises ConfigError."""
    if not (directory / CLUSTER_FILE).exists():
        return [directory]
    return [Path(load(file).node.data_dir) for file in node_files(directory)]


def node_of(directory: Path) -> NodeName | None:
    """Returns the name of the node of a data directory, if the node belongs to a further group; None for the first
    group, and if the identity cannot be read."""
    from raftlog.errors import IdentityError
    from raftlog.storage.files import identity as identities
    from raftlog.storage.files import layout

    path = directory / layout.IDENTITY
    try:
        own = identities.decode(path.read_bytes(), path)
    except (OSError, IdentityError):  # the report names the fault
        return None
    return None if own.group_id == FIRST_GROUP else name_of(own.group_id, own.node_id)


def _refused(error: Exception) -> LocalError:
    what, why, *rest = str(error).split("\n")
    if "is in use by process" in what:
        why = "the files would change while they are checked"
        return LocalError(what.rstrip("."), why, "raftmq down, then repeat the command", ExitCode.REFUSED)
    return LocalError(what.rstrip("."), why.rstrip("."), " ".join(rest), ExitCode.USAGE)


def _lines(report: FsckReport) -> list[str]:
    noted = f", {len(report.judged)} notes" if report.judged else ""
    more = f"  ... and {len(report.judged) - _SHOWN} more; all of them: --json"
    node = node_of(report.directory)
    who = report.directory if node is None else f"node {node}, {report.directory}"
    return [
        f"{who}: {f'sound{noted}' if report.sound else 'DAMAGED'}",
        *(line for finding, cure in report.judged[:_SHOWN] for line in _lines_of(finding, cure)),
        *([more] if len(report.judged) > _SHOWN else []),
        f"  the next start would find: {report.start}",
    ]


def _lines_of(finding: Finding, cure: str) -> tuple[str, str]:
    place = f" at byte {finding.offset:,}" if finding.size else ""
    said = f"  {finding.severity.value:<10} {finding.kind}: {finding.path}{place}: {finding.text}"
    return said, f"  {'':<10} -> {cure}"


def _as_json(report: FsckReport) -> dict[str, Any]:
    node = node_of(report.directory)
    return {
        "directory": str(report.directory),
        **({} if node is None else {"node": node}),
        "sound": report.sound,
        "start": report.start,
        "findings": [
            {
                "path": str(finding.path),
                "offset": finding.offset,
                "size": finding.size,
                "kind": finding.kind,
                "severity": finding.severity.value,
                "text": finding.text,
                "cure": cure,
            }
            for finding, cure in report.judged
        ],
    }
