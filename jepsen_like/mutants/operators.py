"""The mutation operators: Cosmic Ray's, and one that leaves a statement out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import parso.python.tree
from cosmic_ray.operators.operator import Argument, Example, Operator
from cosmic_ray.operators.provider import OperatorProvider

_NEED_ARGUMENTS = ("VariableReplacer", "VariableInserter")
"""They change the variables that they are given by name: nothing to draw from."""
Position = tuple[int, int]


class LeaveOut(Operator):  # type: ignore[misc]  # the library has no types
    """Puts `pass` where a call, an assignment to an attribute or an item, or a raise stands alone."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Position, Position]]:
        """The statement, if leaving it out leaves names defined: a plain name that is assigned is not left out."""
        if _may_be_left_out(node):
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """`pass` in its place, so that the block is never empty."""
        return parso.python.tree.Keyword("pass", node.start_pos, prefix=node.get_first_leaf().prefix)

    @classmethod
    def arguments(cls) -> Sequence[Argument]:
        """None."""
        return ()

    @classmethod
    def examples(cls) -> Sequence[Example]:
        """See Operator."""
        return (Example("self.x = 1\n", "pass\n"), Example("f(x)\n", "pass\n"))


def _may_be_left_out(node: Any) -> bool:
    if getattr(node.parent, "type", "") != "simple_stmt" or node.type == "string":
        return False  # not a statement, or a docstring
    if node.type in ("raise_stmt", "del_stmt"):
        return True
    if node.type == "atom_expr":
        return True
    return node.type == "expr_stmt" and node.children[0].type in ("atom_expr", "power")


def operators() -> dict[str, Any]:
    """Name -> operator, in a fixed order."""
    provider = OperatorProvider()
    found: dict[str, Any] = {name: provider[name]() for name in provider if name not in _NEED_ARGUMENTS}
    found["LeaveOut"] = LeaveOut()
    return dict(sorted(found.items()))
