"""Files that only one of several writers can create, on all storages that can be written."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from faults import ErrorAnswer, LoseAnswer
from tables import files_below
from wdsplit.storage.local import LocalStorage
from wdsplit.storage.opening import open_storage
from wdsplit.storage.s3 import S3Storage

REFUSED = ErrorAnswer("412 Precondition Failed", "PreconditionFailed", "At least one of the conditions did not hold")
UNKNOWN = ErrorAnswer("501 Not Implemented", "NotImplemented", "A header implies functionality that is not there")


@pytest.fixture(params=["disk", "disk without links", "s3", "memory"])
def storage(request, tmp_path, monkeypatch):
    if request.param == "s3":
        return open_storage(f"{request.getfixturevalue('bucket').url}/train")
    if request.param == "memory":
        request.getfixturevalue("memory")
        return open_storage("memory://train")
    if request.param == "disk without links":

        def refuse(*paths):
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr("wdsplit.storage.local.os.link", refuse)
    return open_storage(str(tmp_path))


def test_a_file_is_created_once_and_never_replaced(storage):
    assert storage.create("versions/2.json", b"first") is True
    assert storage.create("versions/2.json", b"second") is False
    assert storage.create("versions/2.json", b"first") is True  # as after a lost answer
    assert storage.read("versions/2.json") == b"first"
    assert storage.list("versions") == ["2.json"]


def test_of_many_writers_one_creates_the_file(tmp_path):
    writers = [LocalStorage(str(tmp_path)) for _ in range(8)]
    for number in range(20):
        with ThreadPoolExecutor(len(writers)) as pool:
            made = list(
                pool.map(lambda each, n=number: writers[each].create(f"{n}", b"%d" % each), range(len(writers)))
            )
        assert sum(made) == 1
        assert writers[0].read(f"{number}") == b"%d" % made.index(True)
    assert len(files_below(tmp_path)) == 20


@pytest.mark.parametrize("exists", [False, True])
def test_a_store_with_conditions_decides_between_writers_that_saw_no_file(bucket, fault_proxy, monkeypatch, exists):
    url = f"{bucket.url}/train"
    asked = []

    def refuse_second(request):
        if request.method == "PUT":
            asked.append(request.head["If-None-Match"])
            return REFUSED if exists else None
        return None

    if exists:
        open_storage(url).create("2.json", b"first")
    fault_proxy.plan = refuse_second
    asked.clear()
    monkeypatch.setattr(S3Storage, "size", lambda storage, path: None)
    assert open_storage(url).create("2.json", b"second") is not exists
    assert asked == ["*"]
    assert open_storage(url).read("2.json") == (b"first" if exists else b"second")


def test_a_lost_answer_and_a_store_without_conditions_do_not_lose_the_file(bucket, fault_proxy):
    storage, seen = open_storage(f"{bucket.url}/train"), []

    def lose_first(request):
        if request.method != "PUT":
            return None
        seen.append(request)
        return LoseAnswer() if len(seen) == 1 else REFUSED

    fault_proxy.plan = lose_first
    assert storage.create("2.json", b"first") is True and len(seen) == 2

    def knows_none(request):
        return UNKNOWN if request.method == "PUT" and request.head["If-None-Match"] else None

    fault_proxy.plan = knows_none
    assert storage.create("3.json", b"third") is True
    assert storage.read("3.json") == b"third"
