"""An asyncio event loop in virtual time that also plays the operating system: it knows the process of each callback.

Every callback carries the context in which it was scheduled, and the context names its process. So the loop kills a
process by never running its callbacks again, and pauses it by keeping them until it goes on, whatever tasks and timers
it has. The order of events depends on nothing but the program: no threads, no descriptors, no wall clock.
"""

from __future__ import annotations

import asyncio
import heapq
from asyncio.events import Handle, TimerHandle
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, ContextVar
from typing import Any, TypeVar

from jepsen_like.fakes.memory_fs import PowerCut
from raftlog.work import METER

T = TypeVar("T")


class EventBudgetError(Exception):
    """The run needed more events than its budget: something sends without end."""


class StuckError(Exception):
    """No event is scheduled any more although the run still awaits something."""


class Process:
    """A simulated operating system process: callbacks in its context run, pause and die with it."""

    __slots__ = (
        "alive",
        "context",
        "host",
        "name",
        "on_power_cut",
        "parked",
        "paused",
        "stalls",
        "tasks",
        "unread",
    )

    def __init__(self, name: str, host: str) -> None:
        """`host`: the IP address of the process."""
        self.name = name
        self.host = host
        self.alive = True
        self.paused = False
        self.parked: list[Handle] = []
        self.stalls = 0
        """Number of stalls (callbacks that take long) in effect: 0, 1, or more if another fault makes the callback
        longer."""
        self.unread: list[Handle] = []
        """Callbacks for data that came into the process's sockets during a stall, kept until its event loop polls the
        sockets."""
        self.tasks: list[asyncio.Task[Any]] = []
        """All tasks of the process, kept referenced until the end of the run, so that those of a dead process are not
        garbage collected at a random moment."""
        self.on_power_cut: Callable[[], None] = lambda: None
        """Function that is called when the machine's power fails in the middle of work that this simulated process does
        in an executor, or of a lane's drain."""
        self.context = Context()
        self.context.run(PROCESS.set, self)

    def run(self, function: Callable[..., T], *args: Any) -> T:
        """Calls a function in the context of this process, and returns its result."""
        return self.context.copy().run(function, *args)


PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


def _comes_by_poll(handle: Handle) -> bool:
    """Returns True if a real event loop would learn of this callback's cause by polling: received bytes, ends of
    connections, or results of other threads."""
    callback = handle._callback  # type: ignore[attr-defined]
    return bool(getattr(getattr(callback, "__self__", None), "polled", False))


