"""Changes quotas up to a hundred times a second, with good and bad requests, and checks the quotas that result."""

from __future__ import annotations

import contextlib
import random
import threading
import time
import urllib.error
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

WORKERS: Final = 8
"""Number of threads that change quotas. There are several because each change waits until the log has it."""
EVERY_S: Final = WORKERS / 100
"""Seconds between two changes of one thread: all together make a hundred a second."""
ROWS: Final = 3
"""Number of subjects per thread whose quotas only that thread sets and removes."""
LIMITS: Final = (10, 50, 100, 200)
"""The values to which the limit of the shared subject is set, in messages per second."""
BAD_SHARE: Final = 0.3
OTHER_SHARE: Final = 0.3
REFUSED_FROM, REFUSED_TO = 400, 500
"""HTTP status codes from REFUSED_FROM to before REFUSED_TO say that the request is wrong."""
SHOWN: Final = 5

QuotaRows = dict[str, dict[str, Any] | None]
Ask = Callable[[Any], Any]
"""Function that sends a request with this body once. Raises HTTPError if the request is refused, another OSError if
there is no answer.
"""


class QuotaChange(NamedTuple):
    """A request. `rows`: the quotas that a good one sets; None for a bad one, which must be refused."""

    body: Any
    rows: QuotaRows | None
    kind: str


def body_of(rows: QuotaRows) -> dict[str, Any]:
    """Returns the body of the request that sets these quotas."""
    return {"quotas": [{"subject": subject, "limits": limits} for subject, limits in rows.items()]}


def others(worker: int) -> list[str]:
    """Returns the names of the topics whose quotas only this thread changes."""
    return [f"storm-{worker * ROWS + number}" for number in range(ROWS)]


def bad_rows(subject: str, rng: random.Random) -> QuotaChange:
    """Returns a request with a bad limit, which must be refused as a whole, even if it has a good one too."""
    kind, limits = rng.choice(
        (
            ("zero", {"send_messages": 0}),
            ("below one", {"send_messages": 0.5}),
            ("negative", {"send_bytes": -1}),
            ("2^62", {"send_messages": 2**62}),
            ("2^70", {"send_bytes": 2**70}),
            ("a text", {"send_messages": "10"}),
            ("no limit", {}),
            ("of an unknown name", {"send_mesages": 10}),
        )
    )
    bad = {"subject": subject, "limits": limits}
    good = {"subject": f"{subject}-beside", "limits": {"send_messages": 1}}
    wrong = (
        [bad],
        [good, bad],
        [bad, good],
    )
    return QuotaChange({"quotas": rng.choice(wrong)}, None, kind)


def bad_subject(subject: str, rng: random.Random) -> QuotaChange:
    """Returns a request with an invalid subject, with one subject twice, or with none, which must be refused as a
    whole."""
    limits = {"send_messages": 1}
    kind, names = rng.choice(
        (
            ("twice", [subject, subject]),
            ("no subject", [f"{subject}-beside", "everybody"]),
            ("an address that is none", [f"{subject}-beside", "address=1.2.3"]),
            ("a subject that is too long", ["topic=" + "x" * 500]),
            ("none", []),
        )
    )
    return QuotaChange({"quotas": [{"subject": name, "limits": limits} for name in names]}, None, kind)


def draw(subject: str, rng: random.Random, worker: int) -> QuotaChange:
    """Returns a request: most change the limit of `subject`, which all threads share, and some of these also set or
    remove quotas of the thread's own topics; the rest are bad.
    """
    luck = rng.random()
    if luck < BAD_SHARE:
        return rng.choice((bad_rows, bad_rows, bad_subject))(subject, rng)
    rows: QuotaRows = {subject: {"send_messages": rng.choice(LIMITS)}}
    if luck < BAD_SHARE + OTHER_SHARE:  # topics that exist, that do not exist, and that existed a moment ago
        for topic in rng.sample(others(worker), rng.randrange(1, ROWS + 1)):
            limits = rng.choice((None, {"send_bytes": 10**15}, {"send_messages": 1, "pull_bytes": 1}))
            rows[f"topic={topic}"] = limits
    return QuotaChange(body_of(rows), rows, "good")


class Changes:
    """A context in which threads change quotas, a hundred times a second if the node takes them that fast. All threads
    change the quota of one subject, and each also changes quotas of subjects of its own."""

    def __init__(self, ask: Ask, subject: str, rng: random.Random) -> None:
        self._ask, self._subject = ask, subject
        self._stop = threading.Event()
        self._locks = [threading.Lock() for _ in range(WORKERS)]
        self._threads = [
            threading.Thread(target=self._run, args=[worker, random.Random(rng.getrandbits(32))], daemon=True)
            for worker in range(WORKERS)
        ]
        self.asking = threading.Event()
        """Event that is set when a good change is sent."""
        self.calm = True
        """False while faults are injected: then a request may fail."""
        self.made = self.refused = self.failed = 0
        """The numbers of good changes that were accepted, of bad ones that were refused, and of failures: changes
        without an answer, good ones that were refused, and bad ones with a status outside REFUSED_FROM to REFUSED_TO.
        """
        self.known: QuotaRows = {}
        """The quotas that result from the accepted changes, without the quota of the subject that all threads change.
        They are no longer certain once a good change has failed.
        """
        self.wrong: list[str] = []

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, worker: int, rng: random.Random) -> None:
        due = time.monotonic()
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            due = max(due + EVERY_S, time.monotonic())
            with self._locks[worker]:
                self.make(draw(self._subject, rng, worker))

    def make(self, change: QuotaChange) -> None:
        """Makes one change, and judges the answer."""
        calm = self.calm
        if change.rows is not None:
            self.asking.set()
        try:
            self._ask(change.body)
        except urllib.error.HTTPError as error:
            self._refused(change, error.code, error.read().decode(errors="replace"), calm=calm and self.calm)
        except OSError as error:
            self.failed += 1
            if calm and self.calm:
                self._note(change, f"was not answered: {error}")
        else:
            self._accepted(change)

    def _accepted(self, change: QuotaChange) -> None:
        if change.rows is None:
            self._note(change, "was accepted")
            return
        self.made += 1
        self.known |= {subject: limits for subject, limits in change.rows.items() if subject != self._subject}

    def _refused(self, change: QuotaChange, code: int, told: str, *, calm: bool) -> None:
        if change.rows is None and REFUSED_FROM <= code < REFUSED_TO:
            self.refused += 1
            return
        self.failed += 1
        if calm:
            self._note(change, f"was answered {code}: {told:.200}")

    def _note(self, change: QuotaChange, what: str) -> None:
        if len(self.wrong) < SHOWN:
            self.wrong.append(f"a change ({change.kind}) {what}; it was {change.body!s:.200}")

    def compare(self, quotas: Callable[[], dict[str, dict[str, int]]]) -> str:
        """Returns a description of the difference between `quotas` and the accepted ones (`known`); "" if there is
        none.
        """
        with contextlib.ExitStack() as held:
            for lock in self._locks:
                held.enter_context(lock)
            there = {subject: limits for subject, limits in quotas().items() if subject != self._subject}
            wanted = {subject: limits for subject, limits in self.known.items() if limits is not None}
        wrong = [each for each in sorted({*there, *wanted}) if there.get(each) != wanted.get(each)]
        told = ", ".join(f"{each}: {there.get(each)} in place of {wanted.get(each)}" for each in wrong[:SHOWN])
        return f"{len(wrong)} quotas are not what was accepted: {told}" if wrong else ""
