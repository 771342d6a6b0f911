"""The server's packages on the import path: they come first in RaftMQ's own processes, and never appear in a user's
process, unless it reads a copy of the log with `read_arrow`.

Their names are generic (`cluster`, `statemachine`), and programs have packages of the same names. So the distribution
raftmq-server keeps them in a folder of its own. Only processes of RaftMQ add that folder to their import path: the
command `raftmq`, a node, a helper of a node, a task in Spark. In a source tree the packages are next to this one.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

from raftmq_wire.errors import ExitCode, LocalError

PACKAGES = ("raftlog", "statemachine", "cluster", "jepsen_like")
LIB = f"raftmq_server{os.sep}lib"
"""The server's folder of an installation, below site-packages. It contains PACKAGES, and sub-packages of `raftmq`."""
INSTALL = "pip install 'raftmq[server]'"


def home() -> Path | None:
    """Returns the folder that contains PACKAGES; None if only the client is installed."""
    here = Path(__file__).resolve().parent
    if (here / "cli.py").exists():
        return here.parent
    server = find_spec("raftmq_server")
    found = server.submodule_search_locations if server else None
    return Path(next(iter(found)), "lib").resolve() if found else None


def is_installed() -> bool:
    """Returns True if the server comes from its distribution; False in a source tree, which has a Makefile."""
    folder = home()
    return folder is not None and folder.name == "lib"


def rooms() -> list[str]:
    """Returns the server's folders with further sub-packages of `raftmq`; [] if the server's folder is not on this
    process's import path."""
    return [str(Path(each, "raftmq")) for each in sys.path if each.endswith(os.sep + LIB)]


def become_ours() -> None:
    """Makes this process, and those that it starts, processes of RaftMQ: imports find the server's packages before any
    other.

    Raises LocalError if the server is not installed, is of another version, or if another package of the same name was
    imported before.
    """
    folder = _usable()
    _put_first(folder)
    if folder.name == "lib":  # in a source tree every environment knows the packages, but children start with -P
        others = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each and each != str(folder)]
        os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), *others])


def use_formats(wanted: str) -> None:
    """Makes the server's formats importable in a Spark task, whose process belongs to Spark, or in a program that reads
    a copy of the log. `wanted` says in words what needs them.

    Raises LocalError as `become_ours` does.
    """
    try:
        _put_first(_usable())
    except LocalError as error:
        raise LocalError(f"{wanted} needs the formats of the server", error.why, error.fix, error.exit_code) from error


def _usable() -> Path:
    folder = home()
    if folder is None:
        raise LocalError(
            "this needs the server, and only the client is installed",
            f"{Path(__file__).parents[1]} has the distribution raftmq and not raftmq-server",
            INSTALL,
            ExitCode.REFUSED,
        )
    if folder.name == "lib":
        _check_versions()
    for name in PACKAGES:
        module = sys.modules.get(name)
        file = getattr(module, "__file__", None)
        if module is not None and (file is None or Path(file).resolve().parent != folder / name):
            raise LocalError(
                f"this process has imported a foreign package '{name}'",
                f"it is {file or 'no file'}; the server has its own in {folder}",
                "do it in a process that does not import that package, for instance with the command raftmq",
                ExitCode.REFUSED,
            )
    return folder


def _check_versions() -> None:
    from importlib.metadata import version

    client, server = version("raftmq"), version("raftmq-server")
    if client != server:
        raise LocalError(
            "raftmq and raftmq-server are of different versions",
            f"raftmq is {client}, raftmq-server {server}; they share modules and work only together",
            f"pip install 'raftmq[server]=={max(client, server)}'",
            ExitCode.REFUSED,
        )


def _put_first(folder: Path) -> None:
    sys.path[:] = [str(folder), *(each for each in sys.path if each != str(folder))]
    path = sys.modules["raftmq"].__path__
    path.extend(each for each in rooms() if each not in path)
