import ast
import re
import textwrap
from pathlib import Path

import click
import pytest

import wdsplit
from documents import COMMANDS, OPTIONS
from paths import ROOT
from wdsplit.cli.main import cli

PACKAGE = Path(wdsplit.__file__).parent
DOCUMENTS = ("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md")
PAGES = [*DOCUMENTS, *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]
"""All documents: those of the project, the guides, and what explains the design."""
WITH_OLD_NAMES = "docs/design/layout.md"
"""Tells what files were called before, too."""
WORKFLOWS = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / ".github" / "workflows").iterdir())
SOURCE_FOLDERS = ("wdsplit", "tools", "tests", "examples", "docs", ".github")
SOURCE_SUFFIXES = {".md", ".py", ".sh", ".toml", ".yml", ".yaml", ".cfg", ".txt", ".json"}

FENCE = re.compile(r"^ *```.*?^ *```", re.M | re.S)
NAMED_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
NAMED_FILE = re.compile(r"`((?:tests|examples|tools|wdsplit)/[\w./-]*\w)[`:]")
MACHINE_PATH = re.compile(r"(?<![\w.:\]})/~*-])/(work|root|home|Users)/")
PACKAGE_INDEX = re.compile(r"(index[-_]url|://[\w.-]+/simple\b)", re.I)
HOST = re.compile(r"https?://(\d+\.\d+\.\d+\.\d+|localhost|[\w-]+)(:\d+)?(/|$)")

PACKAGES = sorted(".".join(path.parent.relative_to(PACKAGE).parts) for path in PACKAGE.rglob("*/__init__.py"))


def text_of(name):
    return (ROOT / name).read_text(encoding="utf-8")


def code_of(document):
    """Return all code of a document, line by line: in backticks, fenced, and indented."""
    fenced = re.findall(r"^```.*?\n(.*?)^```", document, re.M | re.S)
    prose = re.sub(r"^```.*?^```", "", document, flags=re.M | re.S)
    return "\n".join([*re.findall(r"`([^`\n]+)`", prose), *fenced, *re.findall(r"^    (.*)", prose, re.M)])


def headings_of(document):
    return "\n".join(re.findall(r"^#+ (.*)", document, re.M))


def python_blocks(document):
    return [textwrap.dedent(block) for block in re.findall(r"^ *```python\n(.*?)^ *```", document, re.M | re.S)]


def make_targets():
    return set(re.findall(r"^([a-z][\w-]*)\s*:(?!=)", text_of("Makefile"), re.M))


def own_files():
    """Return the files that make up the project, but not this one: the patterns are tried on lines here that match."""
    files = [path for path in ROOT.iterdir() if path.suffix in SOURCE_SUFFIXES or path.name == "Makefile"]
    for folder in (*SOURCE_FOLDERS, ".ci"):
        files += [path for path in (ROOT / folder).rglob("*") if path.suffix in SOURCE_SUFFIXES]
    return sorted(path for path in files if path.is_file() and path != Path(__file__))


