"""What the receive stage costs a message, from the bytes of a read to its sends, in several ways (docs/adr/0059).

    python bench/bench_receive.py [--python OTHER] [--json]

Each way in receive/ takes the same read of 64 frames and must return the same sends. Those that are compiled are
compiled in a folder that is deleted. Microseconds are the least of many short runs, the ways in turns; instructions
come from cachegrind (valgrind), as the difference of a long and a short run. --python: another Python of the same
version, with the packages of this one.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
WAYS = {
    "plain": "Python, a frame at a time",
    "plain_mypyc": "the same, compiled by mypyc",
    "plain_cython": "the same, compiled by Cython",
    "columns": "Python, around columns",
    "typed": "typed Cython",
}
"""Module -> what it is."""
FRAMES = 64
SHORT, LONG = 10, 60
"""Rounds under cachegrind."""
TURNS, ROUNDS = 60, 20
SETUP = """
from Cython.Build import cythonize
from setuptools import Extension, setup
names = ["typed.pyx", "plain_cython.py"]
made = [Extension(name.partition(".")[0], [name], extra_compile_args=["-O2", "-g0"]) for name in names]
setup(name="ways", script_args=["-q", "build_ext", "--inplace"], ext_modules=cythonize(made, quiet=True))
"""


def frame(opaque: int) -> bytes:
    """A send as a RocketMQ 5 producer in Java writes it: code 310, 1 KiB."""
    values = {"KEYS": f"order-{opaque:06d}", "TAGS": "bench", "UNIQ_KEY": f"{opaque:032X}", "WAIT": "true"}
    properties = "".join(f"{name}\\u0001{value}\\u0002" for name, value in values.items())
    header = (
        f'{{"code":310,"extFields":{{"a":"bench_producer","b":"bench","c":"TBW102","d":"4","e":"{opaque % 4}","f":"0",'
        f'"g":"1700000000000","h":"0","i":"{properties}","j":"0","k":"false","m":"false","n":"raftmq"}},"flag":0,'
        f'"language":"JAVA","opaque":{opaque},"serializeTypeCurrentRPC":"JSON","version":477}}'
    ).encode()
    return struct.pack(">II", 4 + len(header) + 1024, len(header)) + header + bytes(range(256)) * 4


READ = b"".join(frame(opaque) for opaque in range(1000, 1000 + FRAMES))


def compile_ways(folder: Path) -> None:
    """Copies them to `folder` and compiles those that are to be."""
    for path in (HERE / "receive").iterdir():
        if path.suffix in (".py", ".pyx"):
            shutil.copy(path, folder)
    for copy in ("plain_mypyc.py", "plain_cython.py"):
        shutil.copy(HERE / "receive/plain.py", folder / copy)
    for command in (["-c", SETUP], ["-m", "mypyc", "--strict", "plain_mypyc.py"]):
        done = subprocess.run([sys.executable, *command], cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{command[:2]}: {done.stdout}{done.stderr}")


def taken(way: str) -> list[tuple[Any, ...]]:
    """The sends of READ by that way, in comparable form."""
    from shapes import Context

    context = Context()
    module = importlib.import_module(way)
    out = module.take(context, READ)
    if way == "columns":
        return module.rows(out)
    names = [
        "opaque",
        "queue_id",
        "flag",
        "sys_flag",
        "born_ms",
        "reconsumes",
        "body",
        "properties",
        "tag",
        "key",
        "size",
    ]
    return [(each.slot.name, *(getattr(each, name) for name in names)) for each in out]


def compare() -> None:
    """Ends the process if two ways differ."""
    for way in WAYS:
        if taken(way) != taken("plain"):
            raise SystemExit(f"{way} takes other sends than plain")


def microseconds() -> dict[str, float]:
    """Way -> CPU time per message."""
    from shapes import Context

    calls = {way: (importlib.import_module(way).take, Context()) for way in WAYS}
    least = dict.fromkeys(WAYS, float("inf"))
    for _ in range(TURNS):
        for way, (take, context) in calls.items():
            begun = time.thread_time_ns()
            for _ in range(ROUNDS):
                take(context, READ)
            least[way] = min(least[way], (time.thread_time_ns() - begun) / ROUNDS / FRAMES / 1000)
    return {way: round(each, 2) for way, each in least.items()}


def repeat(way: str, rounds: int) -> None:
    """What cachegrind counts."""
    from shapes import Context

    take, context = importlib.import_module(way).take, Context()
    for _ in range(rounds):
        take(context, READ)


def instructions(python: str, folder: Path, way: str) -> int | None:
    """Per message; None without valgrind."""
    if shutil.which("valgrind") is None:
        return None
    counts = []
    for rounds in (SHORT, LONG):
        valgrind = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
        done = run([*valgrind, python, __file__, "--repeat", way, str(rounds)], folder)
        line = next(line for line in done.stderr.splitlines() if "refs:" in line)
        counts.append(int(line.rpartition(":")[2].replace(",", "")))
    return round((counts[1] - counts[0]) / (LONG - SHORT) / FRAMES)


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """With the ways in `folder`, and with this Python's packages."""
    path = os.pathsep.join([str(folder), *(each for each in sys.path if each.endswith("site-packages"))])
    env = os.environ | {"PYTHONPATH": path, "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{command}: {done.stderr}")
    return done


def main() -> None:
    """Compiles, compares, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--repeat", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--in", dest="inside", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.repeat:
        repeat(asked.repeat[0], int(asked.repeat[1]))
        return
    if asked.inside:
        compare()
        print(json.dumps(microseconds()))
        return
    with tempfile.TemporaryDirectory(prefix="raftmq-receive-") as name:
        folder = Path(name)
        compile_ways(folder)
        times = json.loads(run([asked.python, __file__, "--in"], folder).stdout)
        found = {way: {"us": times[way], "instructions": instructions(asked.python, folder, way)} for way in WAYS}
    if asked.json:
        print(json.dumps(found))
        return
    for way, row in found.items():
        counted = "valgrind is missing" if row["instructions"] is None else f"{row['instructions']:8,} instructions"
        print(f"{WAYS[way]:30} {row['us']:6.2f} us {counted}")


if __name__ == "__main__":
    main()
