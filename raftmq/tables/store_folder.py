"""A table's folder on an object store, for example s3://bucket/prefix.

A file appears, complete, when its upload has ended, and is never renamed or changed. Its name is never used again, so
an upload may be repeated if its answer was lost. Address, region and keys of the store come from the environment, in
each process that reads or writes: what is pickled to Spark's tasks is only the URL. Only the server's packages
(`cluster.tier.store`) know how to reach a store: they are imported where a store is used.
"""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from raftmq.server_home import use_formats
from raftmq_wire.errors import ExitCode, LocalError

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Client

    from cluster.tier.store.errors import StoreError
    from cluster.tier.store.object_store import ObjectStore

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
_PREFIX = re.compile(r"[a-z0-9]+://[A-Za-z0-9._@-]+(/[A-Za-z0-9_=-][A-Za-z0-9._=-]*)*")
"""The URLs that are accepted. They have only characters that need no escapes, because obstore and deltalake escape
differently."""
_NO_NAME = re.compile(r"[^A-Za-z0-9_-]")
PART_BYTES = 8 << 20
"""The bytes of one request of an upload."""
PARTS_AT_ONCE = 2
RETRIES = 8
"""The number of times that a request is repeated that reads, lists or removes files, or writes a file under a unique
name."""
LIST_CHUNK = 1000
_NEEDS = "a table on an object store"


class StoreFailed(LocalError):
    """The object store of a table refused a request, or gave no answer; then a write may still have happened. `passes`:
    True if the same request may succeed later."""

    def __init__(self, what: str, why: str, fix: str, *, passes: bool) -> None:
        super().__init__(what, why, fix, ExitCode.UNREACHABLE if passes else ExitCode.FAILED)
        self.passes = passes


class StoreFolder(NamedTuple):
    """A prefix of a bucket. It can be pickled and sent to tasks."""

    url: str

    def __str__(self) -> str:
        return self.url

    @property
    def delta(self) -> tuple[str, dict[str, str] | None]:
        """The table's address and the options of its store, for deltalake."""
        use_formats(_NEEDS)
        from cluster.tier.store.store_by_url import delta_options

        return self.url, delta_options(self.url)

    @property
    def iceberg(self) -> dict[str, str]:
        """The properties with which pyiceberg reaches the store, unless its own configuration has others."""
        use_formats(_NEEDS)
        from cluster.tier.store.store_by_url import iceberg_options

        return iceberg_options()

    @property
    def settings(self) -> dict[str, str | None]:
        """The properties of a new Delta table. They make checkpoints more frequent, because a reader fetches each
        commit since the last checkpoint."""
        return {"delta.checkpointInterval": "10"}

    def commit(self, version: int) -> str | None:
        """Returns the text of a commit of the Delta log; None if it is not there. Raises StoreFailed."""
        import obstore

        name = f"_delta_log/{version:020d}.json"
        try:
            with told(self.url, name):
                return bytes(obstore.get(_client(self.url), name).bytes()).decode()
        except FileNotFoundError:
            return None

    def new_file(self, within: str, prefix: str, name: str) -> StoredFile:
        """Returns a file of the sub-folder `within`. Raises LocalError if obstore is missing."""
        return StoredFile(self.url, within, f"{prefix}{_NO_NAME.sub('_', name)}-{uuid.uuid4().hex[:12]}.parquet")

    def objects(self) -> ObjectStore:
        """Returns the store for single objects below the prefix, without connecting to it. Raises LocalError."""
        use_formats(_NEEDS)
        from cluster.tier.store.store_by_url import open_store

        return open_store(self.url)

    def has_files(self, day: str, ending: str = ".parquet") -> bool:
        """Returns True if there are files with that ending in sub-folders whose names begin with `day`. Raises
        StoreFailed."""
        found = (path for page in self.files("") for path in page)
        return any(path.startswith(day) and path.endswith(ending) for path in found)

    def files(self, prefix: str) -> Iterator[list[str]]:
        """Yields, for each page of the store's listing, the paths of the files in direct sub-folders whose own names
        begin with `prefix`. Raises StoreFailed."""
        for page in self._listed(prefix):
            yield [path for path, _ in page]

    def older(self, within: str, prefix: str, before_s: float) -> list[str]:
        """Returns the paths of the files in sub-folders whose names begin with `within`, whose own names begin with
        `prefix`, and that were written before a time (seconds since the epoch), by the store's clock. Raises
        StoreFailed."""
        found = (each for page in self._listed(prefix) for each in page)
        return [path for path, written_s in found if path.startswith(within) and written_s < before_s]

    def _listed(self, prefix: str) -> Iterator[list[tuple[str, float]]]:
        """Yields (path, time at which it was written, in seconds since the epoch) of the same files as `files`."""
        import obstore

        with told(self.url, "the listing"):
            for page in obstore.list(_client(self.url), chunk_size=LIST_CHUNK):
                found = ((meta["path"], meta["last_modified"].timestamp()) for meta in page)
                named = ((path, path.split("/")[1], written_s) for path, written_s in found if path.count("/") == 1)
                yield [(path, written_s) for path, name, written_s in named if name.startswith(prefix)]

    def remove(self, paths: Sequence[str]) -> None:
        """Removes files; one that is missing is no error. Raises StoreFailed."""
        import obstore

        for at in range(0, len(paths), LIST_CHUNK):
            chunk = list(paths[at : at + LIST_CHUNK])
            try:
                with told(self.url, "a file"):
                    obstore.delete(_client(self.url), chunk)
            except FileNotFoundError:  # some stores end at the first file that is missing
                for path in chunk:
                    with contextlib.suppress(FileNotFoundError), told(self.url, path):
                        obstore.delete(_client(self.url), path)


