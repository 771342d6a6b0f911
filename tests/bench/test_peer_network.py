"""A node whose network is cut is reached by nobody and reaches nobody, and both again afterwards."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bench.peers.network import ENTER
from tests.support.tools import needs

ROOT = Path(__file__).parents[2]
STORY = """
import subprocess, sys, time
from pathlib import Path
from bench.peers.network import Network
from bench.peers.processes import Processes, ended_at_exit

SERVE = "import socket\\nserver = socket.create_server(('0.0.0.0', 7000))\\nwhile True: server.accept()[0].close()"
ASK = "import socket, sys\\nsocket.create_connection((sys.argv[1], 7000), 0.3)"


def reaches(host, enter=()):
    return subprocess.run([*enter, sys.executable, "-c", ASK, host], capture_output=True).returncode == 0


with ended_at_exit():
    network = Network(Path(sys.argv[1]))
    processes, nodes = Processes(), network.places.nodes
    for node in nodes:
        processes.start([*node.enter, sys.executable, "-c", SERVE], Path(sys.argv[1]) / "log")
    for node in nodes:
        while not reaches(node.host):
            time.sleep(0.01)

    def all_ways():
        return "".join("-+"[reaches(to.host, at)] for at in [(), *(n.enter for n in nodes)] for to in nodes)

    print("whole ", all_ways())
    network.cut(1)
    print("cut   ", all_ways())
    network.mend(1)
    while not reaches(nodes[1].host):
        time.sleep(0.01)
    print("mended", all_ways())
"""


@needs("ip")
def test_a_cable_is_pulled_and_plugged_in(tmp_path: Path) -> None:
    """A row has groups of three, the ways to nodes 0, 1 and 2: first from this process, then from each node. A node
    always reaches itself."""
    done = subprocess.run(
        [*ENTER, sys.executable, "-c", STORY, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines() == [
        "whole  ++++++++++++",
        "cut    +-++-+-+-+-+",
        "mended ++++++++++++",
    ], done.stderr
