"""The page of errors shows what the code raises now."""

from collections import OrderedDict

import wdsplit
from tools.make_error_page import CASES, PAGE, page
from wdsplit import debug
from wdsplit.storage import s3_client

PUBLIC = {getattr(wdsplit, name) for name in wdsplit.__all__ if name.endswith("Error")} | {debug.CheckError}


def test_the_page_of_errors_is_up_to_date(monkeypatch):
    monkeypatch.setattr(s3_client, "_clients", OrderedDict())  # where there is a client, botocore is not missed
    assert page() == PAGE.read_text(encoding="utf-8"), "run python -m tools.make_error_page"


def test_the_page_shows_every_public_error():
    assert PUBLIC - {wdsplit.WdsplitError} == {case.error for case in CASES}
