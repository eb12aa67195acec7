"""Messages, help and pages use plain words, and sentences that one reads once."""

import ast
import inspect
import re

import click
import pytest

import wdsplit
from documents import COMMANDS
from paths import ROOT
from wdsplit import debug
from wdsplit.cli.main import cli

pytestmark = pytest.mark.lint

PHRASES = re.compile(
    r"\b(told|held|hurried|begun|looked around|put off|given up|(is|are) wanted|stands(?! (out|(in )?for)\b)"
    r"|stand twice|at hand|(does|do) without|what is there|this is no|who evicts|only so many|cannot be asked)\b"
    r"|\bcannot be[.:]?\Z",
    re.I,
)
LONGEST = 30
"""Words of a sentence in a message or in the help."""

MODULES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "wdsplit").rglob("*.py"))
PAGES = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md", "examples/README.md"]
PAGES += sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
PUBLIC = [
    thing
    for module in (wdsplit, debug)
    for thing in (getattr(module, name) for name in module.__all__)
    if inspect.isclass(thing) or inspect.isfunction(thing)
]
CODE = re.compile(r"^ *```.*?^ *```|`[^`\n]+`|<!--.*?-->|\]\([^)]*\)", re.M | re.S)


def messages(path):
    """Return the strings of a module but its docstrings, with X for what varies."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    passed_over = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    passed_over |= {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else "X" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in passed_over:
            yield node.value


def docstrings(thing):
    """Return the docstrings of something public and of its public members."""
    members = [member for name, member in vars(thing).items() if name[0] != "_"] if inspect.isclass(thing) else []
    return [text for text in map(inspect.getdoc, (thing, *members)) if text]


def helps(command):
    """Return the texts of a command's help."""
    texts = [command.help, command.short_help, *(getattr(option, "help", None) for option in command.params)]
    return [text for text in texts if text]


def banned(text):
    return [text[max(0, match.start() - 40) : match.end() + 20] for match in PHRASES.finditer(text)]


def too_long(text):
    """Return the sentences of a text that have too many words; a blank line ends one too."""
    sentences = (sentence for part in re.split(r"\n\s*\n", text) for sentence in re.split(r"(?<=[.!?:;])\s", part))
    return [" ".join(words) for words in map(str.split, sentences) if len(words) > LONGEST]


@pytest.mark.parametrize("path", MODULES)
def test_messages_are_plain(path):
    texts = list(messages(path))
    assert [place for text in texts for place in banned(text)] == []
    assert [sentence for text in texts for line in text.splitlines() for sentence in too_long(line)] == []


@pytest.mark.parametrize("thing", PUBLIC, ids=lambda thing: thing.__name__)
def test_public_docstrings_are_plain(thing):
    assert [place for text in docstrings(thing) for place in banned(text)] == []


@pytest.mark.parametrize("command", [cli, *(cli.commands[name] for name in COMMANDS)], ids=["wdsplit", *COMMANDS])
def test_the_help_is_plain(command):
    assert isinstance(command, click.Command)
    texts = helps(command)
    assert not any("\\b" in text for text in texts), "a docstring with a backslash instead of click's mark \\b"
    assert [place for text in texts for place in banned(text)] == []
    assert [sentence for text in texts for sentence in too_long(text)] == []


@pytest.mark.parametrize("page", PAGES)
def test_pages_are_plain(page):
    assert banned(CODE.sub("`", (ROOT / page).read_text(encoding="utf-8"))) == []


def test_the_search_for_banned_phrases_and_long_sentences_finds_them():
    for text in ("the arguments cannot be", "cannot be told", "a key stands twice", "this is no cache", "160 at hand"):
        assert len(banned(text)) == 1
    assert banned("it cannot be read; DIR stands for a folder; it is no cache") == []
    assert too_long("a " * 29 + "b. " + "c " * 29 + "d") == []
    assert too_long("a " * 30 + "b") == ["a " * 30 + "b"]
