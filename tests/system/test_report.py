"""The report in a real browser: nothing fails, nothing hostile runs, and the pictures say what the numbers say."""

import re

import pytest

import wdsplit
from browser import chromium, open_browser
from made_datasets import sized_dataset
from report_datasets import CLASSES, hostile, hostile_tars, images, sounds, texts
from wdsplit.texts import counted

pytestmark = [
    pytest.mark.xdist_group("report"),
    pytest.mark.skipif(chromium() is None, reason="needs Chromium, for example from `apt install chromium`"),
]

WIDTHS = (375, 768, 1280)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("report")


@pytest.fixture(scope="module")
def browser(folder):
    with open_browser(folder / "profile") as opened:
        yield opened


@pytest.fixture(scope="module")
def reports(folder):
    """Make the report of each dataset once; return it with its file."""
    makers = {
        "sorted": lambda path: images(path, 4000, shuffle=False),
        "shuffled": lambda path: images(path, 4000, shuffle=True),
        "text": lambda path: texts(path, 1500),
        "sounds": lambda path: sounds(path, 200),
        "empty": lambda path: sized_dataset(path, [0, 0], lanes=1, window=1),
        "nothing": lambda path: sized_dataset(path, [], lanes=1, window=1),
        "hostile": lambda path: hostile(path / "<img src=x onerror='window.ran = 7'>"),
        "hostile_tars": hostile_tars,
    }
    made = {}

    def make(name):
        if name not in made:
            made[name] = wdsplit.report(makers[name](folder / name), folder / f"{name}.html"), folder / f"{name}.html"
        return made[name]

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        yield make


def opened(browser, reports, name, **options):
    report, path = reports(name)
    tab = browser.tab()
    tab.open(path, **options)
    return report, tab


def titles(tab, picture):
    """Return what the marks of a picture say, as a browser shows it: a dict for each."""
    texts = tab.evaluate(f"[...document.querySelectorAll('#{picture} svg title')].map(each => each.textContent)")
    return [dict(part.split(": ", 1) for part in text.split("; ")) for text in texts]


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("name", ["sorted", "text", "sounds", "empty", "nothing", "hostile"])
def test_a_report_opens_without_errors_and_fits_any_width(browser, reports, name, dark):
    report, path = reports(name)
    assert path.stat().st_size == len(report.html.encode()) < 5_000_000
    tab = browser.tab()
    for width in WIDTHS:
        tab.open(path, width=width, dark=dark, mobile=width < 500)
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth"), width
        # What sticks out is in a box that scrolls by itself.
        wide = "[...document.querySelectorAll('main *')].filter(e => !e.closest('.scroll, pre, svg') && "
        assert tab.evaluate(f"{wide} e.getBoundingClientRect().right > innerWidth + 1).length") == 0, width
    assert tab.messages == []
    assert tab.evaluate("document.querySelectorAll('.verdict').length") == 3


def test_what_pictures_say_is_what_was_counted(browser, reports):
    report, tab = opened(browser, reports, "sorted")
    facts = report.facts
    counts = {row["class"]: int(row["samples"].replace(",", "")) for row in titles(tab, "balance")}
    assert counts == dict.fromkeys(CLASSES, 400)
    skew = {mark["GPUs (ranks)"]: float(mark["chi-squared"].replace(",", "")) for mark in titles(tab, "skew")}
    ideal = skew.pop("drawn at random")
    expected = {counted(mix.world_size, "GPU"): pytest.approx(mix.chi_squared, rel=0.01) for mix in facts.batches}
    assert (skew, ideal) == (expected, len(CLASSES) - 1)


def test_tables_say_what_pictures_say(browser, reports):
    report, tab = opened(browser, reports, "sorted")
    cells = tab.evaluate(
        "[...document.querySelectorAll('#skew tbody tr')].map(row => [...row.cells].map(cell => +cell.textContent))"
    )
    assert [row[0] for row in cells] == [mix.world_size for mix in report.facts.batches]
    assert [row[1] for row in cells] == [pytest.approx(mix.chi_squared, abs=0.006) for mix in report.facts.batches]