@pytest.mark.parametrize("page", PAGES)
def test_a_page_names_only_options_that_exist_and_python_that_compiles(page):
    text, known = text_of(page), {option for _, option in OPTIONS} | {"--help", "--version", "--verbose"}
    lines = [line for line in code_of(text).splitlines() if line.strip().startswith("wdsplit ")]
    used = {option for line in lines for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", line)}
    assert used - known == set()
    for block in python_blocks(text):
        ast.parse(block)
    names = set(re.findall(r"(?<![\w./-])wdsplit\.([A-Za-z]\w*)", text))
    modules = {path.stem for path in PACKAGE.iterdir()}  # and the header is wdsplit.json
    assert page in ("CHANGELOG.md", WITH_OLD_NAMES) or names <= {*wdsplit.__all__, *modules, "json"}


def test_the_help_of_each_command_and_option_says_something():
    for command in map(cli.commands.get, COMMANDS):
        assert command.help
        assert all(option.help for option in command.params if isinstance(option, click.Option))


def test_the_readme_is_short_and_shows_how_to_use_the_library():
    text = text_of("README.md")
    assert len(text.splitlines()) <= 200
    assert any("wdsplit.Loader(" in block for block in python_blocks(text))
    assert {"make demo", "make test"} <= set(re.findall(r"make \w+", code_of(text)))


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", *WORKFLOWS])
def test_every_make_target_that_a_document_or_a_workflow_names_exists(name):
    text = text_of(name)
    lines = code_of(text) if name.endswith(".md") else "\n".join(re.findall(r"- run: (make .*)", text))
    named = set(re.findall(r"\bmake ([a-z][\w-]*)", lines))
    assert named
    assert named - make_targets() == set()


def test_what_a_release_names_has_one_version():
    (version,) = re.findall(r'^version = "(.*)"$', text_of("pyproject.toml"), re.M)
    assert f"version: {version}\n" in text_of("CITATION.cff")
    assert re.search(rf"^## \[{re.escape(version)}\] - 20\d\d-\d\d-\d\d$", text_of("CHANGELOG.md"), re.M)


def slug(heading):
    """Return the name that a heading has in links, as GitHub makes it."""
    return re.sub(r"[^\w -]", "", heading.replace("`", "").lower()).replace(" ", "-")


def leads_nowhere(path, anchor):
    """Tell whether the file or the heading that a link names is missing."""
    if not path.exists():
        return True
    headings = headings_of(FENCE.sub("", path.read_text(encoding="utf-8"))).splitlines() if anchor else []
    return bool(anchor) and anchor not in map(slug, headings)


@pytest.mark.lint
@pytest.mark.parametrize("page", PAGES)
def test_links_of_a_page_lead_to_files_and_headings(page):
    text, wrong = text_of(page), []
    assert text.startswith("# ")
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", FENCE.sub("", text)):
        path = (ROOT / page).parent / target if target else ROOT / page
        if "://" not in target and leads_nowhere(path, anchor):
            wrong.append(f"{target}#{anchor}")
    assert wrong == []


def test_every_test_that_the_page_of_promises_names_is_one_that_pytest_runs():
    """That a named test is there is checked below; a function of tests/support is collected by no file of tests."""
    page = text_of("docs/acceptance.md")
    assert [path for path, _ in NAMED_TEST.findall(page) if not Path(path).name.startswith("test_")] == []
    chosen = re.findall(r"`(tests/[\w/]+\.py) -k (\w+)`", page)
    assert chosen
    for path, check in chosen:
        files = set(re.findall(r'names_in\("(\w+\.py)"\)', text_of(path)))
        checks = "".join(text_of(f"tests/support/{file}") for file in files)
        assert re.search(rf"^def {check}\(", checks, re.M), f"pytest {path} -k {check} runs nothing"


@pytest.mark.lint
@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("docs/") and page != WITH_OLD_NAMES])
def test_tests_and_files_that_a_page_names_are_there(page):
    text = text_of(page)
    missing = [
        f"{path}::{name}"
        for path, name in NAMED_TEST.findall(text)
        if not (ROOT / path).exists() or not re.search(rf"^def {name}\(", text_of(path), re.M)
    ]
    missing += [path for path in NAMED_FILE.findall(text) if not (ROOT / path).exists()]
    assert missing == []


ROWS = {"A": 10, "B": 7, "C": 4, "D": 10, "E": 8, "F": 16}


def test_each_row_of_the_acceptance_table_is_shown_or_marked():
    rows = re.findall(r"^\| ([A-F]\d+) \|(.*)\|$", text_of("docs/acceptance.md"), re.M)
    assert [name for name, _ in rows] == [f"{letter}{n + 1}" for letter, count in ROWS.items() for n in range(count)]
    shown = re.compile(f"{NAMED_TEST.pattern}|{NAMED_FILE.pattern}|`tests/[\\w/]+\\.py -k |not yet")
    assert [name for name, row in rows if not shown.search(row)] == []


MARK = re.compile(r"\(?✓\)?")
PEERS = {
    "webdataset": "webdataset",
    "MosaicML streaming": "MosaicML streaming",
    "LitData": "LitData",
    "HF datasets": "Hugging Face datasets",
    "Energon": "Megatron-Energon",
    "Grain": "Grain",
    "LanceDB": "LanceDB StreamingDataset",
}
"""Libraries of the README's comparison, as the page of sources calls them."""


def rows_of(text):
    """Return the cells of all rows of all tables."""
    return [[cell.strip() for cell in line.strip("|").split(" |")] for line in re.findall(r"^\|.*\|$", text, re.M)]


