"""The docs name things that exist: files, modules, functions, links, commands, make targets."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import click
import pytest

import pyspark_raftmq
import raftmq
from tests.support.rows import each_row
from tests.support.tree import parsed, text_of

ROOT = Path(__file__).parents[2]
PACKAGES = ("raftmq_wire", "raftlog", "statemachine", "cluster", "jepsen_like", "raftmq", "pyspark_raftmq", "bench")
FRONT = ("README.md", "README.zh-CN.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
PAGES = [ROOT / name for name in FRONT] + sorted([*ROOT.glob("docs/**/*.md"), *ROOT.glob("changelog.d/*.md")])
ARCHITECTURE = ROOT / "docs" / "architecture.md"
GLOSSARY = ROOT / "docs" / "glossary.md"

CODE_SPAN = re.compile(r"`([^`\n]+)`")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
# Look like modules, are not: an entry point group, a file.
NO_MODULES = {"raftmq.commands", "raftmq.positions", "raftmq.sales", "raftmq.timeout", "raftmq.toml"}
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def page_id(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def without_fences(text: str) -> str:
    return FENCE.sub("", text)


def fences(page: Path, *languages: str) -> list[str]:
    return [body for language, body in FENCE.findall(page.read_text()) if language in languages]


# --- names of architecture.md -----------------------------------------------------------------------


def cited_files(text: str) -> set[str]:
    """Paths in backticks: `cluster/replication/raft_driver.py`, `docs/style.md`, and folders with a closing slash."""
    return {
        span for span in CODE_SPAN.findall(without_fences(text)) if re.fullmatch(r"[\w./-]+(\.(py|md|toml)|/)", span)
    }


def cited_names(text: str) -> set[str]:
    """Dotted names in backticks that begin with a package of ours; a call's parentheses are left off."""
    names = set()
    for span in CODE_SPAN.findall(without_fences(text)):
        name = re.sub(r"\(.*\)$", "", span)
        if re.fullmatch(r"\w+(\.\w+)+", name) and name.partition(".")[0] in PACKAGES and name not in NO_MODULES:
            names.add(name)
    return names