class SimLoop(asyncio.BaseEventLoop):
    """The event loop of the whole simulation. `now` is the virtual time in seconds since the start; `events` counts the
    callbacks that ran.

    `after_event(process)` is called after each callback of a process; an exception that it raises ends the run. Before
    that, `on_long_turn(process, callback, units)` is called if the callback charged the meter (`raftlog.work`) more
    than `turn_bound` units.
    """

    _ready: Any  # attribute of the base class, as are the next two
    _stopping: bool
    _scheduled: list[TimerHandle]

    def __init__(self, event_budget: int) -> None:
        super().__init__()
        self.now = 0.0
        self.events = 0
        self.event_budget = event_budget
        self.after_event: Callable[[Process], None] | None = None
        self.turn_bound: int | None = None
        """Units that a callback may charge the meter; None if the meter is not read."""
        self.on_long_turn: Callable[[Process, object, int], None] = lambda process, callback, units: None
        self.errors: list[tuple[str, BaseException | None]] = []
        self.outside = Context()
        """The context of callbacks that belong to no process, such as those of the network and the nemesis."""
        self.loose: list[asyncio.Task[Any]] = []
        self._ending = False
        self._interruption: BaseException | None = None
        """The error that ends the simulator itself and not a node: a test's time-out, raised inside a callback."""
        self.set_debug(False)
        self.set_exception_handler(self._on_error)

    def time(self) -> float:
        return self.now

    def _on_error(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is not None and not isinstance(error, Exception | asyncio.CancelledError | GeneratorExit):
            self._interruption = error
            self.stop()
        elif not self._ending:
            self.errors.append((str(context.get("message")), error))

    def _write_to_self(self) -> None:
        """Does nothing: no other thread ever wakes this loop."""

    def _timer_handle_cancelled(self, handle: TimerHandle) -> None:
        """Does nothing: a cancelled timer leaves the heap when it is due."""

    def _run_once(self) -> None:
        ready, scheduled = self._ready, self._scheduled
        while scheduled and scheduled[0].cancelled():
            heapq.heappop(scheduled)
        if not ready:
            if not scheduled:
                raise StuckError("nothing is scheduled: this would wait for ever")
            self.now = max(self.now, scheduled[0].when())
        while scheduled and scheduled[0].when() <= self.now:
            handle = heapq.heappop(scheduled)
            if not handle.cancelled():
                ready.append(handle)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                self._run_handle(handle)
            if self._stopping:
                error, self._interruption = self._interruption, None
                if error is not None:
                    raise error
                return

    def _run_handle(self, handle: Handle) -> None:
        process: Process | None = handle._context.get(PROCESS)  # type: ignore[attr-defined]
        if process is None:
            handle._run()
            return
        if process.paused or process.stalls or not process.alive:
            process.parked.append(handle)
            return
        self.events += 1
        if self.events > self.event_budget:
            raise EventBudgetError(f"{self.event_budget} events were not enough")
        if self.turn_bound is None:
            handle._run()
        else:
            self._run_metered(process, handle, self.turn_bound)
        if self.after_event is not None:
            self.after_event(process)

    def _run_metered(self, process: Process, handle: Handle, bound: int) -> None:
        before, callback = METER.units, handle._callback  # type: ignore[attr-defined]
        handle._run()
        units = METER.units - before
        if units > bound:
            self.on_long_turn(process, callback, units)

    # --- processes -----------------------------------------------------------------------------------------------

    def create_task(  # type: ignore[override]
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        """Creates a task and adds it to the list of its process."""
        task: asyncio.Task[T] = asyncio.Task(coro, loop=self, name=name, context=context)
        process = PROCESS.get() if context is None else context.get(PROCESS)
        (self.loose if process is None else process.tasks).append(task)
        return task

    def resume(self, process: Process) -> None:
        """Continues a paused process (SIGCONT): everything that fell due during the pause runs now, in order."""
        process.paused = False
        if not process.stalls:
            parked, process.parked = process.parked, []
            self._ready.extend(parked)

    def stall(self, process: Process) -> None:
        """Begins a stall: a callback of this process takes long. Time passes, its sockets fill, and no other callback
        of it runs."""
        process.stalls += 1

    def end_stall(self, process: Process) -> None:
        """Ends a stall: the long callback returns. It counts as an I/O callback, so timers that fell due during it run
        first, then callbacks scheduled with call_soon, and only then the process polls its sockets. This is uvloop's
        order, and the worst one for code that mistakes silence for a failure."""
        process.stalls -= 1
        if process.stalls or process.paused or not process.alive:
            return
        parked, process.parked = process.parked, []
        process.unread += [handle for handle in parked if _comes_by_poll(handle)]
        rest = [handle for handle in parked if not _comes_by_poll(handle)]
        timers = [handle for handle in rest if isinstance(handle, TimerHandle)]
        self._ready.extend(sorted(timers, key=TimerHandle.when))
        self._ready.extend(handle for handle in rest if not isinstance(handle, TimerHandle))
        self.call_soon(self.call_soon, self._poll, process, context=self.outside)

    def _poll(self, process: Process) -> None:
        """Runs the callbacks for the data in the sockets after the callbacks that the overdue timers scheduled, and
        before those that the data itself schedules."""
        unread, process.unread = process.unread, []
        self._ready.extendleft(reversed(unread))

    def call_outside(self, delay_s: float, callback: Callable[..., None], *args: Any) -> TimerHandle:
        """Schedules a timer that belongs to no process, in `delay_s` seconds."""
        return self.call_at(self.now + delay_s, callback, *args, context=self.outside)

    # --- what the machine would do -------------------------------------------------------------------------------

    network: Any = None

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        """Listens on a port of the simulated network."""
        return self.network.listen(protocol_factory, host, port)

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        """Dials an address in the simulated network."""
        return await self.network.connect(protocol_factory, host, port)

    def run_in_executor(self, _executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """Runs the function here and now and returns a finished future. If the power fails during the function, the
        process ends and the future stays open. The function's units are not charged to the loop's turn, because the
        product runs it on another thread."""
        future: asyncio.Future[T] = self.create_future()
        before = METER.units
        try:
            future.set_result(func(*args))
        except PowerCut:
            process = PROCESS.get()
            if process is not None and process.alive:
                process.on_power_cut()
        except Exception as error:  # noqa: BLE001 - it belongs to whoever awaits
            future.set_exception(error)
        METER.units = before
        return future

    # --- the end -------------------------------------------------------------------------------------------------

    def bury(self, processes: list[Process]) -> None:
        """Ends every task of a run, including those of dead processes, and closes the loop, so that nothing is left for
        the garbage collector."""
        self._ending = True
        self._stopping = False  # a violation found outside any event asked for a stop
        self.after_event = None
        self.turn_bound = None  # a violation stops the loop, and the tasks would not come to their ends
        self.event_budget = 1 << 60
        self._scheduled.clear()
        tasks = list(self.loose)
        for process in processes:
            process.alive, process.paused = True, False
            self._ready.extend(process.parked)  # the steps of the process's tasks are among these callbacks
            process.parked.clear()
            tasks += process.tasks
        open_tasks = [task for task in tasks if not task.done()]
        for task in open_tasks:
            task.cancel()
        self._drain(open_tasks)
        for task in [*self.loose, *(task for process in processes for task in process.tasks)]:
            coroutine = task.get_coro()
            if not task.done() and coroutine is not None:
                coroutine.close()  # the task was created meanwhile, and has not taken its first step
            elif not task.cancelled():
                task.exception()  # marks the exception as retrieved, so that asyncio does not log it
        self._ready.clear()
        self._scheduled.clear()
        self.close()

    def _drain(self, tasks: list[asyncio.Task[Any]]) -> None:
        end = self.now + 60.0
        self.call_at(end, self.stop, context=self.outside)

        def look() -> None:
            if all(task.done() for task in tasks):
                self.stop()
            else:
                for task in tasks:
                    if not task.done():
                        task.cancel()
                self.call_at(self.now + 0.5, look, context=self.outside)

        self.call_soon(look, context=self.outside)
        self.run_forever()
