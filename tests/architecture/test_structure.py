"""Faults of structure that grow unseen: circles of imports, rooms that import every other one, imports in strings,
attributes assigned from outside."""

from __future__ import annotations

import ast
import re
import runpy
from fractions import Fraction
from functools import cache
from pathlib import Path

import grimp

from tests.support.assignments import Assignment, assignments
from tests.support.rows import each_row
from tests.support.tree import sources

ROOT = Path(__file__).parents[2]
PRODUCT = ("raftmq_wire", "raftlog", "statemachine", "cluster", "raftmq", "jepsen_like", "pyspark_raftmq")

FLOORS = runpy.run_path(str(ROOT / ".ci" / "floors.py"))
SERVED = tuple(package for package in PRODUCT if package != "jepsen_like")
# Classes whose methods are functions in several modules of their room; those may assign to their attributes.
SPREAD = {
    "Raft": "the state of the core: one file per RPC works on it, and RawNode is its face",
    "Progress": "the same, of one peer",
    "Members": "the same, of all members",
    "ReadQueue": "the same, of reads",
    "LogState": "the state of an open log: one file per task works on it, and SegmentedLog is its face",
    "RecoveryRun": "what a recovery has found so far: one file per stage",
    "Segment": "a file of the log, which the modules that open, roll and cut the log hand over",
    "SegmentIndex": "the same, of its index",
}
# Attributes on the path of every message, changed in place: a call costs more than the addition.
COUNTED = {"bytes", "next_queue", "session"}
# Other assignments from outside, and why they are right.
ASSIGNED = {
    "cluster/admin/server.py record": "a logging.LogRecord: filters of the library change it",
    "cluster/peer/links.py raw.catch_up_budget": "a property of RawNode with a setter",
    "cluster/remoting/connection/stuck_clients.py connection.finished": "a mark that the watcher takes off",
    "pyspark_raftmq/early_stop.py traceback.print_exc": "Spark's daemon has no other place to be told",
}


@cache
def imports() -> dict[str, set[str]]:
    """Module -> modules of the product that it imports, for annotations too. The graph does not see what is compiled: a
    package that imports its own compiled module seems to import itself."""
    graph = grimp.build_graph(*PRODUCT, cache_dir=None)
    return {module: graph.find_modules_directly_imported_by(module) - {module} for module in graph.modules}


def circles(edges: dict[str, set[str]]) -> list[frozenset[str]]:
    """The largest sets of modules that all import one another, directly or not."""
    reach = {module: reachable(module, edges) for module in edges}
    together = {
        frozenset({module, *(other for other in reach[module] if module in reach[other])})
        for module in edges
        if module in reach[module]
    }
    return sorted(together, key=lambda circle: (-len(circle), min(circle)))


