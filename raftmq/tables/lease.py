"""The lease of a table on an object store: which run keeps the table now.

The lease is one object. A run creates or replaces it with conditional writes, and replaces it again every few seconds.
A run that wants the lease watches the object for the duration that the object names. If it does not change meanwhile,
the lease is over. Only a duration is measured, by the watcher's own clock, so clocks need not agree.

The correctness of a table does not depend on the lease. A holder that was paused may continue beside the next one until
it notices. Each of them commits on the snapshot that it has read, and the commit fails if the other one was faster. The
lease only avoids wasted work.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, TypeVar

import msgspec

from cluster.tier.store.errors import AlreadyExists, Conflict, NotFound, StoreError
from cluster.tier.store.object_store import ObjectStore

logger = logging.getLogger(__name__)

T = TypeVar("T")
NAME = "_raftmq/lease"
"""The name of the object. Tools that remove unknown files of a table leave files alone whose names begin with `_`."""
OVER_AFTER_S = 20.0
RENEWED_EVERY_S = 5.0
_LONGEST_S = 600.0
"""The longest time for which a lease is watched, whatever it says."""
_LOOK_S = 0.5
_BYTES_MAX = 4096


class LeaseText(msgspec.Struct, frozen=True):
    """The content of the object. `holder` is random, "" if the lease was given back; `renewed` counts, so that each
    content differs from all before; `who` is for people."""

    holder: str
    renewed: int
    over_after_s: float
    who: str


class Held(Exception):
    """Raised when another run has renewed the lease while it was watched. The text names that run."""


class Seen(NamedTuple):
    """A lease as it was read. `modified_ms` is the time of its last change by the store's clock."""

    text: LeaseText
    modified_ms: int

    def age_s(self) -> float:
        """Returns the seconds since its last change, as far as this machine's clock and the store's agree."""
        return time.time() - self.modified_ms / 1000


class Lease:
    """The lease of one run. Coroutines of one event loop."""

    def __init__(self, store: ObjectStore, over_after_s: float = OVER_AFTER_S) -> None:
        self.holder = secrets.token_hex(8)
        self.lost = ""
        """The run that has taken the lease over, in words; "" if none is known to have."""
        self._store = store
        self._over_after_s = over_after_s
        self._renewed = 0
        self._who = f"process {os.getpid()} on {socket.gethostname()}"
        self._renewing: asyncio.Task[None] | None = None

    async def take(self, waiting: Callable[[str, float], None]) -> None:
        """Takes the lease, and renews it from now on. If another run has it, first calls `waiting` with that holder and
        the seconds for which its lease will be watched. Raises Held if that run renews its lease meanwhile;
        StoreError."""
        watched: LeaseText | None = None
        until_s = 0.0
        loop = asyncio.get_running_loop()
        while not await self._replaced(watched if watched is not None and loop.time() >= until_s else None):
            found = await self._read()
            if found is None or found[0].holder in ("", self.holder):
                continue
            text = found[0]
            if watched is None:
                watched, most_s = text, min(text.over_after_s, _LONGEST_S)
                until_s = loop.time() + most_s
                waiting(text.who, most_s)
            elif text != watched:
                raise Held(text.who)
            else:
                await asyncio.sleep(_LOOK_S)
        self._renewing = loop.create_task(self._renew())

    async def give_back(self) -> None:
        """Ends the renewal, and frees the lease unless another run has it. Raises StoreError."""
        if self._renewing is not None:
            self._renewing.cancel()
        found = await self._read()
        if found is not None and found[0].holder == self.holder:
            await self._store.replace(NAME, self._content(""), found[1])

    async def _replaced(self, over: LeaseText | None) -> bool:
        """Writes the lease if there is none, if it was given back, if this run holds it, or if it still has the content
        `over`, whose time has passed. Returns True if this run holds the lease now. Raises StoreError."""
        found = await self._read()
        try:
            if found is None:
                await self._store.create(NAME, self._content(self.holder))
            elif found[0].holder in ("", self.holder) or found[0] == over:
                await self._store.replace(NAME, self._content(self.holder), found[1])
            else:
                return False
        except (AlreadyExists, Conflict, NotFound):
            found = await self._read()  # this run may have written it: an earlier answer may be lost
            return found is not None and found[0].holder == self.holder
        return True

    async def _renew(self) -> None:
        while not self.lost:
            await asyncio.sleep(self._over_after_s * RENEWED_EVERY_S / OVER_AFTER_S)
            try:
                if not await self._replaced(None):
                    found = await self._read()
                    self.lost = found[0].who if found is not None else "another run"
            except StoreError as error:
                logger.warning("the lease of the table could not be renewed: %s", error)

    async def _read(self) -> tuple[LeaseText, str] | None:
        try:
            stored = await self._store.get(NAME, _BYTES_MAX)
        except NotFound as error:
            if error.fix:  # there is not even a bucket
                raise
            return None
        return decoded(stored.data), stored.tag

    def _content(self, holder: str) -> bytes:
        self._renewed += 1
        return msgspec.json.encode(LeaseText(holder, self._renewed, self._over_after_s, self._who))


def decoded(data: bytes) -> LeaseText:
    """Returns the content of a lease. An object that is no lease counts as the lease of an unknown holder, and is
    watched like any other."""
    try:
        return msgspec.json.decode(data, type=LeaseText)
    except msgspec.MsgspecError:
        return LeaseText("unknown", hash(data), OVER_AFTER_S, "a program that wrote another kind of lease")


async def seen(store: ObjectStore) -> Seen | None:
    """Returns the lease as it is now; None if there is none. Raises StoreError."""
    try:
        data = (await store.get(NAME, _BYTES_MAX)).data
        return Seen(decoded(data), (await store.head(NAME)).modified_ms)
    except NotFound as error:
        if error.fix:
            raise
        return None


class StoreThread:
    """An event loop in a thread of its own, for `with`. Other threads run coroutines on it and wait for them; meanwhile
    it also renews leases."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="table lease", daemon=True)

    def __enter__(self) -> StoreThread:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Returns the coroutine's result, or raises its error."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()
