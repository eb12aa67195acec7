import xml.etree.ElementTree as ET

from wdsplit.reporting.charts import Picture, bars, draw, histogram

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
    spec = histogram([0, 1], [2], ("MB", "shards"))
    root = ET.fromstring(draw([picture(spec)])["one"])
    assert root.get("role") == "img"
    assert (root.get("aria-labelledby"), root.get("aria-describedby")) == ("one-title", "one-sentence")
    assert not [element for element in root.iter() if element.get("aria-label")]
    assert "width" not in root.attrib
    assert root.get("viewBox")


def test_two_pictures_share_no_names_of_elements():
    specs = histogram([0, 1], [2], ("MB", "shards")), bars(["a"], [3], ("class", "samples"))
    for text in draw([picture(spec, str(number)) for number, spec in enumerate(specs)]).values():
        assert not [element for element in ET.fromstring(text).iter() if element.get("id")] and "url(" not in text
