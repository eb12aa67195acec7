import re

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from webdataset.tariterators import base_plus_ext

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

TRICKY = [
    "/",
    "//",
    "..",
    ".",
    "_",
    "_x",
    "_x2E",
    "_x5F",
    "_x2",
    "x2E",
    "_pad_/",
    "__",
    " ",
    "\n",
    "é",
    "日本",
    "a",
    "\0",
]

keys = st.one_of(st.text(min_size=1), st.lists(st.sampled_from(TRICKY), min_size=1, max_size=8).map("".join))
safe_keys = st.from_regex(KEY_PATTERN, fullmatch=True).map(lambda key: key.rstrip("\n"))
fields = st.sampled_from(["jpg", "cls", "json", "seg.png", "left-eye.jpg", "a_b", "1"])

with_tricky_keys = [
    example(key)
    for key in (
        "_x2E",
        "_pad_/x",
        "/a",
        "a/",
        "a//b",
        "..",
        "../a",
        "__x2E",
        "_",
        "a b",
        "img.1",
        "a\n",
        "\n",
        "é/_x",
    )
]


def on_tricky_keys(test):
    for decorate in with_tricky_keys:
        test = decorate(test)
    return given(keys)(test)


@example("__train__/img_1")
@example("__/a")
@on_tricky_keys
def test_an_escaped_key_is_split_alike_by_every_reader_and_leads_back(raw):
    key = escape_key(raw)
    assert unescape_key(key) == raw
    assert re.fullmatch(KEY_PATTERN, key)
    assert not is_pad_key(key)
    assert not re.match(WEBDATASET_SKIPS, f"{key}.jpg")


@given(keys, keys)
@example("_x2E", ".")
@example("a/", "a")
@example("img.1", "img_x2E1")
def test_two_keys_are_never_merged(one, other):
    assume(one != other)
    assert escape_key(one) != escape_key(other)


@given(safe_keys)
@example("img_01")
@example("train/n01440764/n01440764_10026")
@example("A-b_C/0")
def test_a_safe_key_stays_as_it_is(raw):
    assume("_x" not in raw and not re.match(WEBDATASET_SKIPS, raw))
    assert escape_key(raw) == raw


@pytest.mark.parametrize(
    ("raw", "key"),
    [
        ("img.1", "img_x2E1"),
        ("a b", "a_x20b"),
        ("é", "_xC3_xA9"),
        ("_x2E", "_x5Fx2E"),
        ("_xyz", "_xyz"),
        ("/a", "_x2Fa"),
        ("a/", "a_x2F"),
        ("a//b", "a/_x2Fb"),
        ("..", "_x2E_x2E"),
        ("_pad_/x", "_pad__x2Fx"),
    ],
)
def test_the_escape_is_part_of_the_format(raw, key):
    assert escape_key(raw) == key


def test_an_empty_key_is_refused():
    with pytest.raises(InputError, match="empty"):
        escape_key("")


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


@pytest.mark.parametrize(
    "name", ["README", "dir/README", "a.", ".jpg", "dir/.jpg", "dir/._a.jpg", "__meta__/a.jpg", "./__a__/b.jpg", ""]
)
def test_a_name_that_names_no_sample_has_no_parts(name):
    assert split_member(name.encode()) is None


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("./a.jpg", (b"a", b"jpg")),
        ("././d.x/a.b.jpg", (b"d.x/a", b"b.jpg")),
        ("/a.jpg", (b"/a", b"jpg")),
        ("__a/b.jpg", (b"__a/b", b"jpg")),
        ("a/__m__/b.jpg", (b"a/__m__/b", b"jpg")),
        ("../a.jpg", (b"../a", b"jpg")),
        ("a.b/c.seg.png", (b"a.b/c", b"seg.png")),
        ("a b.JPG", (b"a b", b"JPG")),
    ],
)
def test_only_a_leading_dot_and_slash_is_dropped(name, parts):
    assert split_member(name.encode()) == parts


@given(st.integers(0, 10**7), st.integers(0, 10**7))
def test_a_pad_key_is_told_by_its_prefix_and_splits_as_any_other(shard, number):
    key = pad_key(shard, number)
    assert is_pad_key(key)
    assert key.startswith(PAD_PREFIX)
    assert split_member(f"{key}.seg.png".encode()) == (key.encode(), b"seg.png")
    assert base_plus_ext(f"{key}.seg.png") == (key, "seg.png")


@pytest.mark.parametrize(
    "name", ["", ".", "jpg.", ".jpg", "a..b", "JPG", "a b", "a/b", "é", "jpg\n", "\njpg", *RESERVED_FIELDS]
)
def test_a_name_that_cannot_be_a_field_is_refused_with_a_remedy(name):
    with pytest.raises(InputError) as caught:
        check_field(name)
    assert repr(name) in caught.value.cause
    assert "--map" in caught.value.remedy
