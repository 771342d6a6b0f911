"""`raftmq audit`: lists the changes of users, rules, tokens and `auth.mode`, with their authors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from raftmq.commands.access.common import api, people_options
from raftmq.commands.point_in_time import told_time
from raftmq.commands.shared_options import print_table, show
from raftmq.local.http.list_pages import BEFORE

PAGE_MAX = 200


@click.command()
@click.option(
    "--limit", type=click.IntRange(1, 100_000), default=50, show_default=True, help="The newest so many changes."
)
@people_options
def audit(limit: int, data_dir: Path | None, data: str | None, admin: str | None, as_json: bool) -> None:
    """Show who changed users, rules, tokens and the mode, the newest first.

    The user `operator` is somebody who has the cluster's secret. The newest 100,000 changes are kept, and the newest
    1,000 of each user.
    """
    asked = api(admin, data, data_dir, "raftmq audit")
    found: list[dict[str, Any]] = []
    for page in asked.local_pages(f"/v1/audit?limit={min(PAGE_MAX, limit)}", BEFORE):
        found += page["changes"]
        if len(found) >= limit:
            break
    found = found[:limit]
    if as_json:
        show(True, {"changes": found})
        return
    rows = [
        [
            each["number"],
            told_time(each["at"]),
            each["user"] or "-",
            each["address"] or "-",
            each["about"],
            each["action"],
        ]
        for each in found
    ]
    titles = ["number", "at", "user", "client", "about", "change"]
    print_table(titles, rows, none="nothing was changed yet", left=titles[1:])
