"""`.ci/same_code.py BEFORE [AFTER]`: proves that two commits differ in words alone.

Compares the syntax trees of all Python files without the docstrings of modules, classes, functions and attributes.
Prints the files that differ, and exits with 1 if there are any. Pages (.md) may differ. AFTER is HEAD by default.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Sequence


def git(*words: str) -> bytes:
    return subprocess.run(["git", *words], capture_output=True, check=True).stdout


def is_text(statement: ast.stmt) -> bool:
    """Returns True if the statement is a string alone: a docstring, or the description of the attribute before it."""
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Constant):
        return False
    return isinstance(statement.value.value, str)


class Wordless(ast.NodeTransformer):
    """Removes docstrings from a syntax tree; a body that had nothing else becomes `pass`."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for field, value in ast.iter_fields(node):
            if isinstance(value, list) and value and all(isinstance(item, ast.stmt) for item in value):
                setattr(node, field, [item for item in value if not is_text(item)] or [ast.Pass()])
        return node


def code_of(source: bytes) -> str:
    """Returns the syntax tree of a file as text, without docstrings, comments and line numbers."""
    return ast.dump(Wordless().visit(ast.parse(source)))


def differing(before: str, after: str) -> list[str]:
    """Returns the paths whose code differs, and the changed paths that are neither Python nor pages."""
    changed = git("diff", "--name-only", "--no-renames", "-z", before, after).decode().split("\0")
    found: list[str] = []
    for path in filter(None, changed):
        if path.endswith(".md"):
            continue
        if not path.endswith(".py"):
            found.append(path)
            continue
        try:
            sides = [code_of(git("show", f"{commit}:{path}")) for commit in (before, after)]
        except subprocess.CalledProcessError:  # the file is new, or was removed
            found.append(path)
        else:
            found += [path] if sides[0] != sides[1] else []
    return found


def main(words: Sequence[str]) -> int:
    if not 1 <= len(words) <= 2:
        sys.stderr.write(__doc__ or "")
        return 2
    before, after = words[0], words[1] if len(words) == 2 else "HEAD"
    found = differing(before, after)
    for path in found:
        sys.stdout.write(f"{path}: its code changed\n")
    if not found:
        sys.stdout.write(f"{before} and {after}: equal but for docstrings, comments and pages\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
