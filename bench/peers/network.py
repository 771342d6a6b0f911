"""A network of its own for each node, so that the leader can be cut off as if its cable were pulled.

It uses network namespaces with a bridge between them; this process is connected to the bridge. Everything is made
inside a namespace in which the process itself must have been started (`ENTER`), so nothing is visible or changed
outside it, and everything disappears when the last process ends.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from bench.peers.processes import Processes
from bench.peers.system import NODES, Place, Places

ENTER = ("unshare", "-Urn")
"""The command prefix that starts a process in which a Network can be made: root in a user namespace, with an empty
network namespace."""
_NET = "10.77.0"
_HUB = f"{_NET}.254"
_HOLD = ("unshare", "-n", "sleep", "infinity")
_READY_S = 10.0


class Network:
    """A network of NODES places that reach each other and this process. Making it raises OSError if the kernel or
    iproute2 refuses."""

    def __init__(self, folder: Path) -> None:
        """`folder`: where the output of the `ip` commands is written."""
        self._holders = Processes()
        _ip("link", "set", "lo", "up")
        _ip("link", "add", "hub", "type", "bridge")
        _ip("addr", "add", f"{_HUB}/24", "dev", "hub")
        _ip("link", "set", "hub", "up")
        self.places = Places(tuple(self._place(number, folder) for number in range(NODES)), _HUB)

    def cut(self, number: int) -> None:
        """Cuts node `number` off: it can neither send nor receive; its interface stays up, as behind a dead switch."""
        _ip("link", "set", _port(number), "nomaster")

    def mend(self, number: int) -> None:
        """Connects the node again."""
        _ip("link", "set", _port(number), "master", "hub")

    def _place(self, number: int, folder: Path) -> Place:
        host = f"{_NET}.{number + 1}"
        holder = self._holders.start(_HOLD, folder / "network.log")
        _wait_for_namespace(holder)
        enter = ("nsenter", f"--net=/proc/{holder}/ns/net")
        _ip("link", "add", _port(number), "type", "veth", "peer", "name", "cable", "netns", str(holder))
        _ip("link", "set", _port(number), "master", "hub", "up")
        for words in (
            ("link", "set", "lo", "up"),
            ("addr", "add", f"{host}/24", "dev", "cable"),
            ("link", "set", "cable", "up"),
        ):
            _run(*enter, "ip", *words)
        return Place(host, enter)


def _port(number: int) -> str:
    """Returns the name of the bridge's end of a node's cable."""
    return f"port{number}"


def _wait_for_namespace(pid: int) -> None:
    """Waits until unshare(1) has made the namespace, which then differs from this process's."""
    until = time.monotonic() + _READY_S
    own = Path("/proc/self/ns/net").readlink()
    while Path(f"/proc/{pid}/ns/net").readlink() == own:
        if time.monotonic() > until:
            raise TimeoutError(f"no network namespace within {_READY_S:.0f} s")
        time.sleep(0.005)


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
