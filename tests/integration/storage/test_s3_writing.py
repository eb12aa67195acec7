import os
import signal
import threading
from base64 import b64encode
from hashlib import md5

import numpy as np
import orjson
import pytest

from faults import (
    FAST,
    CutUpload,
    Delay,
    ErrorAnswer,
    Flip,
    LoseAnswer,
    Other,
    Stall,
    expired_token,
    internal_error,
    slow_down,
)
from s3server import KEY_ID, SECRET
from stops import stopped_at
from tables import files_of, mixed_table, noted_shards, session_processes, start_script, wait_until, write_files
from wdsplit.conversion.convert import convert, convert_splits
from wdsplit.conversion.plan.options import ConvertOptions
from wdsplit.errors import ConvertError, DatasetNotFoundError, InputError, StorageError
from wdsplit.shards.manifest import HEADER_NAME, RUN_FOLDER
from wdsplit.storage.s3 import S3Storage
from wdsplit.storage.s3_options import S3Options

PART_BYTES = 20_000
SHARDS = 6


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr("wdsplit.storage.s3._PART_BYTES", PART_BYTES)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Return a folder of tables without JSON, so that jobs are threads."""
    table = mixed_table(150).select(["image", "caption", "label"])
    folder = tmp_path_factory.mktemp("source")
    write_files(folder, table, [60, 1, 39], 20)
    return str(folder)


@pytest.fixture(scope="module")
def expected(source, tmp_path_factory):
    """Return what a conversion to the disk writes."""
    output = tmp_path_factory.mktemp("expected") / "out"
    convert(source, output, chosen())
    return files_of(output)


def chosen(jobs=1, emit=(), splits=None, overwrite=False, resume=False, **plan):
    return ConvertOptions(
        **{"shards": SHARDS, "shuffle": False, **plan},
        jobs=jobs,
        emit=emit,
        splits=splits or {},
        overwrite=overwrite,
        resume=resume,
        memory=1,
    )


def written(bucket):
    """Return the files of the output in a bucket, without what the server has left of uploads."""
    return {name: data for name, data in files_of(bucket.folder / "out").items() if ".rclone_temp" not in name}


def of(url, **options):
    return S3Storage(url, S3Options.of(FAST | options))


def uploads_of(bucket):
    """Return the keys of the uploads that are under way; the server knows no list where there never was one."""
    try:
        answer = S3Storage(bucket.url).ask("list_multipart_uploads", bucket.url)
    except StorageError as error:
        assert error.found == "NoSuchUpload"
        return []
    return [upload["Key"] for upload in answer.get("Uploads", ())]


# Objects


@pytest.mark.parametrize("size", [0, PART_BYTES, PART_BYTES + 1, 9 * PART_BYTES + 5])
def test_what_is_written_is_read_and_small_objects_take_one_request(bucket, fault_proxy, size):
    data = np.random.default_rng(size).bytes(size)
    with of(bucket.url).publish("sub/a") as file:
        for first in range(0, size, 13_001):
            piece = bytearray(data[first : first + 5000])
            file.write([memoryview(piece), data[first + 5000 : first + 13_001], b""])
            piece[:] = bytes(len(piece))  # it may change once it is written
        assert files_of(bucket.folder).get("sub/a") is None
    assert (bucket.folder / "sub/a").read_bytes() == data
    parts = -(-size // PART_BYTES)
    assert len(fault_proxy.exchanges) == (1 if parts <= 1 else parts + 2)
    assert uploads_of(bucket) == []


def test_parts_grow_so_that_there_are_never_too_many(bucket, fault_proxy, monkeypatch):
    monkeypatch.setattr("wdsplit.storage.s3._PARTS_PER_SIZE", 2)
    data = np.random.default_rng(0).bytes(13 * PART_BYTES)
    with of(bucket.url).publish("a") as file:
        file.write([data])
    sizes = {e.request.path: e.bytes_received for e in fault_proxy.exchanges if "partNumber" in e.request.path}
    assert sorted(sizes.values()) == [size * PART_BYTES for size in (1, 1, 2, 2, 3, 4)]
    assert (bucket.folder / "a").read_bytes() == data


def test_who_writes_faster_than_parts_are_sent_waits(bucket, fault_proxy):
    fault_proxy.plan = lambda request: Delay(0.05) if "partNumber" in request.path else None
    with of(bucket.url).publish("a") as file:
        for written in range(1, 13):
            file.write([bytes(PART_BYTES)])
            assert written - sum(e.status is not None for e in fault_proxy.exchanges) <= 5
    assert sum(e.fault is not None for e in fault_proxy.exchanges) == 12


def test_what_is_not_finished_leaves_nothing(bucket):
    with pytest.raises(KeyboardInterrupt), of(bucket.url).publish("a") as file:
        file.write([bytes(5 * PART_BYTES + 1)])
        raise KeyboardInterrupt
    assert files_of(bucket.folder) == {}
    assert uploads_of(bucket) == []


def test_a_part_that_cannot_be_sent_before_the_deadline_ends_the_upload(bucket, fault_proxy):
    fault_proxy.plan = lambda request: slow_down(retry_after=1000) if "partNumber=2" in request.path else None
    with pytest.raises(StorageError, match="does not answer") as caught, of(bucket.url).publish("a") as f:
        f.write([bytes(10 * PART_BYTES)])
    assert caught.value.place == f"{bucket.url}/a, upload part 2"
    fault_proxy.plan = lambda request: None
    assert uploads_of(bucket) == []


@pytest.mark.parametrize("refused", [True, False])
def test_folders_and_objects_are_removed_by_few_requests_or_one_by_one(bucket, fault_proxy, monkeypatch, refused):
    monkeypatch.setattr("wdsplit.storage.s3._MAX_KEYS_PER_REMOVAL", 3)
    storage, stay = of(f"{bucket.url}/x"), {"x/a.idx", "x/folderish", "xy"}
    gone = {"x/a", *(f"x/folder/{i}/é" for i in range(7))}
    for key in stay | gone:
        with of(bucket.url).publish(key) as file:
            file.write([b"1"])
    if refused:
        answer = ErrorAnswer("501 Not Implemented", "NotImplemented", "no")
        fault_proxy.plan = lambda request: answer if "?delete" in request.path else None
    before = len(fault_proxy.exchanges)
    storage.remove("a", "folder", "not there")
    assert set(files_of(bucket.folder)) == stay
    assert len(fault_proxy.exchanges) - before == (3 + 8 + 2 if refused else 3 + 2)
    assert storage.sizes() == {"a.idx": 1, "folderish": 1}


@pytest.mark.parametrize(
    ("size", "fault"),
    [
        (100, Flip(50, of_request=True)),
        (5 * PART_BYTES, ErrorAnswer("400 Bad Request", "BadDigest", "The Content-MD5 did not match")),
        (5 * PART_BYTES, Other(method="PUT", fields=(("ETag", None),))),
    ],
)
def test_what_was_damaged_on_its_way_is_refused_by_the_store_and_sent_again(bucket, fault_proxy, size, fault):
    """Real damage of a small object only: rclone forgets an upload if it refuses a part that others wait for."""
    data, left = os.urandom(size), [fault]
    fault_proxy.plan = lambda request: left.pop() if request.method == "PUT" and left else None
    with of(bucket.url).publish("x") as file:
        file.write([data])
    assert (bucket.folder / "x").read_bytes() == data and left == []
    puts = [exchange for exchange in fault_proxy.exchanges if exchange.request.method == "PUT"]
    digests = [md5(data[first : first + PART_BYTES]).digest() for first in range(0, size, PART_BYTES)]
    assert {put.request.head["Content-MD5"] for put in puts} == {b64encode(each).decode().lower() for each in digests}
    assert len(puts) == len(digests) + 1 and puts[0].status == (200 if isinstance(fault, Other) else 400)


def test_a_store_that_does_not_list_uploads_is_written_to_all_the_same(bucket, fault_proxy):
    answer = ErrorAnswer("501 Not Implemented", "NotImplemented", "no")
    fault_proxy.plan = lambda request: answer if "uploads" in request.path and request.method == "GET" else None
    of(bucket.url).remove_temporary()
    of(bucket.url).remove("a")
    assert [exchange.status for exchange in fault_proxy.exchanges if exchange.fault] == [501, 501]


@pytest.mark.parametrize(
    ("method", "size", "status", "code", "remedy"),
    [
        ("PUT", 9, "403 Forbidden", "AccessDenied", "s3:PutObject"),
        ("POST", 3 * PART_BYTES, "403 Forbidden", "AccessDenied", "s3:PutObject"),
        ("PUT", 9, "503 Service Unavailable", "QuotaExceeded", "quota"),
        ("PUT", 9, "507 Insufficient Storage", "Full", "free space"),
    ],
)
def test_a_store_that_refuses_what_is_written_is_told_at_once(bucket, fault_proxy, method, size, status, code, remedy):
    fault_proxy.plan = lambda request: ErrorAnswer(status, code, "Some message") if request.method == method else None
    with pytest.raises(StorageError, match="refused the request") as caught, of(bucket.url).publish("x") as file:
        file.write([bytes(size)])
    assert remedy in caught.value.remedy and "anon" not in caught.value.remedy
    assert sum(exchange.fault is not None for exchange in fault_proxy.exchanges) == 1


# Converting


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"jobs": 2, "shuffle": True, "emit": ("dali", "energon", "wids")},
        {"splits": {"train": 0.8, "val": 0.2}, "split_by": "label", "pad": "none"},
    ],
    ids=str,
)
def test_a_conversion_to_a_bucket_writes_the_bytes_of_one_to_the_disk(bucket, source, tmp_path, options, monkeypatch):
    monkeypatch.setattr("wdsplit.conversion.shuffle.needs._LEAST_BYTES", 8000)
    monkeypatch.setattr("wdsplit.conversion.shuffle.steps._MAX_GATHERED", 3)
    function = convert_splits if "splits" in options else convert
    function(source, tmp_path / "out", chosen(**options))
    function(source, f"{bucket.url}/some/out", chosen(**options))
    assert files_of(bucket.folder / "some/out") == files_of(tmp_path / "out")
    assert uploads_of(bucket) == []


def test_a_bucket_is_converted_into_a_bucket_that_knows_no_credentials(bucket, source, expected):
    raw = bucket.put(source, "raw")
    convert(raw, f"{bucket.url}/out", chosen(jobs=2))
    found = files_of(bucket.folder / "out")
    assert found.keys() == expected.keys()
    assert all(found[name] == expected[name] for name in found if name != HEADER_NAME)
    assert not [name for name, data in found.items() if KEY_ID.encode() in data or SECRET.encode() in data]
    with pytest.raises(InputError, match="inside the output"):
        convert(raw, bucket.url, chosen(overwrite=True))


@pytest.mark.slow
def test_spilled_rows_are_read_by_ranges_and_neighbours_by_one_request(bucket, source, fault_proxy, monkeypatch):
    monkeypatch.setattr("wdsplit.conversion.shuffle.needs._LEAST_BYTES", 8000)
    convert(source, f"{bucket.url}/out", chosen(shuffle=True))
    reads = [e.request for e in fault_proxy.exchanges if e.request.method == "GET" and ".arrow" in e.request.path]
    runs = {request.path for request in reads}
    assert len(runs) > 5 and all(request.range for request in reads)
    stretches_of_a_shard = 4
    assert len(reads) <= len(runs) * SHARDS * (1 + stretches_of_a_shard)


FAULTS = {
    "cut at once": CutUpload(0),
    "cut": CutUpload(50),
    "answer lost": LoseAnswer(),
    "slow down": slow_down(),
    "internal error": internal_error(),
}
SLOW_FAULTS = {
    "slow down, try later": slow_down(retry_after=1),
    "stalled": Stall(0),
    "late": Delay(3),
    "expired": expired_token(),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", [*FAULTS.values(), *SLOW_FAULTS.values()], ids=[*FAULTS, *SLOW_FAULTS])
def test_a_conversion_survives_faults_of_all_kinds(bucket, source, expected, fault_proxy, fault):
    seen, lock = set(), threading.Lock()

    def is_chosen(request):
        return "000002.tar?" in request.path and ("partNumber=2" in request.path or request.method == "POST")

    def plan(request):
        what = (request.method, request.path.partition("uploadId")[0])
        with lock:
            if what in seen or (fault in SLOW_FAULTS.values() and not is_chosen(request)):
                return None
            seen.add(what)
        return fault

    fault_proxy.plan = plan
    times = FAST | ({"timeout_s": 2} if isinstance(fault, Stall | Delay) else {})
    convert(source, f"{bucket.url}/out", chosen(jobs=2), storage_options=times)
    fault_proxy.plan = lambda request: None
    assert len(seen) >= 3
    assert written(bucket) == expected
    assert uploads_of(bucket) == []


@pytest.mark.slow
def test_a_server_that_forgets_uploads_ends_the_run_which_can_be_resumed(
    bucket, source, expected, s3_server, fault_proxy
):
    def plan(request):
        if "000003.tar" in request.path and "partNumber=2&" in request.path and not stopped:
            stopped.append(request)
            s3_server.stop()
            s3_server.start()

    stopped = []
    fault_proxy.plan = plan
    with pytest.raises(StorageError, match="no longer knows") as caught:
        convert(source, f"{bucket.url}/out", chosen(), storage_options=FAST)
    assert "--resume" in caught.value.remedy
    complete = {name: data for name, data in written(bucket).items() if not name.startswith(RUN_FOLDER)}
    assert complete.items() <= expected.items() and HEADER_NAME not in complete
    convert(source, f"{bucket.url}/out", chosen(resume=True), storage_options=FAST)
    assert written(bucket) == expected


@pytest.mark.slow
def test_a_store_that_does_not_answer_any_more_is_not_waited_for_twice(
    bucket, source, expected, s3_server, fault_proxy
):
    def plan(request):
        if "000003.tar" in request.path:
            s3_server.stop()

    fault_proxy.plan = plan
    with pytest.raises(StorageError, match="does not answer"):
        convert(source, f"{bucket.url}/out", chosen(), storage_options=FAST | {"deadline_s": 10})
    fault_proxy.plan = lambda request: None
    s3_server.start()
    convert(source, f"{bucket.url}/out", chosen(resume=True), storage_options=FAST)
    assert written(bucket) == expected


CONVERT = f"""
import sys
import wdsplit.storage.s3
from wdsplit.conversion.convert import convert
from wdsplit.conversion.plan.options import ConvertOptions

