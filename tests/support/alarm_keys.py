"""The keys of all alarms that the server can raise, read from its source."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
RAISES = re.compile(r"\.(raise_alarm|_alarm)\(")


def alarm_keys() -> set[str]:
    """Returns the keys that are handed to `raise_alarm`, or to a method that hands them on, as constants of their
    module."""
    keys: set[str] = set()
    for path in (ROOT / "cluster").rglob("*.py"):
        source = path.read_text()
        if not RAISES.search(source):
            continue
        tree = ast.parse(source)
        used = {
            call.args[0].id
            for call in ast.walk(tree)
            if isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and call.func.attr in ("raise_alarm", "_alarm")
            and isinstance(call.args[0], ast.Name)
        }
        for constant in (node for node in tree.body if isinstance(node, ast.Assign)):
            target, value = constant.targets[0], constant.value
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            for name in names:
                if isinstance(name, ast.Name) and name.id in used and isinstance(value, ast.Call):
                    keys.add(ast.literal_eval(value.args[0]))
    return keys
