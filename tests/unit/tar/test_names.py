import re

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from webdataset.tariterators import base_plus_ext

from odd_keys import ESCAPED, PARTS
from tables import is_pad_key
from wdsplit.errors import InputError
from wdsplit.tar.names import (
    KEY_PATTERN,
    PAD_PREFIX,
    RESERVED_FIELDS,
    check_field,
    escape_key,
    pad_key,
    split_member,
    unescape_key,
)

WEBDATASET_SKIPS = r"__[^/]*__($|/)"
"""Names that webdataset takes for its own metadata and leaves out (tariterators.tar_file_iterator, `skip_meta`)."""


keys = st.one_of(st.text(min_size=1), st.lists(st.sampled_from(PARTS), min_size=1, max_size=8).map("".join))
safe_keys = st.from_regex(KEY_PATTERN, fullmatch=True).map(lambda key: key.rstrip("\n"))
fields = st.sampled_from(["jpg", "cls", "json", "seg.png", "left-eye.jpg", "a_b", "1"])


def assert_escaped(raw, key):
    assert unescape_key(key) == raw
    assert re.fullmatch(KEY_PATTERN, key)
    assert not is_pad_key(key)
    assert not re.match(WEBDATASET_SKIPS, f"{key}.jpg")


@given(keys)
@example("../a")
@example("__x2E")
@example("_")
@example("a\n")
@example("\n")
@example("é/_x")
@example("__train__/img_1")
@example("__/a")
def test_an_escaped_key_is_split_alike_by_every_reader_and_leads_back(raw):
    assert_escaped(raw, escape_key(raw))


@given(safe_keys)
@example("img_01")
@example("train/n01440764/n01440764_10026")
@example("A-b_C/0")
def test_a_safe_key_stays_as_it_is(raw):
    assume("_x" not in raw and not re.match(WEBDATASET_SKIPS, raw))
    assert escape_key(raw) == raw


@pytest.mark.parametrize(("raw", "key"), ESCAPED.items())
def test_the_escape_is_part_of_the_format(raw, key):
    assert escape_key(raw) == key
    assert_escaped(raw, key)


@given(keys, fields)
def test_a_member_that_we_write_splits_into_its_key_and_field_as_webdataset_splits_it(raw, field):
    key = escape_key(raw)
    assert split_member(f"{key}.{field}".encode()) == (key.encode(), field.encode())
    assert base_plus_ext(f"{key}.{field}") == (key, field)


@given(st.text(alphabet="a./_-é \n", max_size=12))
def test_a_member_of_others_splits_as_webdataset_splits_it_or_names_no_sample(name):
    parts = split_member(name.encode())
    if parts is not None:
        bare = re.sub(r"^(\./)*", "", name)
        theirs = re.match(r"^((?:.*/|)[^.]+)[.]([^/]*)$", bare, re.DOTALL)
        assert (parts[0].decode(), parts[1].decode()) == theirs.groups()
        return
    base = name.rpartition("/")[2]
    hidden, bare, empty = base.startswith("."), "." not in base, base.partition(".")[2] == ""
    assert hidden or bare or empty or re.match(r"(\./)*__[^/]*__/", name)


@pytest.mark.parametrize(("shard", "number"), [(0, 0), (10**7, 10**7)])
def test_a_pad_key_is_told_by_its_prefix_and_splits_as_any_other(shard, number):
    key = pad_key(shard, number)
    assert is_pad_key(key) and key.startswith(PAD_PREFIX)
    assert split_member(f"{key}.seg.png".encode()) == (key.encode(), b"seg.png")
    assert base_plus_ext(f"{key}.seg.png") == (key, "seg.png")


@pytest.mark.parametrize("name", ["", "jpg.", ".jpg", "a..b", "JPG", "a b", "a/b", "é", "jpg\n", *RESERVED_FIELDS])
def test_a_name_that_cannot_be_a_field_is_refused_with_a_remedy(name):
    with pytest.raises(InputError, match="empty"):
        escape_key("")
    with pytest.raises(InputError) as caught:
        check_field(name)
    assert repr(name) in caught.value.cause
    assert "--map" in caught.value.remedy
