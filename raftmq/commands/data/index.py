"""`raftmq index`: checks index files and finds keys in them, without a node (docs/index-file.md)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from raftmq.commands.command_group import command_group
from raftmq.commands.shared_options import counted, json_option, show
from raftmq.local_path import LocalPath
from raftmq_wire.errors import ExitCode, LocalError

if TYPE_CHECKING:
    from statemachine.index_file.index_format import IndexMeta

Read = Callable[[int, int], bytes]
_FILE = click.argument("file", type=LocalPath(path_type=Path, exists=True, dir_okay=False))


@command_group()
def index() -> None:
    """Check index files and look into them."""


@index.command()
@_FILE
@json_option
def check(file: Path, as_json: bool) -> int:
    """Read every byte of an index file. Exit code: 0 if it is intact, 1 if it is damaged."""
    from statemachine.index_file.index_check import check_index
    from statemachine.index_file.index_format import IndexFileError
    from statemachine.index_file.index_reader import drive

    with _opened(file) as (size, read):
        try:
            meta = drive(check_index(size), read).meta
        except IndexFileError as error:
            show(as_json, {"file": str(file), "intact": False, "reason": str(error)}, f"{file}: DAMAGED: {error}")
            return ExitCode.FAILED
    show(as_json, {"file": str(file), "intact": True, "size": size, **_as_json(meta)}, *_lines(file, size, meta))
    return ExitCode.OK


@index.command()
@_FILE
@click.option("--topic-id", type=click.IntRange(0, 2**32 - 1), required=True, help="Number of the topic.")
@click.option("--key", required=True, help="UNIQ_KEY of the message, or a word of its KEYS.")
@json_option
def find(file: Path, topic_id: int, key: str, as_json: bool) -> int:
    """Print the log positions of messages that may have a key. Other keys may have the same hash.

    Exit code: 0 if there are any, 1 if there are none, 3 if the file is damaged.
    """
    from statemachine.index_file.index_format import IndexFileError
    from statemachine.index_file.index_reader import drive, open_index

    with _opened(file) as (size, read):
        try:
            positions = drive(drive(open_index(size), read).positions(topic_id, key.encode()), read)
        except IndexFileError as error:
            raise LocalError(
                f"{file} is damaged", str(error), "use a copy from another node or from the store", ExitCode.UNKNOWN
            ) from None
    show(as_json, {"file": str(file), "positions": positions}, *map(str, positions))
    return ExitCode.OK if positions else ExitCode.FAILED


@contextmanager
def _opened(file: Path) -> Iterator[tuple[int, Read]]:
    """Opens a file; yields (its size in bytes, a function that reads from it)."""
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield os.fstat(descriptor).st_size, lambda at, length: os.pread(descriptor, length, at)
    finally:
        os.close(descriptor)


def _as_json(meta: IndexMeta) -> dict[str, Any]:
    return {**meta._asdict(), "cluster_id": str(meta.cluster_id)}


def _lines(file: Path, size: int, meta: IndexMeta) -> Iterator[str]:
    yield f"{file}: intact, {size} bytes"
    yield f"  the log from position {meta.base} to {meta.end}, entries {meta.first_index} to {meta.last_index}"
    yield f"  cluster {meta.cluster_id}, group {meta.group_id}; header CRC of the last entry: {meta.last_crc:08x}"
    yield f"  {counted(meta.messages)} in {counted(meta.queues, 'queue')}, {counted(meta.keys, 'key')}"
