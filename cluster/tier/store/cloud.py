"""S3, Google Cloud Storage and Azure Blob Storage through obstore (docs/adr/0061).

Every object is written by one conditional request, so no multipart upload is ever begun and none can be left over. The
library's own retries are off: retrying a conditional write hides whether it was carried out (`retries.py` says so).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import TYPE_CHECKING, TypeVar

from cluster.tier.store.cloud_errors import store_error
from cluster.tier.store.errors import BadAnswer, NotFound
from cluster.tier.store.object_store import Data, ObjectInfo, Stored, check_data, check_name, check_range
from raftlog.checksums import crc32c

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Client

T = TypeVar("T")
LIST_CHUNK = 1000
SETTLE_S = 0.1


class CloudStore:
    """See ObjectStore. `options.cloud_client` makes the client."""

    def __init__(self, client: Client, url: str) -> None:
        import obstore

        self._obstore = obstore
        self._client = client
        self._url = url

    @property
    def root(self) -> str:
        """As `ObjectStore.root`."""
        return self._url

    async def create(self, name: str, data: Data) -> None:
        """As `ObjectStore.create`: If-None-Match."""
        check_name(name)
        await _told(name, self._obstore.put_async(self._client, name, check_data(data), mode="create"))

    async def replace(self, name: str, data: Data, tag: str) -> None:
        """As `ObjectStore.replace`: If-Match."""
        check_name(name)
        await _told(name, self._obstore.put_async(self._client, name, check_data(data), mode={"e_tag": tag}))

    async def get(self, name: str, size_max: int) -> Stored:
        """As `ObjectStore.get`."""
        result = await _told(name, self._obstore.get_async(self._client, check_name(name)))
        size, tag = result.meta["size"], result.meta["e_tag"]
        if size > size_max:
            raise BadAnswer(f"{name} has {size} bytes, at most {size_max} were expected")
        if not tag:
            raise BadAnswer(f"{name} came without an ETag", "use a store with conditional writes")
        data = bytes(await _told(name, result.bytes_async()))
        if len(data) != size:
            raise BadAnswer(f"{name} has {size} bytes, {len(data)} came")
        return Stored(data, tag)

    async def get_range(self, name: str, start: int, stop: int) -> bytes:
        """As `ObjectStore.get_range`."""
        check_range(start, stop)
        call = self._obstore.get_range_async(self._client, check_name(name), start=start, end=stop)
        data = bytes(await _told(name, call))
        if len(data) != stop - start:
            raise BadAnswer(f"{name}: {len(data)} bytes came, {start} to {stop} were asked for")
        return data

    async def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """As `ObjectStore.get_ranges`: one after another, so that memory is what the caller asked for."""
        return [await self.get_range(name, *each) for each in ranges]

    async def checksum(self, name: str, start: int, stop: int, crc: int = 0) -> int:
        """As `ObjectStore.checksum`."""
        found: int = crc32c(await self.get_range(name, start, stop), crc)
        return found

    async def head(self, name: str) -> ObjectInfo:
        """As `ObjectStore.head`."""
        meta = await _told(name, self._obstore.head_async(self._client, check_name(name)))
        return ObjectInfo(name, meta["size"], int(meta["last_modified"].timestamp() * 1000))

    async def list(self, folder: str = "") -> AsyncIterator[ObjectInfo]:
        """As `ObjectStore.list`."""
        stream = self._obstore.list(self._client, prefix=check_name(folder) if folder else None, chunk_size=LIST_CHUNK)
        while True:
            try:
                page = await _told(folder or "the listing", anext(stream))
            except (StopAsyncIteration, NotFound):
                return
            for meta in page:
                yield ObjectInfo(meta["path"], meta["size"], int(meta["last_modified"].timestamp() * 1000))

    async def delete(self, name: str) -> None:
        """As `ObjectStore.delete`."""
        try:
            await _told(name, self._obstore.delete_async(self._client, check_name(name)))
        except NotFound:
            return

    async def sweep(self, older_than_ms: int) -> int:
        """As `ObjectStore.sweep`: a single request leaves nothing behind."""
        return 0

    async def close(self) -> None:
        """As `ObjectStore.close`: the library closes connections when the client goes.

        Its threads may still be giving back the objects of the last call. One that does so while the interpreter ends
        aborts the process, so an end right after this call has to come a little later.
        """
        await asyncio.sleep(SETTLE_S)


async def _told(name: str, call: Awaitable[T]) -> T:
    """Turns the library's errors into those of a store."""
    from obstore.exceptions import BaseError

    try:
        return await call
    except (BaseError, OSError, NotImplementedError, ValueError) as error:
        raise store_error(error, name) from None  # the library's text may repeat headers
