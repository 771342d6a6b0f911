"""S3, Google Cloud Storage and Azure Blob Storage through obstore (docs/adr/0061).

Every object is written by one conditional request, so no multipart upload is ever begun and none can be left over. The
library's own retries are off, because retrying a conditional write hides whether it was carried out
(`retrying_store.py`).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from cluster.tier.store.errors import (
    AlreadyExists,
    BadAnswer,
    Conflict,
    Denied,
    NotFound,
    StoreError,
    Throttled,
    Unreachable,
    Unsupported,
)
from cluster.tier.store.object_store import Data, ObjectInfo, StoredObject, check_data, check_name, check_range
from raftmq_wire.checksums import crc32c

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Client


T = TypeVar("T")
LIST_CHUNK = 1000
SETTLE_S = 0.1
"""Seconds that `CloudStore.close` waits."""


class StoreKeyNames(NamedTuple):
    """The names of the settings and variables of a store, which its error messages name."""

    url: str
    endpoint: str
    region: str
    keys: str


OF_TIER = StoreKeyNames("tier.url", "tier.endpoint", "tier.region", "AWS_ACCESS_KEY_ID or tier.credentials_file")
"""The names for a store that a node's configuration describes."""
_OF_S3 = StoreKeyNames("the URL", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
_OF_OTHERS = {
    "gs": _OF_S3._replace(endpoint="the URL", region="the URL", keys="GOOGLE_APPLICATION_CREDENTIALS"),
    **dict.fromkeys(
        ("az", "abfs", "abfss"),
        StoreKeyNames(
            "the URL",
            "AZURE_STORAGE_ACCOUNT_NAME",
            "the URL",
            "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
        ),
    ),
}


def of_environment(url: str) -> StoreKeyNames:
    """Returns the names for a store of which everything but the URL comes from the environment."""
    return _OF_OTHERS.get(url.partition(":")[0], _OF_S3)


class CloudStore:
    """An object store in the cloud (`ObjectStore`). `store_by_url.cloud_client` makes the client."""

    def __init__(self, client: Client, url: str, settings: StoreKeyNames = OF_TIER) -> None:
        import obstore

        self._obstore = obstore
        self._client = client
        self._url = url
        self._settings = settings

    @property
    def root(self) -> str:
        return self._url

    async def create(self, name: str, data: Data) -> None:
        """Writes a new object, with If-None-Match (`ObjectStore.create`)."""
        check_name(name)
        await self._told(name, self._obstore.put_async(self._client, name, check_data(data), mode="create"))

    async def replace(self, name: str, data: Data, tag: str) -> None:
        """Replaces the version `tag` of the object, with If-Match (`ObjectStore.replace`)."""
        check_name(name)
        await self._told(name, self._obstore.put_async(self._client, name, check_data(data), mode={"e_tag": tag}))

    async def get(self, name: str, size_max: int) -> StoredObject:
        result = await self._told(name, self._obstore.get_async(self._client, check_name(name)))
        size, tag = result.meta["size"], result.meta["e_tag"]
        if size > size_max:
            raise BadAnswer(f"{name} has {size} bytes, at most {size_max} were expected")
        if not tag:
            raise BadAnswer(f"{name} came without an ETag", "use a store with conditional writes")
        data = bytes(await self._told(name, result.bytes_async()))
        if len(data) != size:
            raise BadAnswer(f"{name} has {size} bytes, {len(data)} came")
        return StoredObject(data, tag)

    async def get_range(self, name: str, start: int, stop: int) -> bytes:
        check_range(start, stop)
        call = self._obstore.get_range_async(self._client, check_name(name), start=start, end=stop)
        data = bytes(await self._told(name, call))
        if len(data) != stop - start:
            raise BadAnswer(f"{name}: {len(data)} bytes came, {start} to {stop} were asked for")
        return data

    async def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Returns several ranges of one object (`ObjectStore.get_ranges`), read one after the other, so that memory is
        what the caller asked for."""
        return [await self.get_range(name, *each) for each in ranges]

    async def checksum(self, name: str, start: int, stop: int, crc: int = 0) -> int:
        found: int = crc32c(await self.get_range(name, start, stop), crc)
        return found

    async def head(self, name: str) -> ObjectInfo:
        meta = await self._told(name, self._obstore.head_async(self._client, check_name(name)))
        return ObjectInfo(name, meta["size"], int(meta["last_modified"].timestamp() * 1000))

    async def list(self, folder: str = "") -> AsyncIterator[ObjectInfo]:
        stream = self._obstore.list(self._client, prefix=check_name(folder) if folder else None, chunk_size=LIST_CHUNK)
        while True:
            try:
                page = await self._told(folder or "the listing", anext(stream))
            except (StopAsyncIteration, NotFound):
                return
            for meta in page:
                yield ObjectInfo(meta["path"], meta["size"], int(meta["last_modified"].timestamp() * 1000))

    async def delete(self, name: str) -> None:
        try:
            await self._told(name, self._obstore.delete_async(self._client, check_name(name)))
        except NotFound:
            return

    async def sweep(self, older_than_ms: int) -> int:
        """Removes nothing (`ObjectStore.sweep`): a write is a single request, which leaves nothing behind."""
        return 0

    async def close(self) -> None:
        """Returns after a pause (`ObjectStore.close`); the library closes its connections when the client object is
        freed.

        The library's threads may still be freeing the objects of the last call. If one does so while the interpreter
        ends, the process aborts, so the interpreter may end only a little after this call.
        """
        await asyncio.sleep(SETTLE_S)

    async def _told(self, name: str, call: Awaitable[T]) -> T:
        """Turns the library's errors into those of a store."""
        from obstore.exceptions import BaseError

        try:
            return await call
        except (BaseError, OSError, NotImplementedError, ValueError) as error:
            raise store_error(error, name, self._settings) from None  # the library's text may repeat headers


# Translates the errors of a cloud store's library into those of this package. Only code and message of an answer's body
# are used: bodies may repeat headers, and headers carry keys.

TEXT_MAX = 300
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([A-Za-z0-9.]{1,80})</Code>")
_MESSAGE = re.compile(r"<Message>([^<]{1,200})</Message>")
_BAD = ("NotPartial", "InvalidDeleteObjectsResponse", "Metadata", "InvalidListResponse", "ill-formed", "MissingEtag")
_REQUEST = re.compile(r"Error performing ([A-Z]+ \S+)")
_CAUSE = re.compile(r'\b(?:message|error): "([^"\n]{1,200})"')
_TLS = re.compile(r"Invalid(?:Message|Certificate)\(\s*(\w+)")
_REDIRECT = "BareRedirect"
_BUCKET = ("NoSuchBucket", "ContainerNotFound")
_FIXES = {
    "RequestTimeTooSkewed": "set this machine's clock: chronyc tracking, timedatectl",
    "InvalidAccessKeyId": "check the keys in {keys}",
    "XAdminUserNotFound": "check the keys in {keys}",  # versitygw sends it with 404
    "SignatureDoesNotMatch": "check the secret key; keys come from {keys}",
    "ExpiredToken": "renew the session token in {keys}; a credentials file is read again every minute",
    "AuthorizationHeaderMalformed": "set {region} to the bucket's region",
    "PermanentRedirect": "set {region} to the bucket's region, or {endpoint}",
    "AccessDenied": "grant the key GetObject, PutObject, DeleteObject and ListBucket on the bucket",
}
_KEYS = "check the keys in {keys}, and that the policy covers the bucket"
_ENDPOINT = "check {endpoint}, the network, and that the store runs"


def store_error(error: Exception, name: str, settings: StoreKeyNames = OF_TIER) -> StoreError:
    """Returns the error that the call on `name` raises in place of the library's."""
    found = _translated(error, name)
    return type(found)(found.what, found.fix.format_map(settings._asdict()))


def _translated(error: Exception, name: str) -> StoreError:
    """Returns the error for the call on `name`. Its advice has placeholders such as {keys} for the names of
    settings."""
    text = str(error)
    status = _number(text)
    said = _said(text)
    kind = type(error).__name__
    if kind in ("AlreadyExistsError", "PreconditionError") and status == 409:
        # S3 answers ConditionalRequestConflict while another conditional write of the name is under way.
        return Throttled(f"another write of {name} is under way: {said}")
    if kind == "AlreadyExistsError":
        return AlreadyExists(f"{name} exists")
    if kind == "PreconditionError":
        return NotFound(f"there is no {name}") if status == 404 else Conflict(f"{name} was replaced meanwhile")
    if isinstance(error, FileNotFoundError):
        return _absent(text, name, said)
    if kind in ("NotSupportedError", "NotImplementedError"):
        return Unsupported(f"{name}: {said}", "use a store with conditional writes, or a directory: file:///path")
    if kind in ("PermissionDeniedError", "UnauthenticatedError"):
        return _denied(text, name, said)
    return _by_status(status, text, name, said)


def _by_status(status: int, text: str, name: str, said: str) -> StoreError:
    if status in (429, 503):
        return Throttled(f"{name}: the store asks for fewer requests ({said})")
    if status == 416 or any(each in text for each in _BAD):
        return BadAnswer(f"{name}: {said}")
    if status in (400, 401, 403) or _REDIRECT in text:
        return _denied(text, name, said)
    if 400 <= status < 500 and status != 408:
        return Unsupported(f"{name}: {said}", "the store does not know this request; check {endpoint}")
    return Unreachable(f"{name}: {said}", _ENDPOINT)


def _absent(text: str, name: str, said: str) -> StoreError:
    code = _CODE.search(text)
    if code is not None and code[1] in _FIXES:
        return _denied(text, name, said)  # some servers answer 404 to unknown keys
    if any(code in text for code in _BUCKET):
        return NotFound("there is no such bucket", "create it, or correct {url}")
    return NotFound(f"there is no {name}")


def _denied(text: str, name: str, said: str) -> Denied:
    code = _CODE.search(text)
    found = "PermanentRedirect" if _REDIRECT in text else code[1] if code else ""
    return Denied(f"{name}: {said}", _FIXES.get(found, _KEYS))


def _number(text: str) -> int:
    found = _STATUS.search(text)
    return int(found[1]) if found else 0


def _said(text: str) -> str:
    """Returns status, code and message of an answer; if there was no answer, the cause; else the library's first
    line."""
    code, message, status = _CODE.search(text), _MESSAGE.search(text), _number(text)
    if status:
        parts = [str(status), code[1] if code else "", message[1] if message else ""]
        return " ".join(part for part in parts if part)[:TEXT_MAX]
    if "Timeout" in text:
        return "no answer in time"
    first = text.split("\n", 1)[0]
    if cause := _cause(text):
        request = _REQUEST.search(first)
        return f"{cause} ({request[1]})"[:TEXT_MAX] if request else cause
    return first[:TEXT_MAX]


def _cause(text: str) -> str:
    """Returns the reason for which there was no answer, in the words of the operating system or TLS: the innermost
    error that the library prints below its first line; "" if there is none."""
    below = text.partition("\n")[2]
    if causes := _CAUSE.findall(below):
        return str(causes[-1]).removeprefix("failed to lookup address information: ")
    if tls := _TLS.search(below):
        return f"no TLS connection: {tls[1]}"
    return ""
