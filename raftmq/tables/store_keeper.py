"""Makes a run the keeper of a table on an object store, and removes the files that killed and failed rounds leave.

A store has no lock that ends with a process, and no renaming. A file of a run may belong to a round of another run that
is about to commit it: one that was paused while its lease ended, or whose process was killed while the store works on
its last request. So files are removed by this rule, which needs no clock and no lease:

1. Each commit of a run carries a transaction with the run's random number (`DeltaTarget.commit`). Of two such
   commits on the same snapshot, the later one fails, whatever their topics are.
2. A round first reads a snapshot of the table, then writes its files, then commits on this snapshot.
3. Before a commit, the run lists the files of runs. After the commit has succeeded, it removes those of the list that
   the table, read again, does not name.

A file of the list was written before the commit, so its round has read a snapshot from before it (2), so the commit
that would name it fails from now on (1), even if its request is still on its way: the version it asks for is taken.
The list is made by the first commit of a run, and by the first one after a round that failed.
"""

from __future__ import annotations

import contextlib
import logging
import random
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from cluster.tier.store.errors import AlreadyExists, Conflict, NotFound, StoreError
from cluster.tier.store.object_store import ObjectStore, probe
from cluster.tier.store.retrying_store import RequestCounts, RetryingStore, RetryPolicy
from raftmq.tables.day_files import DayFile
from raftmq.tables.delta_table import DeltaTarget
from raftmq.tables.errors import TableError
from raftmq.tables.lease import OVER_AFTER_S, Held, Lease, StoreThread, seen
from raftmq.tables.local_keeper import SHOWN
from raftmq.tables.store_folder import StoreFailed, StoreFolder, failed
from raftmq_wire.errors import ExitCode
from raftmq_wire.topic_identity import Position

logger = logging.getLogger(__name__)

_PROBES = "_raftmq"
_PROBES_MAX = 3
_POLICY = RetryPolicy(pause_max_s=2.0, call_s=10.0, total_s=15.0)


class Keepable(Protocol):
    """A snapshot of a table. `keeper`: the number of the run that made the last commit of any run; None if the table
    does not record it."""

    @property
    def keeper(self) -> int | None: ...


class StoreKeeper:
    """Keeps a table on an object store."""

    def __init__(self, folder: StoreFolder, over_after_s: float = OVER_AFTER_S) -> None:
        self._folder = folder
        self._run = secrets.randbits(63)
        self.hidden = f"{SHOWN}{self._run:016x}-"
        self._thread = StoreThread()
        self._store: ObjectStore = RetryingStore(folder.objects(), _POLICY, random.Random(), RequestCounts())
        self._over_after_s = over_after_s
        self._lease = Lease(self._store, over_after_s)
        self._has_committed = False
        self._may_have_strays = True

    def take(self) -> None:
        self._thread.__enter__()
        try:
            with _told(self._folder):
                self._thread.call(probed(self._store))
                self._thread.call(self._lease.take(self._waiting))
        except Held as error:
            self._thread.__exit__()
            raise TableError(
                f"another run keeps the table {self._folder}",
                f"{error} renews its lease; a table has one run at a time, because two would do the same work",
                f"raftmq table status {self._folder}",
                ExitCode.REFUSED,
            ) from None
        except BaseException:
            self._thread.__exit__()
            raise

    def give_back(self) -> None:
        try:
            with contextlib.suppress(StoreError):  # a failure does no harm: the lease ends by itself
                self._thread.call(self._lease.give_back())
            self._thread.call(self._store.close())
        finally:
            self._thread.__exit__()

    def check(self, target: Keepable) -> None:
        """Raises TableError if another run has taken the lease, or has committed after this run's last commit."""
        who = self._lease.lost
        if not who and self._has_committed and target.keeper != self._run:
            who = "another run"
        if who:
            raise TableError(
                f"another run has taken the table {self._folder} over",
                f"{who} keeps it since this one was silent for {self._over_after_s:g} s",
                "Leave it to that one, or stop it and begin again",
                ExitCode.REFUSED,
            )

    def commit(self, target: DeltaTarget, files: Sequence[DayFile], reached: Mapping[tuple[str, int], Position]) -> int:
        """Commits, then removes the strays that this commit has made impossible to commit, by the rule of the module's
        docstring."""
        strays = self._strays(target) if self._may_have_strays else []
        version = target.commit(files, reached, self._run)
        self._has_committed = True
        try:
            if strays:
                known = target.known_names()
                self._folder.remove([path for path in strays if path.rpartition("/")[2] not in known])
            self._may_have_strays = False
        except (StoreFailed, OSError) as error:
            logger.warning("files that no version names were left for the next commit to remove: %s", error)
        return version

    def shown(self, files: Sequence[DayFile]) -> list[DayFile]:
        """Returns the files unchanged: on a store, a file is visible only if the table names it."""
        return list(files)

    def remove_strays(self) -> None:
        """Schedules the removal: the next commit removes files that no version names."""
        self._may_have_strays = True

    def _strays(self, target: DeltaTarget) -> list[str]:
        named = target.file_names()
        return [path for page in self._folder.files(SHOWN) for path in page if path.rpartition("/")[2] not in named]

    def _waiting(self, who: str, most_s: float) -> None:
        logger.warning(
            "%s has the lease of the table; if it does not renew it for %.0f s, this run takes the table over",
            who,
            most_s,
        )


async def probed(store: ObjectStore) -> None:
    """Checks that the store honours conditional writes (`probe`). If an answer is lost, repeats the probe. Raises
    StoreError."""
    for left in reversed(range(_PROBES_MAX)):
        try:
            await probe(store, _PROBES, secrets.token_hex(8))
        except (AlreadyExists, Conflict, NotFound) as error:
            if error.fix or not left:  # an error with advice: there is no bucket
                raise
        else:
            return


def probe_store(folder: StoreFolder) -> None:
    """Checks that the store honours conditional writes. Raises StoreFailed if it does not."""
    with StoreThread() as thread, _told(folder):
        store = RetryingStore(folder.objects(), _POLICY, random.Random(), RequestCounts())
        thread.call(probed(store))
        thread.call(store.close())


def has_lease(folder: StoreFolder) -> bool:
    """Returns True if a lease of the table was renewed lately, judged by the store's clock and this machine's. Raises
    StoreFailed."""
    with StoreThread() as thread, _told(folder):
        found = thread.call(seen(folder.objects()))
    return found is not None and found.text.holder != "" and found.age_s() <= found.text.over_after_s


@contextlib.contextmanager
def _told(folder: StoreFolder) -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        raise failed(folder.url, error) from None
