"""Parts that the commands of `raftmq spark` share: a session for one job, errors in three lines, a progress bar."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from pyspark_raftmq.errors import SourceError
from pyspark_raftmq.spark_session import DRIVER_MEMORY, session
from raftmq.commands.shared_options import console, told_in_lines
from raftmq.commands.value_types import SparkMasterType

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.progress import Progress

LOOK_S = 0.5


def session_options(command: Any) -> Any:
    """Adds the options --master and --memory to a command."""
    master = click.option(
        "--master",
        metavar="URL",
        type=SparkMasterType(),
        help="Where Spark runs the tasks (default: as spark-submit says, or local[2]).",
    )
    memory = click.option(
        "--memory", default=DRIVER_MEMORY, show_default=True, metavar="SIZE", help="Memory of Spark's driver."
    )
    return master(memory(command))


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """A context that reraises errors for people as the three lines that every command prints. It also finds such errors
    inside a Java stack trace of Spark."""
    try:
        yield
    except SourceError as error:
        raise told_in_lines(error.what, error.why, error.hint) from error
    except OSError as error:
        if error.filename is None:
            raise
        why = error.strerror or str(error)
        raise told_in_lines(f"{error.filename} cannot be used", why, f"ls -ld {error.filename}") from error
    except Exception as error:
        found = told_by_task(str(error)) if type(error).__module__.startswith(("pyspark.", "py4j.")) else None
        if found is None:
            raise
        raise told_in_lines(*found) from None


def told_by_task(trace: str) -> tuple[str, str, str] | None:
    """Returns the three lines of a SourceError inside a stack trace of Spark; None if there is none."""
    lines = trace.splitlines()
    for at, line in enumerate(lines[:-2]):
        if line.startswith("pyspark_raftmq.errors.") and lines[at + 1].startswith("  why: "):
            what = line.partition(": ")[2]
            return what, lines[at + 1].removeprefix("  why: "), lines[at + 2].removeprefix("  do:  ")
    return None


@contextlib.contextmanager
def job_session(master: str | None, memory: str, *, quiet: bool) -> Iterator[SparkSession]:
    """Yields a Spark session for one job and stops it afterwards. A session that is already active belongs to the
    caller's program, and is not stopped.

    Unless `quiet`, a bar on stderr shows the progress of the running tasks. Spark logs only fatal errors. The stack
    trace of a failed task, some sixty lines, is left out, because the command explains the error. RAFTMQ_DEBUG=1 shows
    it.
    """
    from py4j.protocol import Py4JError
    from pyspark.sql import SparkSession

    before = SparkSession.getActiveSession()
    running = session(master, driver_memory=memory)
    if before is None and not os.environ.get("RAFTMQ_DEBUG"):
        running.sparkContext.setLogLevel("FATAL")
    try:
        with _bar(quiet=quiet) as bar, followed(bar, lambda: tasks_of(running.sparkContext.statusTracker())):
            yield running
    finally:
        if before is None:
            with contextlib.suppress(OSError, Py4JError):  # if Spark's process is gone, the job's own error says so
                running.stop()


def tasks_of(tracker: Any) -> tuple[int, int]:
    """Returns (ended tasks, all tasks) of the stages that run now, (0, 0) if there are none. `tracker`: Spark's
    StatusTracker, which may forget stages at any time."""
    stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
    found = [stage for stage in stages if stage is not None]
    return sum(stage.numCompletedTasks for stage in found), sum(stage.numTasks for stage in found)


@contextlib.contextmanager
def followed(bar: Progress, look: Callable[[], tuple[int, int]], every_s: float = LOOK_S) -> Iterator[None]:
    """Updates the bar with the result of `look`, in a thread of its own, because the job blocks this one. `every_s`:
    seconds between two updates."""
    if bar.disable:
        yield
        return
    task, ended = bar.add_task("", total=None), threading.Event()

    def follow() -> None:
        while not ended.wait(every_s):
            try:
                done, total = look()
            except Exception:  # noqa: BLE001 - Spark is gone, which the job itself tells
                return
            bar.update(task, completed=done, total=total or None)

    thread = threading.Thread(target=follow, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _bar(*, quiet: bool) -> Progress:
    """Returns a progress bar on stderr; a disabled one if stderr is no terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    out = console(stderr=True)
    bar = Progress(BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=out, transient=True)
    bar.disable = quiet or not out.is_terminal
    return bar


@contextlib.contextmanager
def progress(*, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """Shows a progress bar for a job that counts by itself; yields a function that takes (done, total)."""
    with _bar(quiet=quiet) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
