"""The first Super of a cluster, out of a file: for containers and scripts, which cannot type a command.

The file has two lines, the user's name and its secret, and mode 0600. A leader proposes the user if none was ever made;
the log refuses it if another one came first. It never changes a user that exists.
"""

from __future__ import annotations

import logging
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cluster.broker.access.user_admin import Asker
from cluster.broker.refusal import Refused
from statemachine.commands import ACCESS_LEVEL

if TYPE_CHECKING:
    from cluster.broker.access.user_admin import UserAdmin
    from cluster.broker.services import Services

logger = logging.getLogger(__name__)

ASKER: Final = Asker("auth.first_user_file", "")
FILE_MAX: Final = 1_024


class FirstUser:
    """Proposes the first Super when this node takes writes, and the cluster has the level that users need."""

    def __init__(self, path: str, services: Services, users: UserAdmin) -> None:
        """`path`: the file; "" for none."""
        self._path = path
        self._services = services
        self._users = users
        self._due = False

    def writes_opened(self) -> None:
        """Called when this node takes writes."""
        self._due = bool(self._path) and self._services.state.access.next_id <= 1
        if self._due and self._services.state.level < ACCESS_LEVEL:
            logger.info("auth.first_user_file waits for level %d of the cluster (raftmq upgrade plan)", ACCESS_LEVEL)

    def tick(self, _: int) -> None:
        """Called several times a second: cheap. A new cluster gets its level just after it takes writes."""
        if self._due and self._services.state.level >= ACCESS_LEVEL:
            self._due = False
            if self._services.writes_open():
                self._propose()

    def _propose(self) -> None:
        try:
            name, secret = _read(Path(self._path))
            self._users.create(ASKER, name, secret, self._told, is_super=True, enabled=True)
        except OSError as error:
            logger.error("auth.first_user_file: %s cannot be read: %s", self._path, error.strerror or error)
        except ValueError as error:
            logger.error("auth.first_user_file: %s holds no user: %s", self._path, error)
        except Refused as refused:
            self._told(refused)

    def _told(self, refused: Refused | None) -> None:
        if refused is None:
            logger.info("the first Super was made from auth.first_user_file; the file is needed no more")
        else:
            logger.error("the first Super could not be made from auth.first_user_file: %s", refused.remark)


def _read(path: Path) -> tuple[str, str]:
    """Name and secret. Raises OSError, ValueError; no text of the file is told."""
    with path.open("rb") as file:
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            raise ValueError(f"its mode is {mode:04o}, so others may read it: chmod 600 {path}")
        lines = file.read(FILE_MAX).decode("utf-8", "replace").split()
    if len(lines) != 2:
        raise ValueError(f"it has {len(lines)} words, and needs two lines: a name and a secret")
    return lines[0], lines[1]
