"""`raftmq spark table`: a Delta table that follows topics, kept by a streaming query."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from pyspark_raftmq.job_running import explained, job_session, session_options
from pyspark_raftmq.source_login import source_options
from raftmq.commands.data.table_steps import Wanted, passing, require_tables, table_options, tend, wait
from raftmq.commands.shared_options import counted, json_option, servers_option
from raftmq.commands.stop import Stop

if TYPE_CHECKING:
    from raftmq.tables.kept_table import Round


@click.command("table")
@table_options
@session_options
@servers_option
@json_option
def table_command(wanted: Wanted, master: str | None, memory: str, servers: str | None, as_json: bool) -> None:
    """Add what is new in TOPICS to a Delta table with a streaming query, each message exactly once, until Ctrl-C.

    The table is that of raftmq table run: it knows how far each queue is, and each of the two goes on where the other
    ended. The driver and all executors must see the folder, or reach the store. While the cluster does not answer, or
    the disk is full, the query is started again.
    """
    require_tables()
    from pyspark_raftmq.jobs.table import QueryFailed, TableQuery
    from raftmq.tables.errors import LostRace
    from raftmq.tables.kept_table import KeptTable
    from raftmq.tables.table_folder import absolute

    to = wanted.to
    table = KeptTable(absolute(to), wanted.options("raftmq spark table …"))
    given = {
        "topic": ",".join(wanted.topics),
        "columns": ",".join(table.rows.read),
        "onUndecodable": wanted.on_undecodable,
    }
    total = 0

    def on_round(done: Round) -> None:
        nonlocal total
        total += done.messages
        wanted.committed(mq, done, as_json=as_json)

    with explained(), Stop() as stop, source_options(given, servers).connect() as mq:
        wanted.check_topics(mq)
        with table as kept, job_session(master, memory, quiet=True) as spark, wanted.upkeep() as upkeep:
            while not stop.asked:
                began = time.monotonic()
                with (
                    passing(to, again=not wanted.once, more=(QueryFailed,)),
                    TableQuery(spark, mq, given, kept, on_round) as query,
                ):
                    try:
                        query.start(None if wanted.once else wanted.every)
                        while not stop.asked and not query.ended:
                            tend(upkeep, to, as_json=as_json)
                            wait(stop, time.monotonic() + wanted.every, lambda: query.ended)
                        query.check()
                    except LostRace as error:
                        click.echo(f"another writer was faster, and the query begins again: {error}", err=True)
                    else:
                        if wanted.once:
                            break
                wait(stop, began + wanted.every)
    if not as_json:
        click.echo(f"stopped after {counted(total)}", err=True)
