"""Run notebooks and store what their cells print and show, as Jupyter does, without Jupyter.

python -m tools.run_notebooks examples/gallery/*.ipynb
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

_RUN = """
import ast, base64, contextlib, io, json, sys

names, shown = {"__name__": "__main__"}, []
for number, source in enumerate(json.load(sys.stdin)):
    tree, data = ast.parse(source), {}
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(compile(tree, f"cell {number}", "exec"), names)
        value = None if last is None else eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names)
    html, png = (getattr(value, f"_repr_{kind}_", lambda: None)() for kind in ("html", "png"))
    if html:
        data["text/html"] = html.splitlines(True)
    if png:
        data["image/png"] = base64.b64encode(png).decode()
    elif value is not None:
        data["text/plain"] = repr(value).splitlines(True)
    said = output.getvalue().splitlines(True)
    stream = [{"name": "stdout", "output_type": "stream", "text": said}] if said else []
    result = {"data": data, "execution_count": number + 1, "metadata": {}, "output_type": "execute_result"}
    shown.append(stream + ([result] if data else []))
print(json.dumps(shown))
"""


def outputs_of(notebook: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """Run the code cells of a notebook in a process of their own, and return the outputs of each.

    Raises:
        RuntimeError: A cell has failed, or has warned.
    """
    sources = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", _RUN],
            input=json.dumps(sources),
            capture_output=True,
            text=True,
            env={**os.environ, "TMPDIR": folder},
        )
    if done.returncode:
        raise RuntimeError(done.stderr)
    outputs: list[list[dict[str, Any]]] = json.loads(done.stdout.splitlines()[-1])
    return outputs


def main(paths: list[str]) -> None:
    for path in map(Path, paths):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        for number, (cell, outputs) in enumerate(zip(code, outputs_of(notebook), strict=True), 1):
            cell.update(execution_count=number, outputs=outputs)
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
