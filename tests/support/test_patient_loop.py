"""A loop that was starved goes on as if nothing had been."""

from __future__ import annotations

import asyncio
import time

from tests.support.patient_loop import PatientLoop


def test_a_stall_takes_nothing_from_a_timeout() -> None:
    async def asked_in_steps() -> int:
        steps = 0
        async with asyncio.timeout(0.3):
            for _ in range(5):
                time.sleep(0.1)  # noqa: ASYNC251 - the process is starved
                await asyncio.sleep(0.001)
                steps += 1
        return steps

    with asyncio.Runner(loop_factory=PatientLoop) as runner:
        assert runner.run(asked_in_steps()) == 5


def test_a_timeout_comes_when_its_time_is_over() -> None:
    async def waits() -> float:
        begun = time.monotonic()
        try:
            async with asyncio.timeout(0.05):
                await asyncio.Event().wait()
        except TimeoutError:
            return time.monotonic() - begun
        return 0.0

    with asyncio.Runner(loop_factory=PatientLoop) as runner:
        assert runner.run(waits()) >= 0.05
