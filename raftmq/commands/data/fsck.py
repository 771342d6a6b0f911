"""`raftmq fsck`: checks that everything in a stopped node's directory is as it was written, and says what the node's
next start would do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from raftmq.commands.shared_options import NodeDirectory, json_option, show
from raftmq_wire.errors import ExitCode, LocalError

if TYPE_CHECKING:
    from cluster.state.fsck import FsckReport
    from raftlog.storage.verify.findings import Finding

_SHOWN = 20


@click.command()
@click.argument("directories", nargs=-1, required=True, metavar="DIR...", type=NodeDirectory())
@click.option("--deep", is_flag=True, help="Also compare every message with the row that points to it.")
@json_option
def fsck(directories: tuple[Path, ...], deep: bool, as_json: bool) -> int:
    """Check data directories of stopped nodes; changes nothing.

    DIR is a node's data directory (.raftmq/n1/data). Exit code: 0 if all are sound, 1 if one is damaged, 2 if one is
    not a data directory, 5 if a node is running on one.
    """
    from cluster.state.fsck import Fsck
    from raftlog.errors import IdentityError

    reports = []
    for directory in directories:
        try:
            reports.append(Fsck(directory, deep=deep).run())
        except IdentityError as error:
            raise _refused(error) from None
    answer = {"directories": [_as_json(report) for report in reports]}
    show(as_json, answer, *(line for report in reports for line in _lines(report)))
    return ExitCode.OK if all(report.sound for report in reports) else ExitCode.FAILED


def _refused(error: Exception) -> LocalError:
    what, why, *rest = str(error).split("\n")
    if "is in use by process" in what:
        why = "the files would change while they are checked"
        return LocalError(what.rstrip("."), why, "raftmq down, then repeat the command", ExitCode.REFUSED)
    return LocalError(what.rstrip("."), why.rstrip("."), " ".join(rest), ExitCode.USAGE)


def _lines(report: FsckReport) -> list[str]:
    noted = f", {len(report.judged)} notes" if report.judged else ""
    more = f"  ... and {len(report.judged) - _SHOWN} more; all of them: --json"
    return [
        f"{report.directory}: {f'sound{noted}' if report.sound else 'DAMAGED'}",
        *(line for finding, cure in report.judged[:_SHOWN] for line in _lines_of(finding, cure)),
        *([more] if len(report.judged) > _SHOWN else []),
        f"  the next start would find: {report.start}",
    ]


def _lines_of(finding: Finding, cure: str) -> tuple[str, str]:
    place = f" at byte {finding.offset:,}" if finding.size else ""
    said = f"  {finding.severity.value:<10} {finding.kind}: {finding.path}{place}: {finding.text}"
    return said, f"  {'':<10} -> {cure}"


def _as_json(report: FsckReport) -> dict[str, Any]:
    return {
        "directory": str(report.directory),
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
