import xml.etree.ElementTree as ET

from wdsplit.reporting.charts import Picture, bars, draw, histogram

HOSTILE = "</title></svg><script>alert(1)</script><!-- &amp; ]]> \"'"
SVG = "{http://www.w3.org/2000/svg}"


def picture(spec, name="one"):
    return Picture(name, "A title", "A sentence.", "exact", spec, (), ())


def test_a_picture_has_names_of_its_own_and_texts_of_a_dataset_stay_texts():
    specs = bars([HOSTILE], [3], ("class", "samples")), histogram([0, 1], [2], ("MB", "shards"))
    drawn = draw([picture(spec, str(number)) for number, spec in enumerate(specs)])
    for name, text in drawn.items():
        root = ET.fromstring(text)
        assert (root.get("role"), root.get("aria-labelledby")) == ("img", f"{name}-title")
        assert root.get("aria-describedby") == f"{name}-sentence"
        assert not [element for element in root.iter() if element.get("aria-label") or element.get("id")]
        assert not [element.tag for element in root.iter() if "script" in element.tag] and "url(" not in text
        assert "width" not in root.attrib and root.get("viewBox")
    assert f"class: {HOSTILE}" in "".join(title.text for title in ET.fromstring(drawn["0"]).iter(f"{SVG}title"))
