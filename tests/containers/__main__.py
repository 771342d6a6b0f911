"""`python -m tests.containers podman|docker`: docker-compose.yml on a real engine, from images to the emptied volume.

It makes what it needs in a folder (`ground`), starts the engine in namespaces of its own, so that no port, mount or
process of it is seen outside, and tells the story (`story`) there. Exit codes: 0, 1 if a check failed, 2 if something
is missing.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from tests.containers.ground import Ground, missing
from tests.support.tools import ROOT

ALONE = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc")
"""The prefix that gives a command namespaces of its own; with it, everything that it started ends."""
_REAPING = 'mount -t tmpfs none /run && ip link set lo up && "$@"; exit $?'
"""An empty /run, so that engines find nothing of others there; the shell reaps what ends."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.containers", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("engine", choices=("podman", "docker"))
    parser.add_argument("--messages", type=int, default=100_000, help="20000 or more: fewer fill no old segments")
    parser.add_argument("--folder", type=Path, default=_default_folder(), help="default: %(default)s")
    asked = parser.parse_args()
    if lacking := missing(asked.engine):
        sys.stderr.write(f"{lacking}\n")
        return 2
    ground = Ground(asked.folder)
    with ground.alone():
        ground.make(asked.engine)
        story = (sys.executable, "-m", "tests.containers.story", asked.engine, str(ground.folder), str(asked.messages))
        return subprocess.run([*ALONE, "sh", "-c", _REAPING, "sh", *story], cwd=ROOT, check=False).returncode


def _default_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "raftmq" / "containers"


if __name__ == "__main__":
    sys.exit(main())
