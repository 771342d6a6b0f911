"""Objects are complete when their constructor returns: no class makes an attribute later, and none is finished by a
method that names a collaborator. What two services need of each other is a `cluster.runtime.listeners.Signal`."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from logging import makeLogRecord

from tests.support.rows import each_row
from tests.support.tree import nodes, sources

Function = ast.FunctionDef | ast.AsyncFunctionDef
CONSTRUCTORS = ("__init__", "__post_init__", "__new__")
FINISHING = ("attach", "watch", "connect", "bind")
"""Methods of these names, and of names that begin with one of them and "_", would finish an object that is made."""


class Shape:
    """A class as its text shows it."""

    def __init__(self, made: ast.ClassDef, file: str) -> None:
        self.name, self.file = made.name, file
        self.bases = [base.id if isinstance(base, ast.Name) else getattr(base, "attr", "") for base in made.bases]
        self.methods = {each.name: each for each in made.body if isinstance(each, Function)}
        self.declared = {name for each in made.body for name in _names(each)}

    def built(self) -> set[str]:
        """Methods that run before the constructor returns: it, and those that it calls on itself."""
        found: set[str] = set()
        todo = [name for name in CONSTRUCTORS if name in self.methods]
        while todo:
            name = todo.pop()
            if name not in found and name in self.methods:
                found.add(name)
                todo += _own_calls(self.methods[name])
        return found


def _names(statement: ast.stmt) -> Iterator[str]:
    """Attributes that the body of a class declares: `name: type`, `name = value`, properties with a setter, slots."""
    targets = [statement.target] if isinstance(statement, ast.AnnAssign) else getattr(statement, "targets", [])
    for target in targets:
        if isinstance(target, ast.Name):
            yield target.id
    if isinstance(statement, Function):
        yield from (statement.name for each in statement.decorator_list if getattr(each, "attr", "") == "setter")


def _is_own(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"


def _own_calls(function: Function) -> Iterator[str]:
    for each in ast.walk(function):
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and _is_own(each.func):
            yield each.func.attr


def _stored(function: Function) -> Iterator[str]:
    for each in ast.walk(function):
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store) and _is_own(each):
            yield each.attr


def late(files: dict[str, str], below: Iterable[str] = ()) -> list[str]:
    """Returns the breaches of the rule, as "file: what". `files`: file -> text; `below`: texts of classes that these
    files use."""
    shapes = [
        Shape(each, file) for file, text in files.items() for each in nodes(text) if isinstance(each, ast.ClassDef)
    ]
    by_name: dict[str, list[Shape]] = {}
    for shape in shapes:
        by_name.setdefault(shape.name, []).append(shape)

    def known(shape: Shape, seen: frozenset[str] = frozenset()) -> set[str]:
        own = shape.declared | {name for method in shape.built() for name in _stored(shape.methods[method])}
        for base in shape.bases:
            if base not in seen:
                own = own.union(*(known(each, seen | {base}) for each in by_name.get(base, ())))
        return own

    used = [Shape(each, "") for text in below for each in nodes(text) if isinstance(each, ast.ClassDef)]
    attributes = {name for shape in [*shapes, *used] for name in known(shape)} | set(vars(makeLogRecord({})))
    found = []
    for shape in shapes:
        has = known(shape)
        found += [
            f"{shape.file}: {shape.name}.{method} makes {name}"
            for method, function in shape.methods.items()
            if method not in shape.built()
            for name in dict.fromkeys(_stored(function))
            if name not in has
        ]
        found += [f"{shape.file}: {shape.name}.{method} finishes it" for method in shape.methods if _finishes(method)]
    for file, text in files.items():
        found += [f"{file}: {what}" for what in _from_outside(text, attributes)]
    return found


def _finishes(method: str) -> bool:
    return method in FINISHING or method.startswith(tuple(f"{name}_" for name in FINISHING))


def _from_outside(source: str, attributes: set[str]) -> Iterator[str]:
    """Attributes that no class has and somebody sets on another object, and calls of setattr."""
    for each in nodes(source):
        if isinstance(each, ast.Call):
            name = each.func.id if isinstance(each.func, ast.Name) else getattr(each.func, "attr", "")
            if name in ("setattr", "__setattr__"):
                yield f"line {each.lineno} calls {name}"
        elif isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store) and each.attr not in attributes:
            yield from [] if _is_own(each) else [f"line {each.lineno} makes {ast.unparse(each)}"]


def test_every_object_is_complete_when_its_constructor_returns() -> None:
    below = [text for _, text in sources("raftlog", "statemachine")]
    assert late(dict(sources("cluster")), below) == [], (
        "make it an argument of the constructor, or a Signal that is made before both"
    )


@each_row(
    ("text", "found"),
    [
        ("class A:\n    def __init__(self): self.a = 1\n    def f(self): self.b = 1", "A.f makes b"),
        ("class A:\n    async def f(self): self.b: int = 1", "A.f makes b"),
        ("class A:\n    def f(self): self.a, self.b = 1, 2", "A.f makes a"),
        ("class A:\n    def attach(self, other): self._told(other)", "A.attach finishes it"),
        ("class A:\n    def watch(self, other): pass", "A.watch finishes it"),
        ("class A:\n    def watch_rows(self, told): pass", "A.watch_rows finishes it"),
        ("class A:\n    def connect(self, other): pass", "A.connect finishes it"),
        ("class A:\n    def bind(self, other): pass", "A.bind finishes it"),
        ("def f(lane): lane.rules = 1", "line 1 makes lane.rules"),
        ("def f(lane): setattr(lane, 'rules', 1)", "line 1 calls setattr"),
        ("def f(lane): object.__setattr__(lane, 'rules', 1)", "line 1 calls __setattr__"),
    ],
)
def test_what_is_made_later_is_found(text: str, found: str) -> None:
    assert found in [each.removeprefix("a.py: ") for each in late({"a.py": text})]


@each_row(
    "text",
    [
        "class A:\n    def __init__(self): self._make()\n    def _make(self): self.a = 1\n    def f(self): self.a = 2",
        "class A:\n    a: int\n    def f(self): self.a = 1",
        "class A:\n    def __init__(self): self.a = 1\nclass B(A):\n    def f(self): self.a = 2",
        "class A:\n    def __init__(self): self.a = 1\ndef f(x): x.a = 2",
    ],
    ids=["helper", "declared", "inherited", "outside"],
)
def test_what_the_constructor_makes_may_change(text: str) -> None:
    assert late({"a.py": text}) == []
