"""The mark of a made cluster: a file outside the data directories, with the cluster's uuid.

An emptied data directory looks like one that was never made. If a majority of the disks is lost while no node runs, two
emptied nodes could therefore make an empty cluster and serve it. If there is a mark, or if the configuration names its
cluster, no new cluster is made. Where no file can be kept (a pod of Kubernetes), the operator allows the creation until
a given time in the near future.
"""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from cluster.config.config import Config
from cluster.config.local_layout import replace_file
from raftlog.types import FIRST_GROUP
from raftmq_wire.errors import ExitCode, LocalError

SUFFIX = ".cluster"
FILE_MAX = 256
"""The longest mark that is read, in bytes."""
AHEAD_MAX_MS = 24 * 3600 * 1000
"""The longest time ahead, in milliseconds, for which making a cluster may be allowed. The limit catches wrong times and
clocks."""

_RETIRED = " retired"
_REPLACE = "raftmq node replace ID --config FILE --via URL    (while the others run)"


def mark_beside(file: Path, group: int = FIRST_GROUP) -> Path:
    """Returns the path of the mark of a group beside a file: the file is the secret, which all groups share, or the
    node's configuration."""
    return file.with_name(file.name + (SUFFIX if group == FIRST_GROUP else f".g{group:02}{SUFFIX}"))


def mark_of_secret(config: Config) -> Path | None:
    """Returns the path of the mark beside the node's secret; None if the secret lies in the data directory."""
    secret = config.peer.secret_file
    if not secret or Path(secret).is_relative_to(config.node.data_dir):
        return None
    return mark_beside(Path(secret), config.cluster.group)


def mark_of_node(config: Config, config_path: Path) -> Path:
    """Returns the path of the mark for a node that is made alone (`raftmq init --first`): beside its secret if that is
    outside the data directory, else beside its configuration."""
    return mark_of_secret(config) or mark_beside(config_path, config.cluster.group)


def check_unmade(mark: Path, directory: str) -> None:
    """Raises LocalError if the mark says that the cluster was made before. `directory` is the empty data directory."""
    known = _known(mark)
    if not known and not mark.exists():
        return
    raise LocalError(
        f"the cluster of {directory} was made before: {known or 'its mark is empty'}",
        f"{mark} says so, and {directory} is empty: its disk was lost; empty nodes would make an empty cluster",
        f"{_REPLACE}; only if all data may go: rm {mark}",
        ExitCode.REFUSED,
    )


def _known(mark: Path) -> str:
    """Returns the text of the mark; "" if there is none, or if it is empty. Raises LocalError."""
    try:
        with mark.open("rb") as file:
            return file.read(FILE_MAX).decode("ascii", "replace").rstrip("\n")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise LocalError(
            f"{mark} cannot be read", error.strerror or str(error), f"ls -l {mark}    (owner, mode)", ExitCode.REFUSED
        ) from error


def check_nameless(config: Config) -> None:
    """Raises LocalError if the configuration of a node of the first group names the cluster that it belongs to."""
    if config.cluster.id and config.cluster.group == FIRST_GROUP:
        raise LocalError(
            f"the configuration names the cluster {config.cluster.id}, so it exists",
            f"{config.node.data_dir} is empty: its disk was lost; empty nodes would make an empty cluster",
            f"{_REPLACE}; for a new cluster, take out cluster.id",
            ExitCode.REFUSED,
        )


def check_allowed(until_ms: int) -> None:
    """Raises LocalError if the time until which a cluster may be made, in milliseconds since the epoch, has passed, or
    is so far ahead that it or this machine's clock is wrong."""
    now_ms = time.time_ns() // 1_000_000
    if now_ms >= until_ms:
        raise LocalError(
            f"a new cluster may not be made: that was allowed until {_text(until_ms)}",
            "the data directory is empty: if the cluster was made before, its disk was lost, and empty nodes would "
            "make an empty cluster",
            f"lost: {_REPLACE}; new: name a time soon",
            ExitCode.REFUSED,
        )
    if until_ms - now_ms > AHEAD_MAX_MS:
        raise LocalError(
            f"{_text(until_ms)} is more than a day ahead",
            f"this machine's clock says {_text(now_ms)}; one of the two is wrong",
            "set the clock, or name a time within a day",
            ExitCode.REFUSED,
        )


def write_mark(mark: Path, cluster: str) -> None:
    """Writes the mark, on disk when this returns. Raises LocalError."""
    try:
        mark.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(mark, f"{cluster}\n".encode("ascii"))
    except OSError as error:
        raise LocalError(
            f"{mark} cannot be written: {error.strerror or error}",
            "without this mark an emptied disk could make the cluster a second time",
            f"ls -ld {mark.parent}    (owner); where no file can be kept: --until TIME, a time soon",
            ExitCode.REFUSED,
        ) from error


def mark_retired(mark: Path) -> None:
    """Records in the mark of a group that it has retired. Raises LocalError."""
    known = _known(mark)
    if not known.endswith(_RETIRED):
        write_mark(mark, known + _RETIRED)


def says_retired(mark: Path) -> bool:
    """Returns True if the mark says that its group has retired. Raises LocalError."""
    return _known(mark).endswith(_RETIRED)


def keep_mark(mark: Path, cluster: str) -> None:
    """Writes the mark of a cluster that exists, unless there is a mark already; does nothing if the folder cannot be
    written."""
    if not mark.exists():
        with suppress(LocalError):
            write_mark(mark, cluster)


def _text(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
