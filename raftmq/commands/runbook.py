"""`raftmq runbook`: explains a finding or an alert and what to do. Needs no cluster."""

from __future__ import annotations

import click

from raftmq.commands.name_completion import complete_runbooks
from raftmq.commands.shared_options import json_option, show
from raftmq_wire.errors import ExitCode, LocalError


@click.command()
@click.argument("code", required=False, shell_complete=complete_runbooks)
@json_option
def runbook(code: str | None, as_json: bool) -> None:
    """Show what the finding or alert CODE means, and what to do; without CODE, list the codes."""
    from cluster.admin.handlers.dashboard import runbooks
    from cluster.config.source import nearest

    known = runbooks()
    if code is None:
        show(as_json, {"codes": list(known)}, *known)
        return
    if code not in known:
        match = nearest(code, known)
        fix = f"raftmq runbook {match}" if match else "raftmq runbook    (lists all)"
        raise LocalError(f"there is no runbook {code}", "status and alerts name the code", fix, ExitCode.USAGE)
    show(as_json, {"code": code, "text": known[code]}, code, "", known[code])