def test_each_mark_of_the_comparison_has_a_source():
    """A test for each feature, and a row with each mark of each peer, which has a link."""
    _, _, readme = text_of("README.md").partition("## Compared")
    header, _, *features = rows_of(readme.partition("\n## ")[0])
    page = text_of("docs/compared.md")
    rows, library = rows_of(page), ""
    assert [row[0] for row in features] == [name for name, *rest in rows if NAMED_TEST.search(" ".join(rest))]
    sources = {name: [] for name in PEERS.values()}
    for first, *rest in (row for row in rows if len(row) == 4):
        library = next((name for name in PEERS.values() if first.startswith(name)), library if not first else "")
        if library and MARK.fullmatch(rest[1]):
            assert "][" in rest[2] or "`" in rest[2], rest
            sources[library] += [rest[1]] * (1 + rest[0].count(", resume"))
    marks = {PEERS[name]: [row[place] for row in features if row[place]] for place, name in enumerate(header[2:], 2)}
    assert {name: sorted(found) for name, found in sources.items()} == {
        name: sorted(found) for name, found in marks.items()
    }
    assert set(re.findall(r"\]\[([\w-]+)\]", page)) == set(re.findall(r"^\[([\w-]+)\]: https://", page, re.M))


def test_the_site_has_every_page_under_its_own_title():
    assert re.findall(r"- ([^:\n]+): [\w/-]+\.md", text_of("mkdocs.yml")) == ["Home"]
    notebooks = {f"gallery/{path.stem}.md" for path in (ROOT / "examples" / "gallery").iterdir()}
    assert set(re.findall(r"[\w/-]+\.md", text_of("mkdocs.yml"))) == notebooks | {
        page[5:] for page in PAGES if page.startswith("docs/")
    }


def test_the_page_of_python_has_every_public_name():
    shown = re.findall(r"^::: wdsplit\.(\w+)$", text_of("docs/reference/python.md"), re.M)
    assert sorted(shown) == sorted(wdsplit.__all__)


@pytest.mark.lint
def test_links_of_the_readme_are_whole_so_that_a_package_index_can_show_them():
    text = text_of("README.md")
    (home,) = re.findall(r"^  repository: (\S+)", text_of("mkdocs.yml"), re.M)
    pictures = home.replace("https://github.com/", "https://raw.githubusercontent.com/")
    targets = re.findall(r"\]\(([^)]*)\)", FENCE.sub("", text)) + re.findall(r"^\[[\w-]+\]: (.*)$", text, re.M)
    own = [target for target in targets if target.startswith((f"{home}/blob/main/", f"{pictures}/main/"))]
    assert len(own) > 20
    assert [target for target in targets if not target.startswith("https://")] == []
    parts = [target.partition("/main/")[2].partition("#") for target in own]
    assert [path + anchor for path, _, anchor in parts if leads_nowhere(ROOT / path, anchor)] == []
    assert set(re.findall(r"\]\[([\w-]+)\]", text)) == set(re.findall(r"^\[([\w-]+)\]: ", text, re.M))


def test_architecture_names_every_package():
    text = text_of("ARCHITECTURE.md")
    assert [package for package in PACKAGES if f"`{package}`" not in text] == []


def test_the_walks_of_the_architecture_name_functions_where_they_are():
    known = [f".{package}" for package in PACKAGES]
    for path in PACKAGE.rglob("*.py"):
        module = ".".join(("", *path.relative_to(PACKAGE).with_suffix("").parts))
        known.append(owner := module)
        for indent, name in re.findall(r"^(    )?(?:def|class) (\w+)", path.read_text(encoding="utf-8"), re.M):
            owner = owner if indent else f"{module}.{name}"
            known.append(f"{owner}.{name}" if indent else owner)
    walks = re.search(r"^## How a conversion runs$.*?^## Crash safety$", text_of("ARCHITECTURE.md"), re.M | re.S)[0]
    named = [name for row in re.findall(r"^\| (`.*?) \|", walks, re.M) for name in re.findall(r"`([\w.]+)`", row)]
    assert len(named) > 35
    assert [name for name in named if not any(each.endswith(f".{name}") for each in known)] == []


def lines_that_match(pattern, files):
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]


def test_nothing_in_the_project_points_to_one_machine_and_nothing_but_the_tests_names_a_host():
    files = own_files()
    assert lines_that_match(MACHINE_PATH, files) + lines_that_match(PACKAGE_INDEX, files) == []
    assert lines_that_match(HOST, [path for path in files if ROOT / "tests" not in path.parents]) == []


def test_the_search_for_what_points_to_one_machine_can_find_it():
    for pattern, bad, good in (
        (MACHINE_PATH, "cd /work/x|'/home/me/data'|P=/root/.cache", "raw/work/x|a /works/ b|s3://b/home/x"),
        (PACKAGE_INDEX, "pip install --index-url x|https://packages.example.com/simple", "pip install wdsplit"),
        (HOST, "http://10.0.0.1:80/x|http://mirror/x|https://localhost:9000", "https://keepachangelog.com/en"),
    ):
        assert [line for line in bad.split("|") if not pattern.search(line)] == []
        assert [line for line in good.split("|") if pattern.search(line)] == []
