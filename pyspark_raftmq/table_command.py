"""`raftmq spark table`: a Delta table that follows topics, kept by a streaming query."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pyspark_raftmq.job_running import explained, job_session, session_options
from pyspark_raftmq.source_login import source_options
from raftmq.commands.data.table_steps import options_of, passing, require_tables, table_options, tell_round, tend, wait
from raftmq.commands.name_completion import with_near_miss
from raftmq.commands.shared_options import counted, json_option, servers_option
from raftmq.commands.stop import Stop

if TYPE_CHECKING:
    from raftmq.tables.kept_table import Round


@click.command("table")
@table_options
@session_options
@servers_option
@json_option
def table_command(
    topics: tuple[str, ...],
    to: Path,
    every: float,
    once: bool,
    columns: str | None,
    schema: str | None,
    kafka_columns: bool,
    group: str | None,
    accept_loss: bool,
    on_undecodable: str,
    compact_at: int,
    keep: float,
    master: str | None,
    memory: str,
    servers: str | None,
    as_json: bool,
) -> None:
    """Add what is new in TOPICS to a Delta table with a streaming query, each message exactly once, until Ctrl-C.

    The table is that of raftmq table run: it knows how far each queue is, and each of the two goes on where the other
    ended. The driver and all executors must see DIR. While the cluster does not answer, or the disk is full, the query
    is started again.
    """
    require_tables()
    from pyspark_raftmq.jobs.table import QueryFailed, TableQuery
    from raftmq.tables.errors import LostRace
    from raftmq.tables.group_offsets import commit_offsets
    from raftmq.tables.kept_table import KeptTable
    from raftmq.tables.upkeep import Upkeep

    options = options_of(
        columns,
        schema,
        kafka=kafka_columns,
        accept_loss=accept_loss,
        on_undecodable=on_undecodable,
        command="raftmq spark table …",
    )
    table = KeptTable(to.absolute(), options)
    given = {"topic": ",".join(topics), "columns": ",".join(table.rows.read), "onUndecodable": on_undecodable}
    total = 0

    def on_round(done: Round) -> None:
        nonlocal total
        total += done.messages
        tell_round(to, done, as_json=as_json)
        if group is not None:
            commit_offsets(mq.admin, group, done.reached)

    with explained(), Stop() as stop, source_options(given, servers).connect() as mq:
        for topic in topics:
            with with_near_miss(topic, mq.admin.topics):
                mq.admin.describe_topic(topic)
        with (
            table as kept,
            job_session(master, memory, quiet=True) as spark,
            Upkeep(to, compact_at, int(keep / 3600)) as upkeep,
        ):
            while not stop.asked:
                began = time.monotonic()
                with (
                    passing(to, again=not once, more=(QueryFailed,)),
                    TableQuery(spark, mq, given, kept, on_round) as query,
                ):
                    try:
                        query.start(None if once else every)
                        while not stop.asked and not query.ended:
                            tend(upkeep, to, as_json=as_json)
                            wait(stop, time.monotonic() + every, lambda: query.ended)
                        query.check()
                    except LostRace as error:
                        click.echo(f"another writer was faster, and the query begins again: {error}", err=True)
                    else:
                        if once:
                            break
                wait(stop, began + every)
    if not as_json:
        click.echo(f"stopped after {counted(total)}", err=True)
