"""The clients' programs: what each offers, how it is started, and what it says.

Every program takes the same arguments, whatever its language::

    run SERVERS PREFIX RATE FEATURE...    senders and readers of these features, RATE messages a second of each
    orphans SERVERS PREFIX COUNT          COUNT half messages that nobody decides; then it waits to be killed

The topic of a feature is PREFIX-FEATURE; its groups are PREFIX-FEATURE-readers and PREFIX-FEATURE-senders. What becomes
of message number n is told by n (tests/support/compat_judges.py). If RAFTMQ_MATRIX_SECRET is set, the senders of a
feature sign as the user PREFIX-FEATURE-sender with that secret, and its readers as PREFIX-FEATURE-reader; the latter
send replies too. A program reads lines: `go` starts sending, `stop`
ends it, the end of the input ends the program. It prints one JSON object per line:

    ready, stopped, done
    send      cell, key, started, ended, and error, or reply if it was a request
    message   cell, reader, key, at, tried, queue, offset
    check     cell, key: a producer was asked about a half message
    unreplied cell, key, error: a reply could not be sent
"""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.compat.conftest import INSTALLED, SCRIPTS, environment
from tests.support.compat_judges import JUDGES, Delivery, Seen, Send
from tests.support.pace import at_most

FEATURES = list(JUDGES)
SECRET = "RAFTMQ_MATRIX_SECRET"
ROUTE_TIMEOUT = {"RAFTMQ_MATRIX_ROUTE_TIMEOUT_MS": str(int(at_most(3) * 1000))}
"""How long the Java program waits for a route; its library's 3 s are too short for its start on a busy machine."""


def _java(classes: str, libraries: str) -> list[str]:
    """Classes for 4.9 are those compiled for a later version."""
    path = f"{INSTALLED}/{classes}/classes:{INSTALLED}/{libraries}/lib/*"
    return ["java", "-Xmx400m", "-cp", path, "MatrixClient"]


COMMANDS: dict[str, list[str]] = {
    "java-4.9.8": _java("java-5.3.3", "tools-4.9.8"),
    "java-5.3.3": _java("java-5.3.3", "java-5.3.3"),
    "java-5.5.0": _java("java-5.5.0", "java-5.5.0"),
    "cpp-0.4.4": [str(INSTALLED / "cpp" / "bin" / "python"), str(SCRIPTS / "cpp_matrix.py")],
    "go-2.1.2": [str(INSTALLED / "go" / "matrix")],
    "ali-ons-3.12.0": ["node", str(SCRIPTS / "js_matrix.js")],
}

ABSENT: dict[str, dict[str, str]] = {
    "java-4.9.8": {"timer": "the library cannot set a time of delivery (since 5.0)"},
    "java-5.3.3": {},
    "java-5.5.0": {},
    "cpp-0.4.4": {
        "retry": "one message at a time works (tests/compat/test_send_back.py). If one message of a pull fails, the"
        " library sends back the rest unseen; one that it cannot send back counts as consumed",
        "transaction": "the package has no transactional producer",
        "sql": "the library knows tags only",
        "request": "the library does not know requests",
    },
    "go-2.1.2": {},
    "ali-ons-3.12.0": {
        "transaction": "the library sends half messages and has no way to decide them",
        "orderly": "the library does not lock queues",
        "request": "the library does not know requests",
    },
}
"""Features that a client's library does not offer, and why."""

ABSENT_UNDER_KILLS: dict[str, dict[str, str]] = {
    "go-2.1.2": {"request": "the process ends: a request whose send fails is a nil pointer in the library"},
}
"""Features that a client offers and that end the client when a leader dies, and why."""


def why_spared(client: str, feature: str) -> str:
    """Returns the reason why no leader may die while the client uses the feature; empty if one may."""
    return ABSENT_UNDER_KILLS.get(client, {}).get(feature, "")


def why_absent(client: str, feature: str, mode: str) -> str:
    """Returns the reason why there is no such cell; empty if there is one."""
    return ABSENT[client].get(feature, "") or (why_spared(client, feature) if mode == "kills" else "")


def parts(client: str, mode: str, features: Iterable[str]) -> list[tuple[str, ...]]:
    """Returns the features of each run that offers all of them: those during which no leader may die are apart."""
    offered = [feature for feature in features if not why_absent(client, feature, mode)]
    spared = tuple(feature for feature in offered if mode != "calm" and why_spared(client, feature))
    rest = tuple(feature for feature in offered if feature not in spared)
    return [part for part in (rest, spared) if part]


def is_installed(client: str) -> bool:
    """Java needs Maven, Go needs go; where they are absent `make test-compat` leaves them out."""
    if client.startswith("java"):
        return any(Path(COMMANDS[client][3].rpartition(":")[2]).parent.glob("rocketmq-client-*.jar"))
    return shutil.which(COMMANDS[client][0]) is not None


class Program:
    """One running program. A thread collects what it says, sorted by cell."""

    def __init__(
        self, client: str, home: Path, what: str, servers: str, prefix: str, *arguments: str, secret: str = ""
    ) -> None:
        self.client = client
        self.cells: dict[str, Seen] = {feature: Seen() for feature in FEATURES}
        self.checks: list[str] = []
        """Keys of the half messages about which a producer was asked, one for each time."""
        self._said: set[str] = set()
        self._changed = threading.Condition()
        self._errors = (home / f"{client}-{what}.stderr").open("wb")
        self._process = subprocess.Popen(
            [*COMMANDS[client], what, servers, prefix, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment(home) | ROUTE_TIMEOUT | ({SECRET: secret} if secret else {}),
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(b"{"):  # the C++ library prints a line of its own at its end
                self._take(json.loads(line))
        with self._changed:
            self._said.add("ended")
            self._changed.notify_all()

    def _take(self, line: dict[str, Any]) -> None:
        event = line.pop("event")
        cell = self.cells.get(line.pop("cell", ""))
        if cell is None:
            with self._changed:
                self._said.add(event)
                self._changed.notify_all()
        elif event == "send":
            cell.sends.append(Send(**line))
        elif event == "message":
            cell.deliveries.append(Delivery(**line))
        elif event == "check":
            self.checks.append(line["key"])

    def tell(self, line: str) -> None:
        """`go` or `stop`."""
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    def wait(self, event: str, timeout_s: float = at_most(120)) -> None:
        """Waits until the program said so. Raises RuntimeError if it ended, or does not say it in time."""
        with self._changed:
            self._changed.wait_for(lambda: {event, "ended"} & self._said, timeout_s)
            if event not in self._said:
                raise RuntimeError(f"{self.client} did not say {event!r} in {timeout_s:.0f} s; see {self._errors.name}")

    def pause(self, seconds: float) -> None:
        """Waits for so long. Raises RuntimeError if the program ended."""
        with self._changed:
            if self._changed.wait_for(lambda: "ended" in self._said, max(0.0, seconds)):
                raise RuntimeError(f"{self.client} ended by itself; see {self._errors.name}")

    def finish(self, timeout_s: float = at_most(60)) -> None:
        """Closes its input and waits for its end; kills it if it does not end."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it ended by itself
            self._process.stdin.close()
        deadline = time.monotonic() + timeout_s
        while self._process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.2)
        self.kill()

    def kill(self) -> None:
        """kill -9, if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            assert pipe is not None
            with suppress(BrokenPipeError):  # what was not flushed
                pipe.close()
