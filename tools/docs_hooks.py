"""Hooks of mkdocs: the gallery, the help of commands, links that leave docs/, and where code in tables may break."""

from __future__ import annotations

import ast
import inspect
import json
import posixpath
import pydoc
import re
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from griffe import DocstringSectionParameters, ExprAttribute, ExprCall, ExprSubscript, Extension, Function
from mkdocs.structure.files import File, Files

from wdsplit.cli.main import cli

COMMANDS = "<!-- the help of all commands -->"
GALLERY = Path(__file__).parent.parent / "examples" / "gallery"
_LINK = re.compile(r"\]\((?P<path>(?:\.\./)+[^)#\s]*)(?P<anchor>#[^)\s]*)?\)")
_CODE = re.compile(r"(?<!</span>)(?<!<pre>)<code>[^<]*</code>")
_BREAK, _BREAK_LONG = (re.compile(rf"(?<=[\w)])(::|[{signs}])(?=[^\W\d])") for signs in ("/.=,(", "/.=,(_"))
_HYPHENS = re.compile(r"(?<![\w-])\w*-[\w-]{0,24}\w")
_WORD = re.compile(r"[^\s<>]+")
_LONG = 40
_COLUMNS = "88"


def on_files(files: Files, *, config: Any, **_: Any) -> Files:
    """Add a page for each notebook of the gallery."""
    for path in sorted(GALLERY.glob("*.ipynb")):
        files.append(File.generated(config, f"gallery/{path.stem}.md", content=page_of(path)))
    return files


def page_of(path: Path) -> str:
    """Return a notebook as Markdown: its texts, code, and what the code has printed and shown."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source.replace("](../../docs/", "](../"))
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            shown = output.get("data", {"text/plain": output.get("text")})
            if "text/html" in shown:
                parts.append("".join(shown["text/html"]))
            elif "image/png" in shown:
                parts.append(f'<p><img alt="what the cell shows" src="data:image/png;base64,{shown["image/png"]}"></p>')
            else:
                parts.append(f"```text\n{''.join(shown['text/plain']).rstrip()}\n```")
    parts.insert(1, f"[Download this notebook](../../examples/gallery/{path.name})")
    return "\n\n".join(parts)


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Put the help of all commands where a page marks it; let links that leave docs/ lead to the repository."""

    def replaced(found: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page.file.src_uri), found["path"]))
        if path.startswith("docs/"):
            return found[0]
        if path.startswith("examples/gallery/") and not page.file.src_uri.startswith("gallery/"):
            return f"]({posixpath.relpath(path[9:-6], posixpath.dirname(page.file.src_uri))}.md)"
        return f"]({config.extra['repository']}/blob/main/{path}{found['anchor'] or ''})"

    return _LINK.sub(replaced, markdown).replace(COMMANDS, help_of_commands() if COMMANDS in markdown else "")


def on_page_content(html: str, **_: Any) -> str:
    """Let code within texts and tables break after a slash, a dot and the like, and never after a hyphen.

    Long names break after an underscore too.
    """

    def broken(word: re.Match[str]) -> str:
        return (_BREAK if len(word[0]) < _LONG else _BREAK_LONG).sub(r"\1<wbr>", word[0])

    def marked(code: re.Match[str]) -> str:
        return _HYPHENS.sub(r'<span class="unbroken">\g<0></span>', _WORD.sub(broken, code[0]))

    return _CODE.sub(marked, html)


def help_of_commands() -> str:
    """Return a section for each command, with what `--help` prints."""
    runner = CliRunner(env={"COLUMNS": _COLUMNS, "NO_COLOR": "1"})
    parts = []
    for name in sorted(cli.commands):
        printed = runner.invoke(cli, [name, "--help"], prog_name="wdsplit").output.rstrip()
        parts.append(f"## wdsplit {name}\n\n```text\n{printed}\n```\n")
    return "\n".join(parts)


class PlainKeywords(Extension):
    """Shows options by their types and defaults, and those that `unpack_typeddict` has unpacked once in the table."""

    def on_function(self, *, func: Function, **_: Any) -> None:
        """Show `Annotated[TYPE, DEFAULT] = ...` as `TYPE = DEFAULT`, `_integer(DEFAULT, LOW, HIGH)` as `DEFAULT`."""
        for parameter in func.parameters:
            self._make_plain(parameter)
        for section in list(func.docstring.parsed) if func.docstring is not None else ():
            if isinstance(section, DocstringSectionParameters):
                section.value[:] = [each for each in section.value if each.description]
                for each in section.value:
                    self._make_plain(each)
                if not section.value:
                    func.docstring.parsed.remove(section)

    def _make_plain(self, parameter: Any) -> None:
        annotation = parameter.annotation
        if isinstance(annotation, ExprSubscript) and annotation.canonical_path == "typing.Annotated":
            parameter.annotation, parameter.default = annotation.slice.elements
        parameter.default = _value_of(parameter.default)


def _value_of(default: Any) -> Any:
    """Return a default as a user would write it: the value of an attribute, and what a function gives."""
    if isinstance(default, ExprAttribute):
        value = pydoc.locate(default.canonical_path)
        return repr(value) if isinstance(value, int | float | str) else default
    if not isinstance(default, ExprCall):
        return default
    match str(default.function):
        case "_integer":
            return default.arguments[0]
        case "same_as":
            options, field = default.arguments
            known = inspect.signature(pydoc.locate(options.canonical_path))  # type: ignore[arg-type]
            return repr(known.parameters[ast.literal_eval(str(field))].default)
        case "dict":
            return "{}"
    return default
