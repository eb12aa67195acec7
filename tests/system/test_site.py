"""The documentation as a site: built without a warning, and looked at in a browser on two widths."""

import html
import re
import subprocess
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from browser import chromium, open_browser
from paths import ROOT

pytest.importorskip("mkdocs")

PAGES = ("index.html", "converting.html", "loading.html", "reference/python.html", "reference/commands.html")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return folder


@pytest.fixture(scope="module")
def address(site):
    """Return where the site is served."""
    handler = partial(SimpleHTTPRequestHandler, directory=site)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def unwelcome(messages, address):
    """Return what a page said on the console, and what it asked others for."""
    return [message for message in messages if not str(message).startswith((address, "blob:"))]


def test_the_site_shows_the_help_of_commands_and_the_public_names(site):
    commands = (site / "reference" / "commands.html").read_text(encoding="utf-8")
    assert "wdsplit convert [OPTIONS] INPUT... OUTPUT" in commands
    reference = (site / "reference" / "python.html").read_text(encoding="utf-8")
    assert 'id="wdsplit.Loader.state_dict"' in reference
    shown = html.unescape(re.sub("<[^>]+>", "", reference))
    for signature in (
        "    seed: int = 0,\n    shuffle: bool = True,\n",
        "    world_size: int = 1,\n    workers: int = 1,\n",
    ):
        assert signature in shown
    assert not re.search(r"<tbody>\s*</tbody>", reference)
    assert "    connections: int = 64,\n" in shown
    assert not [name for name in ("Annotated", "_integer", "same_as", "Access.") if name in shown]


def test_code_in_texts_and_tables_breaks_between_words_alone(site):
    page = (site / "acceptance.html").read_text(encoding="utf-8")
    assert "<code>tests/<wbr>integration/<wbr>test_<wbr>promises.<wbr>py::<wbr>test_" in page
    loops = (site / "loops.html").read_text(encoding="utf-8")
    assert "<code>set_epoch</code>" in loops
    assert "<code>tests/<wbr>system/<wbr>test_<wbr>loops.<wbr>py::<wbr>test_<wbr>a_<wbr>loop_" in loops
    assert "<wbr>" not in "".join(re.findall(r"<pre.*?</pre>", loops, re.S))
    coming = (site / "from-webdataset.html").read_text(encoding="utf-8")
    assert "<code>wds.<wbr>WebLoader(<wbr>dataset, num_workers=4)</code>" in coming
    packs = (site / "packs-and-buckets.html").read_text(encoding="utf-8")
    assert (
        '<code><span class="unbroken">--pack</span> tokens <span class="unbroken">--capacity</span> 8192</code>'
        in packs
    )


@pytest.mark.skipif(chromium() is None, reason="needs Chromium")
@pytest.mark.parametrize("width", [1280, 390])
def test_pages_show_no_error_ask_nobody_else_and_fit_the_screen(address, tmp_path, width):
    with open_browser(tmp_path) as browser:
        tab = browser.tab()
        for page in PAGES:
            tab.open(f"{address}/{page}", width=width)
            assert tab.evaluate("document.documentElement.scrollWidth") <= width, page
        assert unwelcome(tab.messages, address) == []


@pytest.mark.skipif(chromium() is None, reason="needs Chromium")
def test_copying_a_session_of_a_terminal_takes_its_commands(address, tmp_path):
    with open_browser(tmp_path) as browser:
        tab = browser.tab()
        tab.open(f"{address}/quick-start.html")
        marked = (
            "(code => { code.setAttribute('data-md-copying', ''); return code.innerText.trim(); })"  # as the theme does
        )
        copied = tab.evaluate(f"{marked}(document.querySelector('.gp').closest('code'))")
        assert copied == "python examples/make_digits.py raw"


@pytest.mark.skipif(chromium() is None, reason="needs Chromium")
def test_the_search_finds_a_page(address, tmp_path):
    with open_browser(tmp_path) as browser:
        tab = browser.tab()
        tab.open(f"{address}/index.html?q=substitute")
        tab.evaluate(
            "new Promise(done => { const look = () => document.querySelector('.md-search-result__item')"
            " ? done(1) : setTimeout(look, 50); look(); })"
        )
        assert "Bad samples" in tab.evaluate("document.querySelector('.md-search-result__list').innerText")
