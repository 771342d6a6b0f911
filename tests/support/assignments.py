"""Assignments to attributes of other objects, found in source text. Types are not inferred: an attribute belongs to
each class that sets it on itself, and a parameter is of the class it is annotated with."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import PurePath
from typing import Literal, NamedTuple

from tests.support.tree import parsed

Kind = Literal["value", "record", "protocol", "service"]
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Owner(NamedTuple):
    """A class that has an attribute."""

    file: str
    name: str
    kind: Kind


class Assignment(NamedTuple):
    """An assignment to `receiver.attribute`, where the receiver is not `self` and was not made in the same function."""

    file: str
    line: int
    receiver: str
    attribute: str
    owners: tuple[Owner, ...]
    """The classes that the receiver may be of; none if the product has no such attribute."""

    @property
    def target(self) -> str:
        """The assignment's name without the line, which moves."""
        return f"{self.file} {self.receiver}.{self.attribute}"

    @property
    def is_at_home(self) -> bool:
        """True if it is in the module of the class, or to a record that the function was handed."""
        if any(owner.file == self.file and owner.kind != "protocol" for owner in self.owners):
            return True
        return "." not in self.receiver and any(owner.kind == "record" for owner in self.owners)

    def is_beside(self, classes: Iterable[str]) -> bool:
        """Returns True if it is in the room (folder of a package) of one of these classes, which has the attribute."""
        room = PurePath(self.file).parent.parts[:2]
        return any(owner.name in classes and PurePath(owner.file).parent.parts[:2] == room for owner in self.owners)


def assignments(sources: dict[str, str]) -> Iterator[Assignment]:
    """File -> text; in the order of the files."""
    trees = {file: parsed(text) for file, text in sources.items()}
    owners: dict[str, set[Owner]] = defaultdict(set)
    for file, tree in trees.items():
        for made in statements(tree):
            if isinstance(made, ast.ClassDef) and (kind := _kind(made)) != "value":
                owner = Owner(file, made.name, kind)
                for name in _attributes(made):
                    owners[name].add(owner)
    known = {owner.name for each in owners.values() for owner in each}
    for file, tree in trees.items():
        for target, annotated in _targets(tree):
            found = owners[target.attr]
            if annotated in known:
                found = {owner for owner in found if owner.name == annotated}
            yield Assignment(file, target.lineno, ast.unparse(target.value), target.attr, tuple(sorted(found)))


def statements(scope: ast.AST) -> Iterator[ast.AST]:
    """All below `scope`, classes and functions among them. What they say is not looked through: that takes long."""
    for node in ast.iter_child_nodes(scope):
        if not isinstance(node, ast.expr | ast.expr_context):
            yield node
            yield from statements(node)


def _targets(tree: ast.Module) -> Iterator[tuple[ast.Attribute, str]]:
    """Each assigned attribute, with the class that its receiver is annotated with ("" if none)."""
    own: set[ast.Attribute] = set()
    found: dict[ast.Attribute, str] = {}
    for function in statements(tree):
        if not isinstance(function, Function):
            continue
        inside = list(ast.walk(function))
        new, kinds = {"self", "cls", *_made(inside)}, _annotated(function)
        for target in inside:
            if isinstance(target, ast.Attribute) and isinstance(target.ctx, ast.Store):
                name = target.value.id if isinstance(target.value, ast.Name) else ""
                if name in new:
                    own.add(target)
                else:
                    found[target] = kinds.get(name, "") or found.get(target, "")
    for target, kind in found.items():
        if target not in own:  # made in the function around a nested one
            yield target, kind


def _made(inside: Iterable[ast.AST]) -> Iterator[str]:
    """Local names of objects that a function with these nodes makes: `name = Class(...)`, `name = cls(...)`,
    `cls.__new__(...)`. What it hands out in the same statement (`self.name = name = ...`) is finished."""
    for statement in inside:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call):
            called = _last(statement.value.func)
            if called.lstrip("_")[:1].isupper() or called in ("cls", "__new__"):
                names = [each.id for each in statement.targets if isinstance(each, ast.Name)]
                yield from names if names and len(names) == len(statement.targets) else ()


def _annotated(function: Function) -> dict[str, str]:
    arguments = function.args.posonlyargs + function.args.args + function.args.kwonlyargs
    return {each.arg: ast.unparse(each.annotation).partition("[")[0] for each in arguments if each.annotation}


def _attributes(made: ast.ClassDef) -> Iterator[str]:
    for each in made.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            yield each.target.id
    for node in ast.walk(made):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value):
            yield node.attr


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def _kind(made: ast.ClassDef) -> Kind:
    """A value cannot be assigned to. A record is there to be read and written: a dataclass or Struct, or a class whose
    only methods are dunder ones and properties."""
    marks = {_last(each) for each in [*made.bases, *made.decorator_list]}
    if "NamedTuple" in marks or any(_is_frozen(each) for each in [*made.keywords, *made.decorator_list]):
        return "value"
    if any(ast.unparse(each).partition("[")[0] == "Protocol" for each in made.bases):  # not asyncio's
        return "protocol"
    if marks & {"dataclass", "Struct"}:
        return "record"
    methods = [each for each in made.body if isinstance(each, Function)]
    quiet = [each.name.startswith("__") or "property" in map(_last, each.decorator_list) for each in methods]
    return "record" if all(quiet) else "service"


def _is_frozen(node: ast.AST) -> bool:
    return "frozen=True" in ast.unparse(node)


def _last(node: ast.expr) -> str:
    """`dataclass` of `@dataclasses.dataclass(frozen=True)`."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    return ast.unparse(node.func if isinstance(node, ast.Call) else node).rpartition(".")[2]