def reachable(start: str, edges: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    todo = list(edges[start])
    while todo:
        module = todo.pop()
        if module not in found:
            found.add(module)
            todo += edges[module]
    return found


def test_circles_are_found() -> None:
    edges: dict[str, set[str]] = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": set()}
    assert circles(edges) == [frozenset("abc")]


def test_no_imports_in_a_circle() -> None:
    found = circles(imports())
    for circle in found:
        print(len(circle), *sorted(circle))  # noqa: T201 - on record with -s
    assert found == [], "cut these: move what both need below both"


def test_no_import_hides_in_a_string() -> None:
    """A module of the server that is named in a string would be an arrow that no contract sees."""
    hidden = [
        f"{name}: {match[0]}" for name, text in sources("cluster") for match in re.finditer(r"import_module\W+.*", text)
    ]
    assert hidden == []


def assigned_from_outside(files: dict[str, str]) -> list[Assignment]:
    return [each for each in assignments(files) if not each.is_at_home and each.attribute not in COUNTED]


def test_no_attribute_of_a_finished_object_is_assigned_from_outside() -> None:
    """An assignment from outside makes an object in two steps, and every reader has to find the second one. An object
    gets all that it needs as arguments of its constructor; where two need each other, a Signal is made before both."""
    outside = assigned_from_outside(dict(sources(*SERVED)))
    found = [each for each in outside if not each.is_beside(SPREAD)]
    for each in found:
        print(f"{each.file}:{each.line} {each.receiver}.{each.attribute}")  # noqa: T201
    allowed = {key for key in ASSIGNED for each in found if key in (each.target, f"{each.file} {each.receiver}")}
    left = [each.target for each in found if not allowed & {each.target, f"{each.file} {each.receiver}"}]
    assert left == [], "make it an argument, or a method of the object"
    spread = {name for name in SPREAD if any(each.is_beside([name]) for each in outside)}
    assert (allowed, spread) == (set(ASSIGNED), set(SPREAD)), "this is gone: take it off the list"


@each_row(
    ("text", "found"),
    [
        ("def f(lane: Lane): lane.rules = 1", ["other.py lane.rules"]),
        ("class A:\n    def f(self): self._lane.rules = 1", ["other.py self._lane.rules"]),
        ("def f(lane): lane.size, lane.rules = 1, 2", ["other.py lane.rules"]),
        ("def f(lane: Lane): lane.size = 1", ["other.py lane.size"]),
        ("def f(record): record.size += 1", []),
        ("def f():\n    made = Lane()\n    made.rules = 1", []),
        ("class A:\n    def f(self): self.rules = 1", []),
        ("class A:\n    def f(self):\n        self.it = it = Lane()\n        it.rules = 1", ["other.py it.rules"]),
    ],
)
def test_assignments_from_outside_are_found(text: str, found: list[str]) -> None:
    lane = "class Lane:\n    def __init__(self): self.rules = self.size = 0\n    def run(self): ...\n"
    record = "class Record:\n    def __init__(self): self.size = 0\n"
    inside = "def g(lane: Lane): lane.rules = 1\n"
    files = {"lane.py": lane + inside + record, "other.py": text}
    assert [each.target for each in assigned_from_outside(files)] == found


# --- arrows between the rooms of the server ------------------------------------------------------------------------


def arrows(edges: dict[str, set[str]], container: str) -> dict[str, set[str]]:
    """Room of the container -> other rooms of it that its modules import."""
    depth = container.count(".") + 1
    found: dict[str, set[str]] = {}
    for module, targets in edges.items():
        if module.startswith(f"{container}."):
            room = module.split(".")[depth]
            others = {each.split(".")[depth] for each in targets if each.startswith(f"{container}.")}
            found[room] = found.get(room, set()) | others - {room}
    return found


def share(rooms: dict[str, set[str]]) -> Fraction:
    """Returns the number of arrows by that of the possible ones: every room imports all those below it."""
    return Fraction(sum(map(len, rooms.values())), max(1, len(rooms) * (len(rooms) - 1) // 2))


def upward(rooms: dict[str, set[str]], floors: list[list[str]]) -> list[str]:
    """The arrows that do not lead to a lower floor. `floors` from the top to the ground."""
    level = {room: number for number, floor in enumerate(floors) for room in floor}
    return sorted(f"{room} -> {each}" for room, below in rooms.items() for each in below if level[room] >= level[each])


FRONTS = ("admin", "remoting", "grpc")
"""Rooms that turn the bytes of a protocol into requests and back; what two of them need stands below them."""


def between_fronts(rooms: dict[str, set[str]]) -> list[str]:
    """The arrows from one front to another."""
    return sorted(f"{front} -> {each}" for front in FRONTS for each in rooms.get(front, set()) & set(FRONTS))


def test_arrows_are_counted() -> None:
    edges = {
        "c.a.x": {"c.b.y", "c.b.z", "c.a.w", "d"},
        "c.b.y": {"c.b.z"},
        "c.b.z": set(),
        "c.e": {"c.a.x"},
        "d": {"c.e"},
    }
    rooms = arrows(edges, "c")
    assert rooms == {"a": {"b"}, "b": set(), "e": {"a"}}
    assert share(rooms) == Fraction(2, 3)
    assert upward(rooms, [["e"], ["a"], ["b"]]) == []
    assert upward(rooms, [["b"], ["a", "e"]]) == ["a -> b", "e -> a"]
    assert between_fronts({"grpc": {"remoting", "broker"}, "admin": {"broker"}}) == ["grpc -> remoting"]


def test_rooms_of_the_server_have_walls() -> None:
    """Where every room imports every room below it, floors say nothing: whoever reads one room has to know all that
    stand lower. Move what two rooms share down to the floor where it belongs, or hand a callable over at assembly."""
    rooms = arrows(imports(), "cluster")
    print(*(f"{room} -> {' '.join(sorted(below))}" for room, below in rooms.items()), sep="\n")  # noqa: T201
    assert circles(rooms) == []
    assert upward(rooms, FLOORS["floors"](ROOT)["cluster"]) == []
    assert between_fronts(rooms) == []
    assert share(rooms) <= Fraction(2, 3)


# --- constructors ---------------------------------------------------------------------------------------------------

PARAMETERS_MAX = 12
"""Give a class one value in place of several that go together, or split it."""


def parameters(source: str) -> dict[str, int]:
    """Class -> the number of parameters of its constructor, without `self`."""
    return {
        made.name: len(method.args.posonlyargs) + len(method.args.args) + len(method.args.kwonlyargs) - 1
        for made in ast.walk(ast.parse(source))
        if isinstance(made, ast.ClassDef)
        for method in made.body
        if isinstance(method, ast.FunctionDef) and method.name == "__init__"
    }


def test_parameters_are_counted() -> None:
    assert parameters("class A:\n    def __init__(self, a, /, b, *, c=1): ...\n    def f(self, a): ...\n") == {"A": 3}


def test_no_constructor_takes_many_parameters() -> None:
    found: dict[str, int] = {}
    for path in (ROOT / "cluster").rglob("*.py"):
        if "def __init__" in (source := path.read_text()):
            found |= {name: count for name, count in parameters(source).items() if count > PARAMETERS_MAX}
    assert not found
