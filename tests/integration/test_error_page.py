"""The page of errors shows what the code raises now."""

import subprocess
import sys

import wdsplit
from tools.make_error_page import CASES, PAGE
from wdsplit import debug

PUBLIC = {getattr(wdsplit, name) for name in wdsplit.__all__ if name.endswith("Error")} | {debug.CheckError}


def test_the_page_of_errors_is_up_to_date():
    # In a process of its own: one that has a client of S3 needs botocore no more, and would not miss it.
    code = "import sys; from tools.make_error_page import page; sys.stdout.buffer.write(page().encode())"
    page = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True).stdout.decode()
    assert page == PAGE.read_text(encoding="utf-8"), "run python -m tools.make_error_page"


def test_the_page_shows_every_public_error():
    assert PUBLIC - {wdsplit.WdsplitError} == {case.error for case in CASES}
