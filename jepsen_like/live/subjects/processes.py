"""The node processes of a run: each in its own session, listed as owned, and signalled only while the pid is this run's
process."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from jepsen_like.live.subjects.owned_resources import Owned
from raftmq.local.waiting import until

_TERMINATE_S = 10.0
_STOPPED_S = 2.0


class Processes:
    """The table of node processes, by node id. A child that was not waited for keeps its pid, so signals reach the
    right process.
    """

    def __init__(self, owned: Owned) -> None:
        self._owned = owned
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self.starts = 0
        self.exits: dict[int, list[int]] = {}
        """Node -> exit codes of processes that ended without being told to."""

    def beside(self) -> Processes:
        """Returns an empty table for other nodes of the same run, which may have the same ids."""
        return Processes(self._owned)

    def start(self, node: int, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> int:
        """Starts a node that does not run; returns its pid."""
        assert not self.is_running(node), f"node {node} runs already"
        with log.open("ab") as file:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True, env=environment
            )
        self._children[node] = child
        self._owned.add_process(child.pid)
        self.starts += 1
        return child.pid

    def own(self, pid: int) -> None:
        """Lists another process of this run, which its starter ends, in case this run is killed."""
        self._owned.add_process(pid)

    def pid(self, node: int) -> int | None:
        """Returns the pid of the node's last process, running or dead; None if there was none."""
        child = self._children.get(node)
        return child.pid if child else None

    def owner(self, port: int) -> int:
        """Returns the id of the node whose process has a TCP connection from that local port; -1 if none has."""
        for node, child in list(self._children.items()):
            with contextlib.suppress(psutil.Error):
                if any(each.laddr.port == port for each in psutil.Process(child.pid).net_connections("tcp4")):
                    return node
        return -1

    def is_running(self, node: int) -> bool:
        """Returns True if the node's process runs. If it ended by itself, adds its exit code to `exits`, unless SIGKILL
        ended it.
        """
        child = self._children.get(node)
        if child is None:
            return False
        known = child.returncode is not None
        code = child.poll()
        if code is not None and not known and code != -signal.SIGKILL:
            self.exits.setdefault(node, []).append(code)
        return code is None

    def look(self) -> None:
        """Adds to `exits` the codes of all processes that have ended by themselves."""
        for node in list(self._children):
            self.is_running(node)

    def print_stacks(self, node: int) -> bool:
        """Makes the node's process print the stacks of all its threads; False if it does not run."""
        if not self.is_running(node):
            return False
        self._children[node].send_signal(signal.SIGQUIT)
        return True

    def forget(self, node: int) -> None:
        """Forgets a node that does not run and never will again, so that its exit codes do not count for the run."""
        self._children.pop(node, None)
        self.exits.pop(node, None)

    def aim(self, node: int) -> Callable[[], None]:
        """Returns the function that kills the node's process, ready to be called."""
        child = self._children[node]
        return child.kill

    def kill(self, node: int) -> bool:
        """Kills the node (SIGKILL) and waits until it has ended. Returns False if it did not run, or ended by itself
        at that moment.
        """
        if not self.is_running(node):
            return False
        child = self._children[node]
        child.kill()
        return child.wait() == -signal.SIGKILL

    def terminate(self, node: int) -> bool:
        """Sends SIGTERM, then SIGKILL if the process does not end in time. Returns True if it ended by itself with code
        0."""
        if not self.is_running(node):
            return False
        child = self._children[node]
        child.terminate()
        try:
            return child.wait(_TERMINATE_S) == 0
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            return False

    def pause(self, node: int) -> bool:
        """Sends SIGSTOP; returns True once the operating system shows the process as stopped."""
        if not self.is_running(node):
            return False
        child = self._children[node]
        child.send_signal(signal.SIGSTOP)

        def has_stopped() -> bool:
            with contextlib.suppress(psutil.Error):
                return bool(psutil.Process(child.pid).status() == psutil.STATUS_STOPPED)
            return False

        return until(has_stopped, _STOPPED_S, 0.002)

    def resume(self, node: int) -> None:
        """Sends SIGCONT."""
        if self.is_running(node):
            self._children[node].send_signal(signal.SIGCONT)

    def stop_all(self) -> None:
        """Stops all processes, including paused ones."""
        for node, child in self._children.items():
            if self.is_running(node):
                child.send_signal(signal.SIGCONT)
                child.terminate()
        for child in self._children.values():
            try:
                child.wait(_TERMINATE_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


class OfProcesses:
    """Base class of subjects: implements those methods of a Subject that only signal or watch its `processes`."""

    processes: Processes

    def is_running(self, node: int) -> bool:
        """Returns True if the node's process runs (a paused one does)."""
        return self.processes.is_running(node)

    def aim(self, node: int) -> Callable[[], None]:
        """Returns the function that kills the node's process, ready to be called."""
        return self.processes.aim(node)

    def kill(self, node: int) -> bool:
        """Kills the node (SIGKILL) and waits until it has ended. Returns False if it did not run, or ended by itself
        at that moment.
        """
        return self.processes.kill(node)

    def terminate(self, node: int) -> bool:
        """Stops the node in an orderly way. Returns False if it did not run or had to be killed."""
        return self.processes.terminate(node)

    def pause(self, node: int) -> bool:
        """Sends SIGSTOP; returns True once the operating system shows the process as stopped."""
        return self.processes.pause(node)

    def resume(self, node: int) -> None:
        """Sends SIGCONT, which is harmless for a process that is not stopped."""
        self.processes.resume(node)
