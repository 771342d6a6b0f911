"""Processes of peers: nothing stays behind, however the benchmark ends, and their CPU time is counted whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from bench.peers.processes import TICKS_PER_SECOND, Processes, end_all, ended_at_exit, ticks
from tests.support.pace import at_most
from tests.support.rows import each_row

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
# A node that starts a process of its own, and says its pid.
PARENT = [
    sys.executable,
    "-c",
    "import subprocess, sys, time\n"
    "print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']).pid, flush=True)\n"
    "time.sleep(600)",
]
BENCHMARK = """
import sys
from pathlib import Path
from bench.peers.processes import Processes, ended_at_exit
with ended_at_exit():
    processes = Processes()
    pid = processes.start([sys.executable, "-c", "import time; time.sleep(600)"], Path(sys.argv[1]))
    processes.pause()
    print(pid, flush=True)
    sys.stdin.readline()
    raise RuntimeError("the benchmark failed")
"""
ROOT = Path(__file__).parents[2]


@pytest.fixture
def processes() -> Iterator[Processes]:
    found = Processes()
    yield found
    found.end()


def is_alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def wait_for_line(log: Path) -> str:
    """The first line of a file that another process writes; the test's own timeout is the limit."""
    while "\n" not in (text := log.read_text() if log.exists() else ""):
        time.sleep(0.01)
    return text.splitlines()[0]


def test_ticks_are_counted_whatever_the_process_is_called() -> None:
    name = "a) R 1 2 (b"
    stat = f"42 ({name}) S 1 42 42 0 -1 4194560 500 600 0 0 11 22 33 44 20 0 9 0 100"
    assert ticks(stat) == 11 + 22 + 33 + 44


def test_cpu_of_descendants_counts(processes: Processes, tmp_path: Path) -> None:
    """The child burns a fifth of a second of CPU, its parent none to speak of."""
    burn = "import time\nwhile time.process_time() < 0.2: pass\nprint('burnt', flush=True)\ntime.sleep(600)"
    code = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {burn!r}])"
    processes.start([sys.executable, "-c", code], tmp_path / "log")
    assert wait_for_line(tmp_path / "log") == "burnt"
    assert processes.cpu_seconds() >= 0.2 - 1 / TICKS_PER_SECOND


def test_the_end_reaches_stopped_processes_and_descendants(processes: Processes, tmp_path: Path) -> None:
    parent = processes.start(PARENT, tmp_path / "log")
    child = int(wait_for_line(tmp_path / "log"))
    processes.pause()
    assert psutil.Process(parent).status() == psutil.STATUS_STOPPED
    processes.end()
    assert not is_alive(parent)
    assert not is_alive(child)
    assert processes.pids == []


def test_pause_and_resume_of_one(processes: Processes, tmp_path: Path) -> None:
    first, second = (processes.start(SLEEP, tmp_path / "log") for _ in range(2))
    processes.pause(first)
    assert psutil.Process(first).status() == psutil.STATUS_STOPPED
    assert psutil.Process(second).status() != psutil.STATUS_STOPPED
    processes.resume()
    assert psutil.Process(first).status() != psutil.STATUS_STOPPED


def test_a_killed_process_is_forgotten_and_one_that_ended_is_told(processes: Processes, tmp_path: Path) -> None:
    victim, other = (processes.start(SLEEP, tmp_path / "log") for _ in range(2))
    processes.kill(victim)
    processes.reap(victim)
    assert (processes.pids, processes.ended()) == ([other], [])
    os.kill(other, signal.SIGKILL)
    psutil.Process(other).wait()
    assert processes.ended() == [other]


def test_a_system_that_cannot_be_ended_does_not_spare_the_next(
    processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = processes.start(SLEEP, tmp_path / "log")
    stubborn = [Processes(), Processes()]
    ended = Processes.end

    def end(one: Processes) -> None:
        if one in stubborn:
            raise TimeoutError("not gone")
        ended(one)

    monkeypatch.setattr(Processes, "end", end)
    end_all()
    assert not is_alive(pid)


def test_signals_are_given_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with ended_at_exit():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


@each_row("how", ["raise", "SIGINT", "SIGTERM", "SIGHUP", "SIGKILL"])
def test_nothing_stays_behind(how: str, tmp_path: Path) -> None:
    """A benchmark that fails, is interrupted or is killed leaves no node, not even one that is stopped."""
    command = [sys.executable, "-c", BENCHMARK, str(tmp_path / "log")]
    pipe = subprocess.PIPE
    benchmark = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
    with benchmark:
        assert benchmark.stdout is not None
        node = psutil.Process(int(benchmark.stdout.readline()))
        if how == "raise":
            assert benchmark.stdin is not None
            benchmark.stdin.write("\n")
            benchmark.stdin.flush()
        else:
            benchmark.send_signal(signal.Signals[how])
    psutil.wait_procs([node], timeout=at_most(60))  # it is init's by then; its end is what we wait for
    assert not is_alive(node.pid)
    assert benchmark.returncode != 0
