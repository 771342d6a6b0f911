"""Records what nodes answer to every fuzzer's request, and compares two recordings: a change that is to change no
answer is checked so.

    python -m tests.support.recorded_answers record OUT [--requests FILE] [--only TEXT]
    python -m tests.support.recorded_answers compare A B

A recording has one line of JSON per request: where it was sent, its bytes, and the answer in readable form. Two
recordings of one tree are equal. `--requests` asks the questions of an earlier recording instead of drawing new ones:
generators may have changed since. `compare` prints each difference and ends with 1 if there is one.

The nodes are simulated (`tests.support.answering_cluster`), and asked by bytes at their ports.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import sys
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, TextIO

from tests.support.answering_cluster import (
    AnsweringCluster,
    Heard,
    answering_cluster,
    as_text,
    frames_in,
    is_frame_whole,
    is_http_whole,
)
from tests.support.recorded_questions import Question, drawn, is_enforced, node_of

SHOWN_CHARS = 300
"""Characters of a value that `compare` shows."""
_MISSING = object()
_VALUE = re.compile(r"^([a-zA-Z_:][^ ]*) .*$", re.MULTILINE)
"""A line of GET /metrics; its values are of this process, and of its time."""
_FREE_BYTES = re.compile(r'"free_bytes":\d+')
"""The free space of a simulated disk, on which files name the folder of this tree."""
_HEADERS_LEFT_OUT = frozenset({"date", "server"})
"""Headers of the real time and of the installed aiohttp."""


def record(scenes: Iterable[list[Question]], out: TextIO) -> int:
    """Asks the questions, each scene at a new cluster, and writes them with their answers. Returns their number."""
    count = 0
    for questions in scenes:
        scene = questions[0].scene
        with answering_cluster(is_enforced=is_enforced(scene)) as cluster:
            for question in questions:
                row = question.to_json() | {"answer": _answer(cluster, question)}
                out.write(json.dumps(row, sort_keys=True) + "\n")
            errors = [f"{what}: {error!r}" for what, error in cluster.loop.errors]
        if errors:
            out.write(json.dumps({"scene": scene, "number": len(questions), "errors": errors}) + "\n")
        count += len(questions)
    return count


def _answer(cluster: AnsweringCluster, question: Question) -> Any:
    is_http = question.port == "http"
    whole = is_http_whole if is_http else is_frame_whole(question.opaque)
    heard = cluster.ask(node_of(question.scene), question.port, question.data, whole)
    said = _http_said(question, heard) if is_http else frames_in(heard.data)
    return json.loads(cluster.masked(json.dumps({"said": said, "closed": heard.is_closed})))


def _http_said(question: Question, heard: Heard) -> Any:
    head, found, body = heard.data.partition(b"\r\n\r\n")
    if not found:
        return as_text(heard.data)
    lines = head.decode("latin-1").split("\r\n")
    headers = [line for line in lines[1:] if line.split(":")[0].lower() not in _HEADERS_LEFT_OUT]
    text = _FREE_BYTES.sub('"free_bytes":0', as_text(body))
    if question.data.startswith(b"GET /metrics"):
        headers = [line for line in headers if not line.lower().startswith("content-length")]
        text = "\n".join(sorted(set(_VALUE.sub(r"\1", text).split("\n"))))
    return {"status": lines[0], "headers": headers, "body": text}


def questions_of(path: Path, only: str = "") -> Iterator[list[Question]]:
    """Yields the questions of each scene of a recording."""
    with path.open(encoding="utf-8") as lines:
        rows = (json.loads(line) for line in lines)
        asked = (Question.of_json(row) for row in rows if "asked" in row and only in row["scene"])
        for _, questions in groupby(asked, lambda question: question.scene):
            yield list(questions)


def differences(one: Path, other: Path) -> Iterator[str]:
    """Yields a text for each request whose question or answer differs, and for each that only one recording has."""
    rows = [_rows(path) for path in (one, other)]
    for key in {**rows[0], **rows[1]}:
        a, b = (each.get(key) for each in rows)
        if a == b:
            continue
        scene, number = key
        if a is None or b is None:
            yield f"{scene} #{number}: only in {other if a is None else one}"
            continue
        asked = Question.of_json(a) if "asked" in a else f"{scene} #{number}"
        yield "\n".join([str(asked), *(f"    {line}" for line in _unlike("", a, b))])


def _rows(path: Path) -> dict[tuple[str, int], dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return {(row["scene"], row["number"]): row for row in rows}


def _unlike(place: str, a: Any, b: Any) -> Iterator[str]:
    if isinstance(a, dict) and isinstance(b, dict):
        for key in {**a, **b}:
            yield from _unlike(f"{place}.{key}", a.get(key, _MISSING), b.get(key, _MISSING))
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for number, (each, other) in enumerate(zip(a, b, strict=True)):
            yield from _unlike(f"{place}[{number}]", each, other)
    elif a != b:
        yield f"{place.removeprefix('.')}: {_shown(a)} -> {_shown(b)}"


def _shown(value: Any) -> str:
    text = "nothing" if value is _MISSING else json.dumps(value)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}... ({len(text)} characters)"


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="recorded_answers", description=__doc__.split("\n\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("out", type=Path)
    recording.add_argument("--requests", type=Path)
    recording.add_argument("--only", default="", help="only scenes whose name has this text")
    comparing = commands.add_parser("compare")
    comparing.add_argument("a", type=Path)
    comparing.add_argument("b", type=Path)
    chosen = parser.parse_args(arguments)
    if chosen.command == "compare":
        found = 0
        for text in differences(chosen.a, chosen.b):
            found += 1
            sys.stdout.write(f"{text}\n")
        sys.stdout.write(f"{found} differences\n")
        return int(found > 0)
    scenes = questions_of(chosen.requests, chosen.only) if chosen.requests else drawn(chosen.only)
    with chosen.out.open("w", encoding="utf-8") as out:
        sys.stdout.write(f"{record(scenes, out)} requests\n")
    return 0


if __name__ == "__main__":
    logging.disable()  # what nodes say of bad requests
    sys.exit(main())
