"""The means by which the fuzzer gets past authentication: a Super's keys and token, and TLS for every other connection.

Most requests are signed rightly, so that handlers are reached; some are signed wrongly or not at all.
"""

from __future__ import annotations

import itertools
import json
import random
import ssl
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from cluster.config.local_layout import NodeRecord
from jepsen_like.client_kit.node_http import ask_node
from jepsen_like.live.subjects.raftmq_subject import RaftMQSubject
from raftmq_wire.signature import SIGNATURE, Credentials

UNSIGNED, SPOILED = 0.2, 0.22
"""Bounds for a random number from 0 to 1. Below UNSIGNED a request is not signed; from there to SPOILED it is signed
wrongly. Few are signed wrongly, because a node delays its answers to wrong tokens.
"""


class Guard(NamedTuple):
    """The credentials of a fuzzer whose nodes enforce rules."""

    credentials: Credentials
    token: str
    """A token of the user whose keys sign the requests, for the HTTP API."""

    def signed(
        self, rng: random.Random, fields: Mapping[str, Any], body: bytes, *, is_good: bool = False
    ) -> tuple[dict[str, Any], bool]:
        """Returns (ext fields, True if they are signed rightly). The fields are signed rightly, wrongly or not at all;
        with `is_good` always rightly. Fields that no client could sign are returned unchanged.
        """
        fate = 1.0 if is_good else rng.random()
        if fate < UNSIGNED or not all(type(each) is str for each in fields.values()):
            return dict(fields), False
        try:
            signed = self.credentials.signed(fields, body)
        except UnicodeEncodeError:
            return dict(fields), False
        if fate < SPOILED:
            signed[SIGNATURE] = rng.choice(("", "=", signed[SIGNATURE][:-4], signed[SIGNATURE].swapcase(), "\0"))
        return signed, fate >= SPOILED

    def header(self, rng: random.Random, *, is_good: bool = False) -> tuple[str, bool]:
        """Returns (line of an HTTP header, True if it names the user rightly). The line has the right token, a wrong
        one, or is empty; with `is_good` it always has the right one.
        """
        fate = 1.0 if is_good else rng.random()
        if fate < UNSIGNED:
            return "", False
        token = rng.choice(("", "x", self.token[:-1], f"{self.token} {self.token}")) if fate < SPOILED else self.token
        return f"Authorization: Bearer {token}\r\n", fate >= SPOILED


async def guard_of(subject: RaftMQSubject, leader: NodeRecord) -> Guard:
    """Returns the guard of a cluster with users. Raises OSError if its Super cannot log in."""
    options = subject.client_options
    name, secret = options["access_key"], options["secret_key"]
    asked = {"user": name, "secret": secret, "answer": "token"}
    answer = await ask_node(leader, "POST", "/v1/session", json.dumps(asked).encode())
    if answer.code >= 300 or not answer.is_answer:
        raise OSError(f"the Super cannot log in: {answer.code} {answer.body[:200]!r}")
    return Guard(Credentials(name, secret), str(json.loads(answer.body)["token"]))


class Ways:
    """Decides for each connection whether it uses TLS: if there is a context, every second one does."""

    def __init__(self, context: ssl.SSLContext | None) -> None:
        self._contexts: Iterator[ssl.SSLContext | None] = (
            itertools.repeat(None) if context is None else itertools.cycle((context, None))
        )
        self.is_tls = False
        """True if the newest connection is one of TLS."""

    def next(self) -> ssl.SSLContext | None:
        """Returns the context of the next connection; None for plain text."""
        context = next(self._contexts)
        self.is_tls = context is not None
        return context
