"""`.ci/floors.py`: writes the layers (floors) of the tree into docs/architecture.md, from the import contracts.

The table of floors comes from the contracts, the table of packages (rooms) from them and the first sentence of each
room's docstring. tests/architecture/test_architecture_page.py compares the page with both.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"
BEGIN = "<!-- Written by .ci/floors.py from the import contracts. -->\n"
END = "<!-- The end of what .ci/floors.py writes. -->\n"
TOP = "all packages"


def floors(root: Path = ROOT) -> dict[str, list[list[str]]]:
    """Returns container -> its layers from the top to the bottom, each with the packages that stand side by side."""
    project = tomllib.loads((root / "pyproject.toml").read_text())
    found: dict[str, list[list[str]]] = {}
    for contract in project["tool"]["importlinter"]["contracts"]:
        if contract["type"] != "layers":
            continue
        layers = [[part.strip(" ()") for part in layer.split("|")] for layer in contract["layers"]]
        for container in contract.get("containers", [TOP]):
            found[container] = layers
    return found


def summary(folder: Path) -> str:
    """Returns the first sentence of a package's docstring, in one line."""
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    sentence = re.split(r"(?<=[.!?])\s|\n\n", text, maxsplit=1)[0]
    return " ".join(sentence.split()).removesuffix(".").replace("|", "\\|")


def rooms(root: Path = ROOT) -> Iterator[Path]:
    """Yields every package in the order of the floors: those of the tree, and after each one the packages inside it."""
    contracts = floors(root)

    def below(container: str) -> Iterator[Path]:
        prefix = "" if container == TOP else f"{container}."
        ordered = [part for floor in contracts.get(container, []) for part in floor]
        folder = root if container == TOP else root / container.replace(".", "/")
        inner = {path.parent.name for path in folder.glob("*/__init__.py")} if container != TOP else set(ordered)
        for name in [*ordered, *sorted(inner - set(ordered))]:
            if name in inner:
                yield folder / name
                yield from below(f"{prefix}{name}")

    return below(TOP)


def written(root: Path = ROOT) -> str:
    """Returns the generated part of the page: the tables of layers and packages."""
    lines = ["| In | Floors, from the top to the ground |", "|---|---|"]
    for container, layers in floors(root).items():
        folder = "the tree" if container == TOP else f"`{container.replace('.', '/')}/`"
        lines.append(f"| {folder} | {' · '.join(', '.join(floor) for floor in layers)} |")
    lines += ["", "| Room | What it is |", "|---|---|"]
    lines += [f"| `{room.relative_to(root).as_posix()}/` | {summary(room)} |" for room in rooms(root)]
    return BEGIN + "\n" + "\n".join(lines) + "\n\n" + END


def replaced(page: str, root: Path = ROOT) -> str:
    """Returns the page with the generated part replaced by the present one."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + written(root) + after


if __name__ == "__main__":
    PAGE.write_text(replaced(PAGE.read_text()))