if __name__ == "__main__":
    wdsplit.storage.s3._PART_BYTES = {PART_BYTES}
    source, output, jobs = sys.argv[1:]
    convert(source, output, ConvertOptions(shards={SHARDS}, shuffle=False, jobs=int(jobs)))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "moment",
    ["plan.json", "000000.tar?uploads", "partNumber=3", "000002.tar?uploadId", "-00000003-", "shards.parquet"],
)
def test_a_converter_that_is_killed_leaves_no_lock_and_no_half_object_and_is_resumed(
    bucket, source, expected, fault_proxy, moment
):
    scripts = []

    def plan(request):
        if moment in request.path and request.method in ("PUT", "POST") and scripts:
            os.killpg(scripts.pop().pid, signal.SIGKILL)

    fault_proxy.plan = plan
    script = start_script(CONVERT, source, f"{bucket.url}/out", 1 + len(moment) % 2)
    scripts.append(script)
    script.communicate()
    assert script.returncode == -signal.SIGKILL
    wait_until(lambda: not session_processes(script.pid), "no process is left")
    found = files_of(bucket.folder / "out")
    whole = (".tar", ".places", ".tar.parquet")
    assert all(data == expected[name] for name, data in found.items() if name.endswith(whole))
    assert HEADER_NAME not in found
    convert(source, f"{bucket.url}/out", chosen(resume=f"{RUN_FOLDER}/plan.json" in found))
    assert written(bucket) == expected
    assert uploads_of(bucket) == []