def module_file(parts: list[str]) -> Path | None:
    folder = ROOT.joinpath(*parts)
    for candidate in (folder.with_suffix(".py"), folder / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


def is_defined(name: str) -> bool:
    """Returns True if the dotted name is a module, or something that its longest module prefix defines."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        if path := module_file(parts[:length]):
            return defines(parsed(text_of(path)), parts[length:])
    return False


def defines(scope: ast.AST, names: list[str]) -> bool:
    """Returns True if names[0] is bound in this module or class, names[1] in that, and so on."""
    if not names:
        return True
    return any(
        names[0] in bound and (not names[1:] or (isinstance(node, ast.ClassDef) and defines(node, names[1:])))
        for node in statements(scope)
        for bound in [bindings(node)]
    )


def statements(scope: ast.AST) -> list[ast.AST]:
    """Statements of a module or class body, those under `if` and `try` included."""
    found: list[ast.AST] = []
    for node in getattr(scope, "body", []):
        found += [node, *statements(node)] if isinstance(node, ast.If | ast.Try) else [node]
    return found


def bindings(node: ast.AST) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Assign):
        return {target.id for target in node.targets if isinstance(target, ast.Name)}
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return {node.target.id}
    if isinstance(node, ast.ImportFrom):
        return {alias.asname or alias.name for alias in node.names}
    return set()


@pytest.mark.parametrize(("page", "least"), [(ARCHITECTURE, 7), (GLOSSARY, 40)], ids=("architecture", "glossary"))
def test_the_files_and_folders_that_it_cites_exist(page: Path, least: int) -> None:
    cited = cited_files(page.read_text())
    assert len(cited) > least
    assert sorted(name for name in cited if not (ROOT / name).exists()) == []


def test_architecture_cites_names_that_exist() -> None:
    cited = cited_names(ARCHITECTURE.read_text())
    assert len(cited) > 20
    assert sorted(name for name in cited if not is_defined(name)) == []


def test_a_name_that_does_not_exist_is_found() -> None:
    text = "`raftlog.frame.no_such_thing` `raftlog.no_such_module` `cluster.config.config.Config.no_such_field` `a.b`"
    assert sorted(name for name in cited_names(text) if not is_defined(name)) == [
        "cluster.config.config.Config.no_such_field",
        "raftlog.frame.no_such_thing",
        "raftlog.no_such_module",
    ]
    assert is_defined("cluster.config.config.Config.node")
    assert is_defined("cluster.config.loading.load")
    assert cited_files("`cluster/nothing.py` `cluster/`") == {"cluster/nothing.py", "cluster/"}


# --- every page -------------------------------------------------------------------------------------


@each_row("page", PAGES, ids=page_id)
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for link in LINK.findall(without_fences(page.read_text())):
        if "://" in link or link.startswith("mailto:"):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_every_page_can_be_found_from_the_first() -> None:
    """docs/README.md lists each page; a folder's pages are found through the folder."""
    index = (ROOT / "docs" / "README.md").read_text()
    links = {(ROOT / "docs" / link).resolve() for link in LINK.findall(index)}
    pages = {page for page in PAGES if page.parent == ROOT / "docs" and page.name != "README.md"}
    folders = {page.parent for page in PAGES if page.parent.parent == ROOT / "docs"}
    assert sorted(map(page_id, pages - links)) == []
    assert sorted(map(page_id, folders - {link.parent for link in links} - links)) == []


def test_the_python_api_has_every_public_name() -> None:
    """`make docs` puts the docstring of each in the place of its line."""
    listed = set(re.findall(r"^::: (\S+)$", (ROOT / "docs" / "python-api.md").read_text(), re.MULTILINE))
    public = {f"{package.__name__}.{name}" for package in (raftmq, pyspark_raftmq) for name in package.__all__}
    assert listed == public | {name for name in listed if name.startswith("raftmq.testing.") and is_defined(name)}


def unread_homes(config: str) -> set[str]:
    """The packages in which a public name is at home and that the site's tool does not read: it would end with an
    error."""
    read = {
        "raftmq",
        "pyspark_raftmq",
        *re.findall(r"\w+", config.partition("preload_modules: [")[2].partition("]")[0]),
    }
    objects = [getattr(package, name) for package in (raftmq, pyspark_raftmq) for name in package.__all__]
    made_here = [each for each in objects if isinstance(each, type) or inspect.isroutine(each)]  # no alias of a type
    return {each.__module__.partition(".")[0] for each in made_here} - read - {"builtins"}


def test_the_site_reads_each_package_that_a_public_name_comes_from() -> None:
    config = (ROOT / "mkdocs.yml").read_text()
    assert unread_homes(config) == set()
    assert unread_homes(config.replace("raftmq_wire", "")) == {"raftmq_wire"}


WORDS_MAX = 2500
REFERENCES = {
    "access-table",
    "architecture",
    "chaos",
    "cli",
    "compatibility-tested",
    "configuration",
    "disk-format",
    "disk-format-rows",
    "guarantees",
    "http-api",
    "internals/feature-map",
    "metrics",
    "mistakes",
    "performance",
    "runbooks",
    "wire-protocol",
}
"""Pages in which a reader looks something up: tables of what there is, and of what was measured."""


def test_a_page_that_is_read_is_short() -> None:
    """At most 2,500 words; only references are longer."""
    words = {
        page.relative_to(ROOT / "docs").with_suffix("").as_posix(): len(page.read_text().split())
        for page in PAGES
        if "docs" in page.parts
    }
    assert {name for name in REFERENCES if not (ROOT / "docs" / f"{name}.md").exists()} == set()
    assert {name: count for name, count in words.items() if count > WORDS_MAX and name not in REFERENCES} == {}


def anchors(page: Path) -> set[str]:
    """The anchors that headings get on the usual hosts."""
    headings = re.findall(r"^#+ +(.+)$", without_fences(page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@each_row("page", PAGES, ids=page_id)
def test_python_examples_compile(page: Path) -> None:
    for code in fences(page, "python"):
        compile(code, page_id(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@each_row("page", PAGES, ids=page_id)
def test_examples_use_names_that_raftmq_exports(page: Path) -> None:
    code = "\n".join(fences(page, "python")) + "\n" + "\n".join(CODE_SPAN.findall(page.read_text()))
    used = set(re.findall(r"\braftmq\.([A-Za-z]\w*)", code)) - {name.partition(".")[2] for name in NO_MODULES}
    exported = set().union(*(bindings(node) for node in statements(parsed(text_of(ROOT / "raftmq" / "__init__.py")))))
    parts = {path.stem for path in (ROOT / "raftmq").iterdir()}
    assert used - exported - parts == set()


@each_row("page", PAGES, ids=page_id)
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = page.read_text()
    lines = [line for body in fences(page, "sh", "console") for line in body.splitlines()]
    used = {word for span in [*CODE_SPAN.findall(without_fences(text)), *lines] for word in made(span)}
    assert used - targets == set()


def made(command: str) -> list[str]:
    """The targets of a line such as `make -s bench JSON=1`."""
    match = re.match(r"make((?: +[\w=./-]+)+)", command)
    words = match[1].split() if match else []
    return [word for word in words if re.fullmatch(r"[a-z][a-z-]*", word)]


@each_row("page", PAGES, ids=page_id)
def test_commands_and_their_options_exist(page: Path) -> None:
    lines = [line for body in fences(page, "sh", "console") for line in body.splitlines()]
    wrong = [problem for line in lines if (problem := check_command(line))]
    assert wrong == []


NO_COMMANDS = {"raftmq key id"}
"""Words in backticks that are no command: a key is mixed with them (docs/wire-protocol.md)."""


@each_row("page", PAGES, ids=page_id)
def test_commands_in_sentences_exist(page: Path) -> None:
    spans = set(re.findall(r"`(raftmq [^`\n]+)`", without_fences(page.read_text()))) - NO_COMMANDS
    assert [problem for span in spans if (problem := check_command(re.sub(r" [A-Z]+\b.*", "", span)))] == []


def check_command(line: str) -> str | None:
    """Returns the fault of a line that runs `raftmq`, or None."""
    from raftmq.cli import cli

    match = re.search(r"(?:^|[|;&$] *|bin/)raftmq((?: +[^\s|;&#>]+)+)", line)
    if not match:
        return None
    command: click.Command | None = cli
    context = click.Context(cli)
    for word in match[1].split():
        if word.startswith("--"):
            assert command is not None
            known = [option for param in command.get_params(context) for option in param.opts]
            if word.partition("=")[0] not in known:
                return f"{line}: no option {word}"
        elif isinstance(command, click.Group):
            command = command.get_command(context, word)
            if command is None:
                return f"{line}: no command {word}"
    return None


@each_row(
    "line", ["raftmq strat", "raftmq up --nodez 3", "cat x | raftmq produce t --key-feild id", ".venv/bin/raftmq nope"]
)
def test_a_wrong_command_line_is_found(line: str) -> None:
    assert check_command(line)
