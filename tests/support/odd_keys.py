"""Keys that must be escaped, and parts of such keys."""

PARTS = [
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

ESCAPED = {
    "img.1": "img_x2E1",
    "a b": "a_x20b",
    "é": "_xC3_xA9",
    "_x2E": "_x5Fx2E",
    "_xyz": "_xyz",
    "/a": "_x2Fa",
    "a/": "a_x2F",
    "a//b": "a/_x2Fb",
    "..": "_x2E_x2E",
    "_pad_/x": "_pad__x2Fx",
}
"""Keys, and what is written for them: that is a part of the format."""
