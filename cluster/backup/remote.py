"""Uploads backups to an object store, and lists, fetches and removes them there (docs/adr/0067).

::

    <URL>/backups/<name>.json                       the backup's manifest, its files, and their parts
    <URL>/backup-parts/<name>-<sha256>.part         bytes of files; <name> is the first backup that had this part

A backup is made on the node's own disk first, mostly of hard links, and read back there. Every check of a local backup
is therefore made before the upload, and again after the backup was fetched.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from cluster.backup import files, verify
from cluster.backup import manifest as manifests
from cluster.backup.create import BackupOrder, MadeBackup, check_place, create
from cluster.backup.manifest import LOG, MANIFEST, STATE, Manifest
from cluster.config.local_layout import group_folder
from cluster.config.storage_sections import TierSection
from cluster.tier.store.errors import BadAnswer, NotFound, OtherFormat, StoreError
from cluster.tier.store.object_store import ObjectStore
from cluster.tier.store.retrying_store import RequestCounts, RetryingStore, RetryPolicy
from cluster.tier.store.store_by_url import check_url, directory_of, open_store
from cluster.tier.stored_files import (
    DESCRIPTION_BYTES_MAX,
    BadDescriptionError,
    Chunk,
    DamagedObjectError,
    FileSource,
    SetWriter,
    StoredFile,
    check_files,
    chunk_of,
    decode,
    encode,
    fetch,
)
from raftlog.storage.files import layout
from raftlog.types import FIRST_GROUP, GROUPS_MAX
from raftmq_wire.errors import ExitCode, LocalError

BACKUPS, PARTS = "backups", "backup-parts"
SUFFIX = ".json"
STAGING = "backup-staging.tmp"
"""Name of the folder in DATA/checkpoints in which a backup to a URL is made before it is uploaded. What a crash leaves
in it is removed later."""
CALL_S, CALLS_TOTAL_S = 60.0, 120.0
"""Limits for one call to the store, in seconds: the duration of one attempt, to which time for its bytes is added; and
the time after which no further attempt begins."""

T = TypeVar("T")


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of `backups/<name>.json`: a backup's manifest, and the parts of its files."""

    backup: Manifest
    files: list[StoredFile]
    """The files of `log/` and `state/`, each with the parts in which its bytes are stored."""


def is_url(target: str) -> bool:
    """Returns True if the target of a backup is the URL of a store, False if it is a directory."""
    return "://" in target


def is_store(url: str) -> bool:
    """Returns True if the URL can be that of a store. After `split`, the URL of a bucket alone has no bucket left, so
    it is refused here."""
    try:
        check_url(url)
    except LocalError:
        return False
    return True


def split(source: str) -> tuple[str, str]:
    """Splits URL/NAME into (URL, NAME)."""
    url, _, name = source.rstrip("/").rpartition("/")
    return url, name


@asynccontextmanager
async def opened(url: str, options: TierSection | None) -> AsyncIterator[ObjectStore]:
    """Opens a store, whose calls are retried and limited in time, for the duration of the context. Raises LocalError if
    the URL is not valid. `options` are the settings for access to it."""
    inner = open_store(url, options)
    store = RetryingStore(inner, RetryPolicy(call_s=CALL_S, total_s=CALLS_TOTAL_S), random.Random(), RequestCounts())
    try:
        yield store
    finally:
        await store.close()


def run(url: str, work: Coroutine[Any, Any, T]) -> T:
    """Runs the coroutine on a new event loop, and returns its result. Raises LocalError for an error of the store, or
    for damaged objects in it."""
    try:
        return asyncio.run(work)
    except (StoreError, DamagedObjectError, BadDescriptionError) as error:
        raise store_error(url, error) from error


def store_error(url: str, error: Exception) -> LocalError:
    """Returns the LocalError, for people, for an error of the store or a damaged object."""
    if isinstance(error, OtherFormat):
        return LocalError(f"what is in {url} cannot be read", error.what, error.fix or "", ExitCode.REFUSED)
    if isinstance(error, StoreError):
        return LocalError(f"the store {url} failed", error.what, error.fix or "look at the store, then try again")
    return LocalError(
        f"what is needed of {url} is damaged",
        str(error),
        f"use another backup: raftmq backup list {url}",
        ExitCode.REFUSED,
    )


# --- making ----------------------------------------------------------------------------------------------------------


