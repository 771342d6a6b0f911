"""Types of the functions that the simulated world gives to its checks, clients and phases."""

from __future__ import annotations

from collections.abc import Callable

Report = Callable[[str, str], None]
"""Takes the name of a checker, and a description of what is wrong."""

Wait = Callable[..., bool]
"""Takes (condition, seconds, what is wrong otherwise, checker). Lets virtual time pass until `condition()` is true, and
returns True. If that takes more than this many seconds, reports a violation and returns False.
"""