@pytest.mark.slow
def test_what_is_there_is_listed_once_when_a_run_is_resumed(bucket, source, fault_proxy):
    asked = {}
    for shards in (5, 25):
        out = f"{bucket.url}/{shards}"
        with stopped_at(done=shards // 2) as progress:
            convert(source, out, chosen(shards=shards), progress)
        assert len(noted_shards(bucket.folder / str(shards))) >= shards // 2
        num_notes = len(list((bucket.folder / str(shards) / RUN_FOLDER / "shards").iterdir()))
        before = len(fault_proxy.exchanges)
        manifest = convert(source, out, chosen(shards=shards, resume=True))
        assert len(manifest.shards) == shards
        requests = [exchange.request for exchange in fault_proxy.exchanges[before:]]
        notes = [r for r in requests if f"{RUN_FOLDER}/shards/" in r.path and ".json" in r.path and r.method == "GET"]
        assert len(notes) == num_notes
        written = [r for r in requests if r.method == "PUT" or ".tar?up" in r.path or "plan.json" in r.path]
        asked[shards] = len(requests) - len(notes) - len(written)
    assert asked[5] == asked[25] < 40


def test_the_manifest_is_not_written_when_the_store_has_lost_a_shard(bucket, source, expected):
    out = f"{bucket.url}/out"

    def lose(progress):
        if progress.done == SHARDS:
            (bucket.folder / "out/000001.tar").unlink()

    with pytest.raises(StorageError, match="lost a file") as caught:
        convert(source, out, chosen(), lose)
    assert caught.value.url == f"{out}/000001.tar"
    assert HEADER_NAME not in files_of(bucket.folder / "out")
    convert(source, out, chosen(resume=True))
    assert written(bucket) == expected


@pytest.mark.parametrize("when", [1, SHARDS])
def test_a_run_whose_output_another_machine_has_begun_anew_stops_and_leaves_it_alone(bucket, source, when):
    note = orjson.dumps({"plan": "another"})
    run, client = bucket.folder / "out" / RUN_FOLDER, S3Storage(bucket.url)

    def take_over(progress):
        if progress.done == when:
            (run / "plan.json").write_bytes(note)
            client.ask("create_multipart_upload", "", Key="out/000005.tar")

    with pytest.raises(ConvertError, match="another run") as caught:
        convert(source, f"{bucket.url}/out", chosen(), take_over)
    assert caught.value.place == f"{bucket.url}/out"
    found = files_of(bucket.folder / "out")
    assert found[f"{RUN_FOLDER}/plan.json"] == note
    assert uploads_of(bucket) == ["out/000005.tar"]
    assert sorted(name for name in found if name.endswith(".tar")) == [f"{i:06d}.tar" for i in range(when)]
    assert HEADER_NAME not in found


def test_outputs_that_cannot_be_are_refused_before_anything_is_written(bucket, source):
    (bucket.folder / "file").write_bytes(b"x")
    with pytest.raises(InputError, match="is a file"):
        convert(source, f"{bucket.url}/file", chosen())
    with pytest.raises(DatasetNotFoundError, match="no such bucket"):
        convert(source, "s3://no-such-bucket/out", chosen())
    with pytest.raises(InputError, match="contains credentials") as caught:
        convert(source, "s3://KEYTHATNOBODYSEES:secret@bucket/out", chosen())
    assert "NOBODY" not in str(caught.value)
    assert files_of(bucket.folder) == {"file": b"x"}