def create_remote(request: BackupOrder, on_stage: Callable[[str], None] = lambda stage: None) -> MadeBackup:
    """Makes a backup at the URL `request.to`: first in a folder on the node's disk, from which it is uploaded.
    Otherwise the same as `create.create`. Raises LocalError."""
    check_url(request.to)
    if folder := directory_of(request.to):
        check_place(Path(folder), Path(request.data))
    staging = Path(request.data) / layout.CHECKPOINTS / STAGING
    files.remove_tree(staging)
    try:
        staging.mkdir(exist_ok=True)
        made = create(replace(request, keep=None), on_stage, staging=staging)
        on_stage("uploading")
        return run(request.to, _upload(request, Path(made.path)))
    except (OSError, EOFError) as error:
        raise LocalError(
            f"the backup to {request.to} failed", str(error), f"raftmq backup create --to {request.to}    (again)"
        ) from error
    finally:
        files.remove_tree(staging)


async def _upload(request: BackupOrder, local: Path) -> MadeBackup:
    async with opened(request.to, request.store) as store:
        manifest, removed = await put(store, local, request.keep)
    return MadeBackup(path=f"{request.to.rstrip('/')}/{manifest.name}", manifest=manifest, removed=removed)


async def put(store: ObjectStore, local: Path, keep: int | None = None) -> tuple[Manifest, list[str]]:
    """Uploads a local backup. Returns (its manifest as it is in the store, names of older backups that were removed
    because of `keep`). Raises StoreError, OSError, LocalError, and EOFError if a file is not as long as the manifest
    says."""
    manifest = manifests.load(local)
    known = [each for each in (await stored(store))[0] if each.backup.cluster_uuid == manifest.cluster_uuid]
    writer = SetWriter(store, "", f"{PARTS}/{manifest.name}", known[-1].files if known else ())
    paths = [f"{LOG}/{layout.segment_name(each.base_position)}" for each in manifest.segments]
    sources = [_source(local, path) for path in paths]
    sources += [_source(local, each.path, each.size) for each in manifest.state]
    written = [await writer.write(source) for source in sources]
    told = replace(manifest, bytes_new=writer.bytes_new)
    await writer.write_description(_description_name(manifest.name), encode(Description(backup=told, files=written)))
    removed = [] if keep is None else await _thin_out(store, manifest, keep)
    return told, removed


def _source(local: Path, path: str, expected: int | None = None) -> FileSource:
    """Returns a file to upload. Raises EOFError if it has not `expected` bytes (None: any number)."""
    length = (local / path).stat().st_size
    if expected not in (None, length):
        raise EOFError(f"{local / path} has {length} bytes, {expected} were expected")

    async def read(start: int, size: int) -> Chunk:
        with (local / path).open("rb") as file:  # may block: this process does nothing else
            file.seek(start)
            data = file.read(size)
        if len(data) != size:
            raise EOFError(f"{local / path} became shorter")
        return chunk_of(data)

    return FileSource(path, length, read)


async def _thin_out(store: ObjectStore, made: Manifest, keep: int) -> list[str]:
    """Removes the cluster's oldest backups until `keep` are left, then the parts that no backup uses any more. Returns
    the names of the removed backups. `made` counts as the newest even if its node's clock is slow. Errors of the store
    are ignored: an old backup that stays does not make the new one worse."""
    try:
        found, problems = await stored(store)
        if problems:
            return []  # an unreadable backup may use any of the parts
        mine = [each for each in found if each.backup.cluster_uuid == made.cluster_uuid]
        others = [each for each in mine if each.backup.name != made.name]
        old = others[: max(0, len(others) + 1 - keep)]
        for each in old:
            await store.delete(_description_name(each.backup.name))
        left = {part.name for each in found if each not in old for file in each.files for part in file.parts}
        gone = {part.name for each in old for file in each.files for part in file.parts} - left
        for name in sorted(gone):
            await store.delete(name)
        return [each.backup.name for each in old]
    except StoreError:
        return []


# --- finding and fetching --------------------------------------------------------------------------------------------


async def stored(store: ObjectStore) -> tuple[list[Description], list[str]]:
    """Returns (descriptions of readable backups, oldest first; one sentence for each unreadable backup). Raises
    StoreError."""
    found, problems = [], []
    names = [info.name async for info in store.list(BACKUPS)]
    for name in sorted(names):
        try:
            found.append(await _describe(store, name))
        except NotFound:
            continue  # another node has removed it meanwhile
        except (BadDescriptionError, BadAnswer) as error:
            problems.append(f"{store.root}/{name} cannot be read: {error}")
    return sorted(found, key=lambda each: (each.backup.made_ms, each.backup.name)), problems


async def _describe(store: ObjectStore, name: str) -> Description:
    description = decode((await store.get(name, DESCRIPTION_BYTES_MAX)).data, Description)
    check_files(description.files)
    if name != _description_name(description.backup.name):
        raise BadDescriptionError(f"it describes {description.backup.name}")
    return description


