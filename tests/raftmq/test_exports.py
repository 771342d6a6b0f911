"""`raftmq` is the client under the name that users import, and nothing more."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import raftmq
import raftmq.arrow.tables
import raftmq.client
from tests.support.pace import at_most

if TYPE_CHECKING:
    from raftmq.client.consuming.message_buffer import Inbox

ROOT = Path(__file__).parents[2]


def test_it_exports_what_the_client_exports_and_the_tables() -> None:
    tables = {"read_arrow", "read_pandas"}
    assert sorted(raftmq.__all__) == sorted({*raftmq.client.__all__, *tables})
    assert all(getattr(raftmq, name) is getattr(raftmq.client, name) for name in raftmq.client.__all__)
    assert all(getattr(raftmq, name) is getattr(raftmq.arrow.tables, name) for name in tables)


def test_every_error_is_a_raftmq_error() -> None:
    for error in (raftmq.Failed, raftmq.Unknown, raftmq.Refused, raftmq.NotFound):
        assert issubclass(error, raftmq.RaftMQError)


def test_a_name_that_it_does_not_export_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'raftmq' has no attribute 'conect'"):
        _ = raftmq.conect  # type: ignore[attr-defined]
    assert dir(raftmq) == sorted(raftmq.__all__)


def test_it_holds_no_logic() -> None:
    """The only statements that act add the server's rooms to the path, and find a name in the client when asked."""
    body = ast.parse((ROOT / "raftmq" / "__init__.py").read_text()).body
    doing = [node for node in body[1:] if not isinstance(node, ast.Import | ast.ImportFrom)]
    assert [ast.unparse(node).partition("(")[0].partition(" =")[0].partition(":")[0] for node in doing] == [
        "__path__ += rooms",
        "if TYPE_CHECKING",
        "__all__",
        "if not TYPE_CHECKING",
    ]


INTERNAL = {
    "ClusterView": "made by the client itself",
    "Contact": "for the commands, which say where they look",
    "Environment": "the seam of the simulator",
    "Half": "what a transaction holds",
    "LoopThread": "made by the client itself",
    "PulledFrames": "for readers of whole frames, such as Spark's",
    "StagedWrites": "for Spark's writer",
}
"""Types of signatures that a program has no reason to name."""


def types_in_signatures(*objects: object) -> set[str]:
    """The names of the client's own types, outside of `raftmq`, in the signatures of these and of their methods."""
    functions = [each for each in objects if inspect.isroutine(each)]
    for kind in filter(inspect.isclass, objects):
        for name, member in inspect.getmembers(kind):
            member = member.fget if isinstance(member, property) else member
            if inspect.isfunction(member) and (name == "__init__" or not name.startswith("_")):
                functions.append(member)
    found = set()
    for function in functions:
        module = sys.modules[function.__module__]
        words = set(re.findall(r"[A-Za-z_]\w*", " ".join(map(str, inspect.get_annotations(function).values()))))
        tree = ast.parse(inspect.getsource(module))
        own = {each.name for each in tree.body if isinstance(each, ast.ClassDef)}
        own |= {target.id for each in tree.body if isinstance(each, ast.Assign) for target in each.targets
                if isinstance(target, ast.Name)}  # fmt: skip
        own |= {
            alias.name
            for each in ast.walk(tree)
            if isinstance(each, ast.ImportFrom) and (each.module or "").startswith("raftmq")
            for alias in each.names
        }
        found |= words & own
    return found - set(raftmq.__all__)


class Planted:
    """Takes what nobody can import from `raftmq`."""

    def send(self, inbox: Inbox) -> None:
        """Planted."""


@pytest.mark.parametrize("planted", [False, True])
def test_whatever_a_signature_names_can_be_imported(planted: bool) -> None:
    objects = [getattr(raftmq, name) for name in raftmq.client.__all__]
    found = types_in_signatures(*objects, *([Planted] if planted else []))
    assert found == INTERNAL.keys() | ({"Inbox"} if planted else set())


def test_importing_it_loads_no_server() -> None:
    """A program that only sends messages does not pay for RocksDB or the HTTP API."""
    code = "import sys, raftmq; raftmq.connect; print(*sorted(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True, timeout=at_most(60)
    )
    assert {"rocksdict", "aiohttp", "raftlog.core.raft", "click"} & set(loaded.stdout.split()) == set()


def test_it_says_its_version() -> None:
    assert raftmq.__version__ == version("raftmq")
