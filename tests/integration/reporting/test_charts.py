import xml.etree.ElementTree as ET

from wdsplit.reporting.charts import Picture, bars, draw, heatmap

HOSTILE = "</title></svg><script>alert(1)</script><!-- &amp; ]]> \"'"
SVG = "{http://www.w3.org/2000/svg}"


def picture(spec, name="one"):
    return Picture(name, "A title", "A sentence.", "exact", spec, (), ())


def test_texts_of_a_dataset_stay_texts_in_a_picture():
    spec = bars([HOSTILE], [3], ("class", "samples"))
    root = ET.fromstring(draw([picture(spec)])["one"])
    assert not [element.tag for element in root.iter() if "script" in element.tag]
    assert f"class: {HOSTILE}" in "".join(title.text for title in root.iter(f"{SVG}title"))


def test_a_picture_is_named_by_its_title_and_described_by_its_sentence():
    spec = heatmap([0], ["a"], [[0.5]], ("step", "class", "share"), 1.0)
    root = ET.fromstring(draw([picture(spec)])["one"])
    assert root.get("role") == "img"
    assert (root.get("aria-labelledby"), root.get("aria-describedby")) == ("one-title", "one-sentence")
    assert not [element for element in root.iter() if element.get("aria-label")]
    assert "width" not in root.attrib
    assert root.get("viewBox")


def test_two_pictures_share_no_names_of_elements():
    spec = heatmap([0], ["a"], [[0.5]], ("step", "class", "share"), 1.0)
    drawn = draw([picture(spec, "one"), picture(spec, "two")])
    named = [{element.get("id") for element in ET.fromstring(text).iter()} - {None} for text in drawn.values()]
    assert all(named)
    assert not named[0] & named[1]
    for name, text in drawn.items():
        assert f"url(#{name}-" in text
