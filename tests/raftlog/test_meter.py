"""The meter of work counts for each thread by itself."""

from __future__ import annotations

import threading

from raftlog.work import (
    ITEM_UNITS,
    KIB_UNITS,
    METER,
    TEXT_KIB_UNITS,
    charge,
    charge_bytes,
    charge_text,
)


def test_what_is_charged_adds_up() -> None:
    before = METER.units
    charge(ITEM_UNITS)
    charge_bytes(4096)
    charge_text(4096)
    assert METER.units - before == ITEM_UNITS + 4 * KIB_UNITS + 1 + 4 * TEXT_KIB_UNITS


def test_another_threads_work_is_not_counted() -> None:
    before = METER.units
    thread = threading.Thread(target=charge, args=(1000,))
    thread.start()
    thread.join()
    assert METER.units == before
