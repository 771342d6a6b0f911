"""Contains a defect that one request runs into: its request gets an error or times out, and all others go on.

The defect is reported like any other: the event loop logs it, and a simulator stops. Errors of the core and the disk
are never contained: after them it is unknown what the node has acknowledged, so it stops
(`cluster.replication.raft_driver`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from raftlog.errors import RaftLogError

_Value = TypeVar("_Value")

logger = logging.getLogger(__name__)


def report_contained(what: str, error: Exception) -> None:
    """Reports a failure of `what`, which was attempted for one request or one client."""
    message = f"{what} failed; the node continues"
    try:
        asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})
    except RuntimeError:  # no loop runs: a test steps this by hand
        logger.error(message, exc_info=error)


def contain_each(what: str, calls: Iterable[Callable[[_Value], object]], value: _Value) -> None:
    """Calls all functions with `value`. If one raises an exception, this is reported, and the next ones are called. A
    RaftLogError is not contained: it is raised, and the next ones are not called."""
    for call in calls:
        try:
            call(value)
        except RaftLogError:
            raise
        except Exception as error:  # noqa: BLE001 - see the module
            report_contained(what, error)


def contain(what: str, call: Callable[..., object], *arguments: Any) -> None:
    """Calls the function. If the function raises an exception, this is reported. A RaftLogError is not contained: it is
    raised."""
    try:
        call(*arguments)
    except RaftLogError:
        raise
    except Exception as error:  # noqa: BLE001 - see the module
        report_contained(what, error)