def test_every_picture_has_a_name_and_a_sentence_for_those_who_do_not_see_it(browser, reports):
    _, tab = opened(browser, reports, "sorted")
    tree = tab.call("Accessibility.getFullAXTree")["nodes"]
    pictures = [
        node for node in tree if node.get("role", {}).get("value") in ("image", "img") and "svg" not in str(node)
    ]
    assert len(pictures) > 20
    assert all(node["name"]["value"] for node in pictures)
    assert tab.evaluate("document.querySelectorAll('figure.picture').length") == tab.evaluate(
        "[...document.querySelectorAll('figure.picture')].filter(each => each.querySelector('svg[role=img]') "
        "&& each.querySelector('figcaption p').textContent.length > 30 && each.querySelector('tbody td')).length"
    )


def test_links_lead_to_what_is_on_the_page(browser, reports):
    for name in ("sorted", "text", "empty"):
        _, tab = opened(browser, reports, name)
        broken = "[...document.querySelectorAll('a[href]')].filter(a => !document.getElementById(a.hash.slice(1)))"
        assert tab.evaluate(f"{broken}.map(a => a.outerHTML)") == []
    _, tab = opened(browser, reports, "text")
    assert "characters" in tab.evaluate(
        "document.querySelector(document.querySelector('#fields td a').hash + ' .why').textContent"
    )


@pytest.mark.parametrize("name", ["hostile", "hostile_tars"])
def test_no_markup_of_a_dataset_becomes_an_element_or_runs(browser, reports, name):
    _, tab = opened(browser, reports, name)
    assert tab.evaluate("window.ran") is None
    assert tab.messages == []
    assert tab.evaluate("document.querySelectorAll('script, iframe, object, embed, base, form').length") == 0
    handlers = "[...document.querySelectorAll('*')].flatMap(e => [...e.attributes]).filter(a => /^on/i.test(a.name))"
    assert tab.evaluate(f"{handlers}.length") == 0
    foreign = (
        "[...document.querySelectorAll('[href], [src]')].map(e => e.getAttribute('href') || e.getAttribute('src'))"
    )
    assert [each for each in tab.evaluate(foreign) if not re.match(r"#|data:(image/(jpeg|png)|audio/|,)", each)] == []
    shown = tab.evaluate("document.body.textContent")
    assert "onerror='window.ran = 7'>" in shown
    assert not set(shown) & {"\u2028", "\u202e", "\x00", "\x1b"}


def test_markup_in_classes_is_counted_as_any_class(browser, reports):
    assert len(reports("hostile")[0].facts.labels.names) == 8
    report, tab = opened(browser, reports, "hostile_tars")
    counts = {row["class"]: int(row["samples"]) for row in titles(tab, "balance")}
    assert counts == {f"<b>{number}</b>": 50 for number in range(4)}
    assert "<svg onload='window.ran = 8'>" in {field.name for field in report.facts.fields}


def test_a_script_in_the_page_would_be_refused(browser, reports, folder):
    """The last line of defence: the policy, should anything ever be escaped wrongly."""
    report, _ = reports("hostile")
    path = folder / "broken.html"
    path.write_text(
        report.html.replace("<main", "<script>window.ran = 9</script><img src=x onerror='window.ran = 9'><main")
    )
    tab = browser.tab()
    tab.open(path)
    assert tab.evaluate("window.ran") is None
    assert any("Content Security Policy" in str(message) for message in tab.messages)


def test_a_person_sees_whether_a_table_was_sorted(reports):
    grades = {name: [each.grade for each in reports(name)[0].verdicts] for name in ("sorted", "shuffled")}
    assert grades == {"sorted": ["good", "bad", "good"], "shuffled": ["good", "good", "good"]}
