"""Names in a data directory, and the lock on it (docs/disk-format.md, "Files")::

    DATA/LOCK           flock held for the life of the process; holds its pid
    DATA/IDENTITY       the owner of the directory
    DATA/GENESIS        a copy of the frame at index 0
    DATA/hard_state     term and vote, two slots
    DATA/RUN            how the last run ended, up to which entry its rows are synced (run_file.py)
    DATA/CLAIMS         initial voters that were made on other machines (cluster/members/voter_claims.py)
    DATA/VOTE_WITHHELD  while it exists, the node neither votes nor campaigns (vote_withheld.py)
    DATA/GROUPS         the other groups of the cluster, a hint (cluster/placement/groups_file.py); not with one group
    DATA/log/           segment files, their index sidecars, CLEAN after an orderly stop, FIRST after a trim
    DATA/state/         RocksDB, owned by the state machine
    DATA/index/         index files of closed segments, owned by the tier
    DATA/checkpoints/   hard-linked RocksDB checkpoints
    DATA/events.jsonl   what happened, for people (cluster/runtime/events.py); events.1.jsonl holds what was before
    DATA/trash/         files and bytes that were set aside instead of deleted, each with a report (trash.py)
    DATA/install/       a log under construction that is to replace log/ (log_build.py), and an older segment file
    DATA/INSTALL        while it exists, the next opening replaces log/ by install/log (install.py)

Temporary files end in .tmp and never hold frames.
"""

from __future__ import annotations

import os
from pathlib import Path

from raftlog.errors import IdentityError
from raftlog.storage.files.fs import File, FileSystem, read_file

LOCK = "LOCK"
IDENTITY = "IDENTITY"
HARD_STATE = "hard_state"
GENESIS = "GENESIS"
RUN = "RUN"
VOTE_WITHHELD = "VOTE_WITHHELD"
GROUPS = "GROUPS"
LOG = "log"
STATE = "state"
INDEX = "index"
CHECKPOINTS = "checkpoints"
TRASH = "trash"
INSTALL_DIR = "install"
INSTALL = "INSTALL"

CLEAN = "CLEAN"
FIRST = "FIRST"
NEXT_SEGMENT = "next.tmp"
"""The name of the next segment's file while it is zero-filled in the background. It never contains frames: frames are
written only under the final name."""
ROLL_SEGMENT = "roll.tmp"
"""The name of a segment's file that the append thread makes itself, because the background one is not ready. It never
contains frames."""
SEGMENT_SUFFIX = ".seg"
INDEX_SUFFIX = ".idx"
ACTIVE_INDEX = "active.idx"
"""The name of the file with the index of the active segment up to some entry. The next start begins its scan there."""


def segment_name(base_position: int) -> str:
    """Returns the file name of the segment whose first frame is at `base_position`."""
    return f"{base_position:020d}{SEGMENT_SUFFIX}"


def index_name(base_position: int) -> str:
    """Returns the file name of the index sidecar of the segment at `base_position`."""
    return f"{base_position:020d}{INDEX_SUFFIX}"


def segment_bases(names: list[str]) -> list[int]:
    """Returns the base positions of the segment files among `names`, ascending."""
    stems = [name.removesuffix(SEGMENT_SUFFIX) for name in names if name.endswith(SEGMENT_SUFFIX)]
    return sorted(int(stem) for stem in stems if len(stem) == 20 and stem.isascii() and stem.isdigit())


def lock_directory(fs: FileSystem, directory: Path) -> File:
    """Locks the data directory by DATA/LOCK. Raises IdentityError, which names the process that has the lock."""
    path = directory / LOCK
    try:
        return fs.lock(path, str(os.getpid()))
    except BlockingIOError:
        holder = read_file(fs, path).decode(errors="replace").strip() or "unknown"
    raise IdentityError(
        f"data directory {directory} is in use by process {holder}.\n"
        f"Two nodes on one directory would destroy its log.\n"
        f"Stop that process first (raftmq down, or kill {holder}), or choose another directory with --data."
    )
