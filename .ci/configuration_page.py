"""`.ci/configuration_page.py`: writes what docs/configuration.md takes from the fields of the configuration.

These are the names and defaults in the tables of the sections, the lists of the cluster's keys and of those that a
reload changes, and the table of ranges. The meanings are written by hand; a new key gets the docstring of its field, a
new section the first sentence of its own for a heading.
tests/architecture/test_configuration_page.py compares the page with the fields.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from cluster.config import config, node_sections, service_sections, storage_sections
from cluster.config.config import Config
from cluster.config.explain import default_of
from cluster.config.key_facts import KeyFacts, facts, fields_of
from cluster.config.ranges import ranges_of

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "configuration.md"
BEGIN = "<!-- {}: written by .ci/configuration_page.py from the fields. -->\n"
END = "<!-- The end of what is written. -->\n"
SECTION = re.compile(r"^## .*`\[+(\w+)\]+`$")
ROW = re.compile(r"^\| `(\w+)` \| (.+?) \|(.*)\|$")
RANGES = "## Ranges\n"
"""The heading that follows the sections."""
FEW = 4
"""A list says "every key but ..." for a section if fewer than one in FEW of its keys are left out."""


def shown(field: Any) -> str:
    """Returns the default as the page has it: a value as code."""
    default = default_of(field)
    return default if field.required else f"`{default}`"


def docstrings() -> dict[tuple[str, str], str]:
    """Returns (class, field) -> the docstring of the field, in one line."""
    found = {}
    sections = (config, node_sections, service_sections, storage_sections)
    for made in [made for module in sections for made in ast.parse(Path(module.__file__).read_text()).body]:
        if isinstance(made, ast.ClassDef):
            for one, after in zip(made.body, made.body[1:], strict=False):
                if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and isinstance(after, ast.Expr):
                    text = ast.literal_eval(after.value)
                    found[made.name, one.target.id] = " ".join(text.split()).rstrip(".").replace("|", "\\|")
    return found


def rows_of(section: str, rows: Iterable[str]) -> list[str]:
    """Returns the rows of a section's table: those of the page, in their order, with the fields' present defaults. A
    new key comes after the key that precedes it in the section."""
    own = {key.partition(".")[2]: field for key, field in fields_of(Config).items() if key.startswith(f"{section}.")}
    owner = next(each.type for each in msgspec.structs.fields(Config) if each.name == section)
    meanings = {found[1]: found[3] for row in rows if (found := ROW.match(row))}
    names = [name for name in meanings if name in own]
    before = ""
    for name in own:
        if name not in names:
            names.insert(names.index(before) + 1 if before else 0, name)
            meanings[name] = f" {docstrings().get((getattr(owner, '__name__', ''), name), '')} "
        before = name
    return [f"| `{name}` | {shown(own[name])} |{meanings[name]}|\n" for name in names]


def sections(lines: Iterable[str]) -> Iterator[str]:
    """Yields the lines of the page, with the rows of each section's table in their new form."""
    section, rows = "", list[str]()
    for line in lines:
        if line.startswith("## "):
            heading = SECTION.match(line.rstrip("\n"))
            section = heading[1] if heading else ""
        if section and ROW.match(line):
            rows.append(line)
            continue
        if rows:
            yield from rows_of(section, rows)
            rows = []
        yield line
    if rows:
        yield from rows_of(section, rows)


def with_new_sections(text: str) -> str:
    """Returns the page with each section of the configuration that it lacks, behind the others."""
    head, behind, rest = text.partition(RANGES)
    assert behind, f"docs/configuration.md has no line {RANGES}"
    headed = {found[1] for line in head.splitlines() if (found := SECTION.match(line))}
    for section in msgspec.structs.fields(Config):
        if section.name not in headed:
            said, _, _ = " ".join((getattr(section.type, "__doc__", None) or "").split()).partition(".")
            head += f"## {said}: `[{section.name}]`\n\n| Key | Default | Meaning |\n|---|---|---|\n"
            head += "".join(rows_of(section.name, [])) + "\n"
    return head + behind + rest


def listed(wanted: Iterable[str]) -> str:
    """Returns the keys as the lines of a list. A section of which all keys are wanted is listed by its name."""
    keys, whole, lines = set(wanted), list[str](), list[str]()
    for section in (each.name for each in msgspec.structs.fields(Config)):
        own = [key for key in fields_of(Config) if key.startswith(f"{section}.")]
        found, others = [key for key in own if key in keys], [key for key in own if key not in keys]
        if not others:
            whole.append(f"`[{section}]`")
        elif len(others) * FEW < len(own):
            left_out = " and ".join(f"`{key.partition('.')[2]}`" for key in others)
            lines.append(f"- `[{section}]`: every key but {left_out}\n")
        elif found:
            lines.append(f"- {', '.join(f'`{key}`' for key in found)}\n")
    return "".join([f"- {', '.join(whole)}: every key\n", *lines])


def those(wanted: Any) -> str:
    """Returns the list of the keys of which `wanted` is true."""
    said: dict[str, KeyFacts] = facts(Config)
    return listed(key for key, one in said.items() if wanted(one))


def ranges() -> str:
    """Returns the table of ranges."""
    lines = ["| Key | Range | Without `force` |\n", "|---|---|---|\n"]
    for key, known in ranges_of(Config).items():
        usual = f"{known.usual_low} to {known.usual_high}" if known.why else ""
        lines.append(f"| `{key}` | {'0, ' if known.zero else ''}{known.low} to {known.high} | {usual} |\n")
    return "".join(lines)


def page(text: str) -> str:
    """Returns the page: the generated parts are new, and the text between them is that of `text`."""
    text = with_new_sections("".join(sections(text.splitlines(keepends=True))))
    for name, block in {
        "The cluster's keys": those(lambda one: one.is_clusters),
        "Keys that a reload changes": those(lambda one: one.reload and not one.is_clusters),
        "Ranges": ranges(),
    }.items():
        begin = BEGIN.format(name)
        head, found, rest = text.partition(begin)
        assert found, f"docs/configuration.md has no line {begin}"
        text = f"{head}{begin}\n{block}\n{END}{rest.partition(END)[2]}"
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
