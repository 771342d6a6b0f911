"""Scripts of the dashboard, run by node without a browser."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

from tests.support.pace import at_most

STATIC: Final = Path(__file__).parents[2] / "cluster/admin/static"
_BROWSER: Final = """
globalThis.document = { addEventListener() {}, getElementById: () => null, querySelector: () => null };
globalThis.location = { hash: "" };
globalThis.addEventListener = () => {};
const [folder, address, ...words] = process.argv.slice(1);
const real = fetch;
globalThis.fetch = (path, options) => real(`http://${address}/${path}`, options);
const page = async (name) => (await import(`${folder}/page-${name}.js`)).default;
const signal = new AbortController().signal;
"""
"""What a script finds: a browser as far as the pages need one, `page(name)`, `signal` and `words`."""


def run_dashboard(folder: Path, script: str, address: str, *words: str) -> str:
    """Runs a script beside a copy of the pages, whose requests go to "host:port"; returns what it prints."""
    for file in STATIC.glob("*.js"):
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "package.json").write_text('{"type": "module"}')
    line = ["node", "--input-type=module", "--eval", _BROWSER + script, str(folder), address, *words]
    done = subprocess.run(line, capture_output=True, text=True, timeout=at_most(60), check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