class StoredFile:
    """A file that is being uploaded, at most PARTS_AT_ONCE requests at a time. The store shows no file before the last
    request has succeeded."""

    def __init__(self, url: str, within: str, name: str) -> None:
        import obstore

        self._url = url
        self._name = name
        client = _client(url)
        self._upload: Any = obstore.open_writer(
            client, f"{within}/{name}", buffer_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE
        )
        self._written = 0
        self.closed = False

    @property
    def sink(self) -> StoredFile:
        """The file into which pyarrow writes."""
        return self

    def write(self, data: Any) -> int:
        """Takes bytes. Raises StoreFailed."""
        view = bytes(data)
        with told(self._url, self._name):
            self._upload.write(view)
        self._written += len(view)
        return len(view)

    def tell(self) -> int:
        """Returns the number of bytes that were written."""
        return self._written

    def flush(self) -> None:
        """Does nothing: only a complete file can be read."""

    def close(self) -> None:
        """Does nothing: `finish` ends the upload."""

    def finish(self, end: int) -> tuple[str, int]:
        """Ends the upload; returns the name of the file and its size. Raises StoreFailed."""
        with told(self._url, self._name):
            self._upload.close()
        return self._name, self._written

    def give_up(self) -> None:
        """Forgets what was written. Parts that were uploaded stay with the store, and must be removed by a lifecycle
        rule of the store, because this process may die before it could remove them."""
        self._upload = None


def store_folder(text: str, name: str) -> StoreFolder:
    """Returns the folder that a URL names. `name` says in the error what it is for: an option or an argument. Raises
    LocalError."""
    use_formats(_NEEDS)
    from cluster.tier.store.store_by_url import CLOUD, check_url

    url = text.rstrip("/")
    fix = f"{name} s3://bucket/prefix    (or gs://…, az://…, or a folder: /lake/orders)"
    if url.partition(":")[0] not in CLOUD:
        raise LocalError(
            f"{name}: {text} is not the URL of an object store",
            f"tables are kept in folders and at {', '.join(f'{scheme}://' for scheme in CLOUD)}",
            fix,
            ExitCode.USAGE,
        )
    try:
        check_url(url)
    except LocalError as error:
        raise LocalError(f"{name}: {error.what}", error.why, fix, ExitCode.USAGE) from None
    if not _PREFIX.fullmatch(url):
        why = "a prefix consists of letters, digits, and . _ = - between its slashes"
        raise LocalError(f"{name}: {text} cannot be the place of a table", why, fix, ExitCode.USAGE)
    return StoreFolder(url)


def is_url(text: str) -> bool:
    """Returns True if the text is a URL, and False if it is a path."""
    return _URL.match(text) is not None


@contextlib.contextmanager
def told(url: str, name: str) -> Iterator[None]:
    """A context in which errors of a store or its library become StoreFailed. FileNotFoundError stays if only the file
    is missing."""
    use_formats(_NEEDS)
    from obstore.exceptions import BaseError

    from cluster.tier.store.cloud_stores import of_environment, store_error
    from cluster.tier.store.errors import StoreError

    try:
        yield
    except StoreError as error:
        raise failed(url, error) from None
    except FileNotFoundError as error:
        found = store_error(error, name, of_environment(url))
        if found.fix:  # there is no bucket
            raise failed(url, found) from None
        raise
    except (BaseError, OSError, NotImplementedError, ValueError) as error:
        raise failed(url, store_error(error, name, of_environment(url))) from None


def failed(url: str, error: StoreError) -> StoreFailed:
    """Returns the error for a person. Its `passes` is True if the fault may pass by itself."""
    return StoreFailed(
        f"the store {url} failed", error.what, error.fix or "look at the store, then try again", passes=error.retryable
    )


@cache
def _client(url: str) -> Client:
    """Returns the client of this process for the URL. Raises LocalError."""
    use_formats(_NEEDS)
    from cluster.config.storage_sections import TierSection
    from cluster.tier.store.store_by_url import cloud_client

    try:
        return cloud_client(url, TierSection(), RETRIES)
    except ImportError as error:
        raise LocalError(f"{url} needs obstore", str(error), "pip install 'raftmq[tier]'") from error
    except (ValueError, OSError) as error:
        why = str(error).split("\n", 1)[0]
        raise LocalError(f"{url} cannot be used", why, "look at it and the variables of the environment") from None
