"""`raftmq metadata`: exports topics, groups and offsets of a cluster as JSON, and imports them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cluster.runtime.host.private_files import as_the_user_has_it
from raftlog.types import FIRST_GROUP
from raftmq.commands.command_group import command_group
from raftmq.commands.shared_options import NOW, cluster_options, print_json, show, show_problems
from raftmq.local.http.admin_http import AdminApi
from raftmq.local.http.all_groups import Groups, all_groups, alone
from raftmq.local_path import LocalPath
from raftmq_wire.errors import ExitCode, LocalError

if TYPE_CHECKING:
    from cluster.backup.metadata import Metadata, Plan

CHUNK_BYTES = 32 * 1024
"""The most bytes of one request; the API accepts twice as many."""


@command_group()
def metadata() -> None:
    """Export and import topics, groups and offsets as JSON."""


@metadata.command("export")
@click.option("--to", metavar="FILE", type=LocalPath(path_type=Path), help="The file to write (default: stdout).")
@cluster_options
def export(to: Path | None, data: str | None, admin: str | None, as_json: bool) -> None:
    """Write topics and groups with every attribute, and all offsets, as one JSON document.

    The document contains no messages; for those, see raftmq backup.
    """
    from cluster.backup.metadata import as_text

    groups = all_groups(admin, data)
    present = _present(groups)
    show_problems(alone(groups, "exported"))
    content = as_text(present)
    if to is None:
        click.echo(content, nl=False)
        return
    fresh = to.with_name(to.name + ".tmp")
    try:
        with as_the_user_has_it():
            fresh.write_bytes(content)
        fresh.replace(to)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise LocalError(
            f"{to} cannot be written", error.strerror or str(error), f"ls -ld {to.parent}    (or another --to FILE)"
        ) from None
    offsets = sum(map(len, (present.offsets, *(each.offsets for each in present.further))))
    told = {"topics": len(present.topics), "groups": len(present.groups), "offsets": offsets}
    answer = {"file": str(to), "applied_index": present.applied_index, **told}
    show(as_json, answer, f"{to}: " + ", ".join(f"{count} {name}" for name, count in told.items()))


@metadata.command("import")
@click.argument("file", type=LocalPath(path_type=Path))
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@NOW
@cluster_options
def import_(
    file: Path, dry_run: bool, yes: bool, now: bool, data: str | None, admin: str | None, as_json: bool
) -> None:
    """Create or change topics, groups and offsets to match FILE; shows the changes first and asks.

    Nothing is removed, and importing again changes nothing. Offsets beyond the end of a queue are skipped, and those
    of a topic that was deleted and created again, or that belongs to another cluster.
    """
    from cluster.backup.metadata import plan, read

    try:
        wanted = read(file.read_bytes(), str(file))
    except OSError as error:
        raise LocalError(
            f"{file} cannot be read",
            error.strerror or str(error),
            f"raftmq metadata export --to {file}",
            ExitCode.USAGE,
        ) from None
    if as_json and not (dry_run or yes):
        raise LocalError(
            "--json needs --dry-run or --yes",
            "an import asks before it changes anything, and cannot ask with --json",
            f"raftmq metadata import {file} --dry-run --json    (or --yes)",
            ExitCode.USAGE,
        )
    groups = all_groups(admin, data)
    todo = plan(wanted, _present(groups))
    show_problems(alone(groups, "changed"))
    if not as_json:
        _show(todo)
    count = todo.wanted
    apply = bool(count) and not dry_run and (yes or click.confirm(f"make these {count} changes?", err=True))
    if apply:
        api = AdminApi(groups[FIRST_GROUP])
        parts = list(_parts(todo))
        for part in parts:
            if "topics" in part and not now:  # a dry run first: a refusal must come before any change
                api.post("/v1/metadata", part | {"dry_run": True})
        requests = [(api, part | {"now": True} if now else part) for part in parts]
        for group, offsets in todo.further.items():
            requests += [(AdminApi(groups[group]), part) for part in _in_parts("offsets", offsets)]
        _send(requests)
    if as_json:
        changes = [f"{change.sign} {change.what}" for change in todo.changes]
        print_json({"schema": 1, "applied": apply, "changes": changes, "count": count, "kept": todo.kept})
    elif apply:
        click.echo(f"made {count} changes")
    elif dry_run:
        click.echo("nothing was changed (--dry-run)")


def _send(requests: Sequence[tuple[AdminApi, dict[str, Any]]]) -> None:
    """Sends the parts of an import. Raises LocalError for the first that is refused; if others were imported before it,
    the error says so, and has the exit code of an unknown outcome."""
    for done, (api, part) in enumerate(requests):
        try:
            api.post("/v1/metadata", part)
        except LocalError as error:
            if not done:
                raise
            raise error.after(f"of {len(requests)} parts, {done} were imported before this one") from None


def _present(groups: Groups) -> Metadata:
    import msgspec

    from cluster.backup.metadata import Metadata, of_cluster

    told: dict[int, Metadata] = {}
    for group, addresses in groups.items():
        try:
            told[group] = msgspec.convert(AdminApi(addresses).get("/v1/metadata"), Metadata)
        except LocalError as error:
            raise (error.of_group(group) if len(groups) > 1 else error) from None
    return of_cluster(told)


def _show(todo: Plan) -> None:
    colours = {"+": "green", "~": "yellow", "!": "red"}
    for change in todo.changes:
        click.secho(f"{change.sign} {change.what}", fg=colours[change.sign])
    if not todo.changes:
        click.echo("no difference")
    if todo.kept:
        click.echo(f"topics and groups that only the cluster has, left as they are: {todo.kept}")


def _parts(todo: Plan) -> Iterator[dict[str, Any]]:
    """Yields requests of at most CHUNK_BYTES for the first group, topics before groups before offsets."""
    for name, records in (("topics", todo.topics), ("groups", todo.groups), ("offsets", todo.offsets)):
        yield from _in_parts(name, records)


def _in_parts(name: str, records: Iterable[Any]) -> Iterator[dict[str, Any]]:
    import msgspec

    part: list[Any] = []
    size = 0
    for record in records:
        length = len(msgspec.json.encode(record))
        if part and size + length > CHUNK_BYTES:
            yield {name: part}
            part, size = [], 0
        part.append(msgspec.to_builtins(record))
        size += length
    if part:
        yield {name: part}