def backups_at(url: str) -> tuple[list[Manifest], list[str]]:
    """Returns the same as `files.backups_in`, for the backups at a URL. Raises LocalError if the store fails."""

    async def work() -> tuple[list[Manifest], list[str]]:
        async with opened(url, None) as store:
            found, problems = await stored(store)
        return [each.backup for each in found], problems

    return run(url, work())


def groups_at(url: str) -> list[int]:
    """Returns the numbers of the further groups of brokers that have backups in a store, ascending. Any number may be
    missing, because a group may have retired. Raises LocalError."""

    async def has_some(store: ObjectStore, group: int) -> bool:
        async for _ in store.list(f"{group_folder(Path(), group)}/{BACKUPS}"):
            return True
        return False

    async def work() -> list[int]:
        async with opened(url, None) as store:
            further = range(FIRST_GROUP + 1, GROUPS_MAX + 1)
            found = await asyncio.gather(*(has_some(store, group) for group in further))
        return [group for group, is_there in zip(further, found, strict=True) if is_there]

    return run(url, work())


def is_backup_at(source: str) -> bool:
    """Returns True if the URL is that of one backup, False if it may be that of a store with backups. Raises
    LocalError."""
    url, name = split(source)

    async def work() -> bool:
        async with opened(url, None) as store:
            try:
                await store.head(_description_name(name))
            except (NotFound, ValueError):
                return False
            return True

    return is_store(url) and run(url, work())


async def newest_ms(url: str, options: TierSection | None, cluster_uuid: str, node: int) -> int | None:
    """Returns the wall clock in ms at which that node's newest backup in the store was begun; None if there is none.
    Raises StoreError, LocalError."""
    async with opened(url, options) as store:
        found, _ = await stored(store)
    mine = [each.backup for each in found if (each.backup.cluster_uuid, each.backup.node) == (cluster_uuid, node)]
    return mine[-1].made_ms if mine else None


def fetch_backup(source: str, into: Path, on_stage: Callable[[str], None] = lambda stage: None) -> Path:
    """Fetches the backup URL/NAME into the new folder `into`; returns the path of the backup in it. It only checks the
    SHA-256 of each object; the caller must verify the backup. Raises LocalError if `into` exists, which is then left
    alone, or if the backup cannot be fetched; then it has removed the folder."""
    url, name = split(source)
    path = into / name
    if into.exists():
        raise LocalError(
            f"{into} is in the way",
            "what is fetched is kept there until the command ends, and one was interrupted or is running now",
            f"rm -r {into}    (if none is running)",
            ExitCode.REFUSED,
        )
    try:
        into.mkdir(parents=True)
        run(url, _fetch(url, name, path, on_stage))
    except OSError as error:
        left = files.remove_tree(into)
        raise LocalError(
            f"{source} could not be brought to {into}",
            f"{error.strerror or error}; {files.free_text(into.parent)}{left}; the backup is untouched",
            f"free space, or restore onto another disk: raftmq restore --from {source} --into DIR",
        ) from error
    except BaseException:
        files.remove_tree(into)
        raise
    return path


async def _fetch(url: str, name: str, path: Path, on_stage: Callable[[str], None]) -> None:
    async with opened(url, None) as store:
        try:
            description = await _describe(store, _description_name(name))
        except BadDescriptionError:
            raise
        except (NotFound, ValueError):  # no such object, or the name cannot be one
            raise LocalError(
                f"{url} has no backup {name!r}",
                f"there is no {BACKUPS}/{name}{SUFFIX}",
                f"raftmq backup list {url}",
                ExitCode.REFUSED,
            ) from None
        files.need(path.parent, description.backup.bytes_total)
        (path / LOG).mkdir(parents=True)
        (path / STATE).mkdir()
        for number, file in enumerate(description.files, 1):
            on_stage(f"fetching file {number} of {len(description.files)}")
            await fetch(store, "", file, path)
        (path / MANIFEST).write_bytes(manifests.encode(description.backup))


def verify_backup(source: str, scratch: Path) -> verify.Verified:
    """Fetches the backup URL/NAME into the folder `scratch`, verifies it, and removes the folder. Returns the result,
    in which problems are listed. Raises LocalError if it cannot be fetched, or if `scratch` exists, which is then left
    alone."""
    backup = fetch_backup(source, scratch)
    try:
        return verify.verify(backup)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _description_name(name: str) -> str:
    return f"{BACKUPS}/{name}{SUFFIX}"
