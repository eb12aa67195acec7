"""Removing old versions: nothing of erased samples is left, and nothing else is gone."""

import pyarrow as pa
import pyarrow.parquet
import pytest

import wdsplit
from commands import done, refused
from stops import stopped_at
from tables import files_of, write_table
from wdsplit.errors import CorruptDataError, DatasetNotFoundError, InputError, StorageError
from wdsplit.shards.files import read_manifest
from wdsplit.storage.opening import open_storage

PLAN = {"shards": 4, "lanes": 2, "window": 8, "key": "id", "mapping": {"txt": "secret", "cls": "row"}}
ERASED = (3, 17, 18, 39)


def secret(row, what):
    """Return a text that only one row has, long enough to be found nowhere by chance."""
    return f"{what}-{row * 7919:06d}-of-{row:03d}"


def rows_of(first, stop):
    rows = range(first, stop)
    return pa.table(
        {"id": [secret(row, "key") for row in rows], "secret": [secret(row, "payload") for row in rows], "row": rows}
    )


def make(url, num_rows=40, **options):
    """Make a dataset with pads, with columns of texts, and with fields that were joined later."""
    wdsplit.convert(rows_of(0, num_rows), url, **PLAN, keep=("secret",), **options)
    more = {"id": rows_of(0, num_rows)["id"], "later": [secret(row, "column") for row in range(num_rows)]}
    more["bin"] = [secret(row, "joined").encode() for row in range(num_rows)]
    wdsplit.annotate(url, pa.table(more), "id", "more")
    wdsplit.make_view(url, "some", where="row > 1")
    wdsplit.make_view(url, "listed", keys=[secret(row, "key") for row in (3, 4)])
    return url


def erase(url, rows=ERASED):
    return wdsplit.erase(url, keys=[secret(row, "key") for row in rows])


def found_in(files, rows=ERASED):
    """Return the files with anything of some rows, uncompressed or in a table of parquet."""
    texts = [secret(row, what) for row in rows for what in ("key", "payload", "column", "joined")]
    names = [name for name, data in files.items() if any(text.encode() in data for text in texts)]
    for name, data in files.items():
        if name.endswith(".parquet"):
            cells = [str(value) for column in pa.parquet.read_table(pa.BufferReader(data)).columns for value in column]
            names += [name for cell in cells if cell in texts]
    return sorted(set(names))


def rows_in(url, **options):
    return sorted(int(each["cls"]) for each in wdsplit.Samples(url, **options))


@pytest.mark.slow
@pytest.mark.parametrize(("place", "pad"), [("disk", "repeat"), ("s3", "none")], indirect=["place"])
def test_nothing_of_erased_samples_is_left_in_any_file(place, pad):
    url, folder = place
    make(str(folder), 42, pad=pad, emit=("wids", "energon", "dali"))
    erase(url, (40, 3))
    made = wdsplit.convert(rows_of(50, 60), url, append=True)
    spilled = folder / made.history[-1].folder / ".wdsplit-run" / "spill" / "rows.arrow"
    spilled.parent.mkdir(parents=True)  # of an append that ended after it had made the version
    spilled.write_bytes(secret(3, "payload").encode())
    erase(url)
    erased = (*ERASED, 40)
    (folder / "notes.txt").write_bytes(b"mine")
    (folder / "added" / "mine").mkdir()
    (folder / "added" / "mine" / "9.tar").write_bytes(b"mine")
    assert {name.partition("/")[0] for name in found_in(files_of(folder), erased)} >= {"fields", "000000.tar.parquet"}
    left = sorted({*range(42), *range(50, 60)} - {*erased})
    for view in ("some", "listed"):
        wdsplit.drop_view(url, view)  # made for the version before the append
    wdsplit.drop_annotation(url, "more")
    made = wdsplit.gc(url)
    assert (made.kept, made.removed) == ((4,), (1, 2, 3))
    files = files_of(folder)
    assert found_in(files, erased) == [] and files["notes.txt"] == files["added/mine/9.tar"] == b"mine"
    assert rows_in(url) == left and wdsplit.verify(url).problems == ()
    named = set(read_manifest(open_storage(url)).shards.table.column("path").to_pylist())
    assert {name for name in files if name.endswith(".tar")} - {"added/mine/9.tar"} == named
    for suffix in (".places", ".parquet", ".idx"):
        of_shards = {name.removesuffix(suffix) for name in files if name.endswith(f".tar{suffix}")}
        assert {name for name in of_shards if not name.startswith("fields/")} == named
    assert [each.number for each in wdsplit.list_versions(url)] == [4]
    with pytest.raises(InputError, match="gc"):
        wdsplit.Dataset(url, version=1)
    assert wdsplit.gc(url).num_files == 0 and files_of(folder) == files


def test_views_and_annotations_of_the_kept_versions_stay(tmp_path):
    folder = tmp_path / "train"
    url = make(str(folder))
    erase(url)
    erase(url, (5,))
    rows = sorted({*range(40)} - {*ERASED, 5})
    assert wdsplit.gc(url, keep=2).removed == (1,)
    assert found_in(files_of(folder)) == []
    for keep in (2, 1):
        wdsplit.gc(url, keep=keep)
        for version in (2, 3)[-keep:]:
            left = rows if version == 3 else sorted({*rows, 5})
            assert rows_in(url, view="some", version=version) == [row for row in left if row > 1]
            assert rows_in(url, view="listed", version=version) == [4]
            assert rows_in(url, where=f"later != {secret(9, 'column')!r}", version=version) == [
                row for row in left if row != 9
            ]
            samples = wdsplit.Samples(url, join=["more"], version=version)
            assert {each["bin.bin"] if "bin.bin" in each else each["bin"] for each in samples} == {
                secret(row, "joined").encode() for row in left
            }
            assert wdsplit.verify(url, version=version).problems == ()
    assert found_in(files_of(folder), (*ERASED, 5)) == []
    version = wdsplit.Samples(url).manifest.fingerprint[:16]
    assert {name.partition("@")[2][:16] for name in files_of(folder) if "@" in name} == {version}
    erase(url, (6,))  # and what is there can be erased from again
    wdsplit.gc(url)
    wdsplit.convert(rows_of(70, 75), url, append=True)
    assert rows_in(url) == [*(row for row in rows if row != 6), *range(70, 75)]
    assert found_in(files_of(folder), (*ERASED, 5, 6)) == []


def test_a_training_on_a_version_that_is_removed_says_so(tmp_path):
    url = str(tmp_path / "train")
    wdsplit.convert(rows_of(0, 40), url, **PLAN)
    samples = wdsplit.Samples(url)
    erase(url)
    wdsplit.gc(url)
    with pytest.raises(DatasetNotFoundError, match=r"version 1 .* was removed by `wdsplit gc`") as raised:
        list(samples)
    assert "--keep N" in raised.value.remedy


def test_what_only_old_versions_have_is_not_removed_by_the_way(tmp_path):
    url = make(str(tmp_path / "train"))
    wdsplit.convert(rows_of(50, 60), url, append=True)
    message = refused(2, "gc", url)
    assert "annotation 'more'" in message or "view" in message
    wdsplit.make_view(url, "some", update=True)
    wdsplit.drop_view(url, "listed")
    before = files_of(url)
    with pytest.raises(InputError, match="more") as raised:
        wdsplit.gc(url)
    assert "--drop more" in raised.value.remedy and files_of(url) == before
    assert wdsplit.gc(url, keep=2).num_files == 0
    with pytest.raises(InputError, match="keep"):
        wdsplit.gc(url, keep=0)
    wdsplit.drop_annotation(url, "more")
    assert "version 2 kept" in done("gc", url).out
    shown = done("log", url).out
    assert "versions before 2 were removed by `wdsplit gc`" in shown and "+50" not in shown
    assert rows_in(url, view="some") == [*range(2, 40), *range(50, 60)]


@pytest.mark.parametrize("key", ["id", None])
def test_an_append_of_which_all_samples_were_erased_comes_back_only_if_one_says_so(tmp_path, key, caplog):
    url, new = str(tmp_path / "train"), write_table(tmp_path / "new.parquet", rows_of(40, 50))
    wdsplit.convert(rows_of(0, 40), url, **{**PLAN, "key": key})
    wdsplit.convert(new, url, append=True)
    wdsplit.erase(url, keys=[secret(row, "key") if key else f"{row:08d}" for row in range(40, 50)])
    wdsplit.gc(url)
    wdsplit.convert(new, url, append=True)
    assert rows_in(url) == [*range(40)] and "version 2 has added these rows" in caplog.text
    if key:
        for _ in range(2):  # then the latest version has them
            assert wdsplit.convert(new, url, append=True, allow_erased=True).version == 4
    else:  # without keys, nothing tells them from new rows
        with pytest.raises(InputError, match="version 2 of the dataset was made of an input already"):
            wdsplit.convert(new, url, append=True, allow_erased=True)
    wdsplit.convert(rows_of(60, 62), url, append=True)
    assert rows_in(url) == [*range(50 if key else 40), 60, 61] and wdsplit.verify(url).problems == ()


def test_what_was_made_for_other_shards_is_not_kept_with_erased_samples(tmp_path):
    url = make(str(tmp_path / "train"))
    wdsplit.drop_view(url, "some")
    wdsplit.drop_view(url, "listed")
    wdsplit.convert(rows_of(0, 40), url, **{**PLAN, "shards": 3}, overwrite=True)
    assert wdsplit.gc(url).num_files == 0 and "more" in wdsplit.list_annotations(url)
    erase(url)
    with pytest.raises(InputError, match="annotation 'more' belongs to no version") as raised:
        wdsplit.gc(url)
    assert "--drop more" in raised.value.remedy
    wdsplit.drop_annotation(url, "more")
    wdsplit.gc(url)
    assert found_in(files_of(url)) == []


def test_a_damaged_annotation_is_not_passed_over_where_samples_were_erased(tmp_path):
    folder = tmp_path / "train"
    url = make(str(folder))
    erase(url)
    damaged = folder / "fields" / f"more@{wdsplit.Samples(url).manifest.fingerprint[:16]}.json"
    damaged.write_bytes(b"{}")
    with pytest.raises(CorruptDataError, match="--drop more"):
        wdsplit.gc(url)
    wdsplit.drop_annotation(url, "more")
    wdsplit.gc(url)
    assert found_in(files_of(url)) == []


def fail_often(sample):
    if int(sample["cls"]) % 3 == 0:
        raise ValueError(f"no size of {sample['txt']}")
    return {"size": len(sample["txt"])}


def test_a_list_of_samples_that_failed_loses_the_erased_ones(tmp_path):
    url = str(tmp_path / "train")
    wdsplit.convert(rows_of(0, 40), url, **PLAN)
    wdsplit.map_samples(url, fail_often, "size", on_error="skip")
    erase(url)
    wdsplit.gc(url)
    provenance = wdsplit.list_annotations(url)["size"].provenance
    assert found_in(files_of(url)) == []
    assert provenance["num_failed"] == 11 and len(provenance["failed"]) == 11  # of 14, without 3, 18 and 39


def test_what_stopped_writers_have_left_is_removed(tmp_path):
    """Appends, erasing, and annotations that ended at some moment: rows of these are in their files."""
    url = make(str(tmp_path / "train"))
    more = pa.table({"id": rows_of(0, 40)["id"], "bin": [secret(row, "joined").encode() for row in range(40)]})
    left = more.take([row for row in range(40) if row not in ERASED])
    again = [secret(row, "key") for row in (5, 25)]  # what is written first still has the rows 3 and 17
    for write in (
        lambda stop: wdsplit.convert(rows_of(60, 99), url, append=True, progress=stop, samples_per_shard=8),
        lambda stop: wdsplit.annotate(url, more, "id", "again", progress=stop),
        lambda stop: wdsplit.erase(url, keys=again, progress=stop),
    ):
        with stopped_at() as stop:
            write(stop)
    wdsplit.gc(url)  # of one version: only the append and the erasing are ended
    assert not any(name.startswith(("added/", ".wdsplit-erase/")) or ".2-" in name for name in files_of(url))
    assert any(name.startswith("fields/again.run/") for name in files_of(url))

    def collect(progress):
        with pytest.raises(StorageError, match="another process"):
            wdsplit.gc(url)

    wdsplit.erase(url, keys=[secret(row, "key") for row in ERASED], progress=collect)
    with stopped_at() as stop:
        wdsplit.annotate(url, left, "id", "more", overwrite=True, progress=stop)
    wdsplit.gc(url)
    assert found_in(files_of(url)) == [] and not any("again" in name for name in files_of(url))
    assert wdsplit.verify(url).problems == ()
    wdsplit.annotate(url, left, "id", "more", resume=True)  # of a version that is kept
    assert wdsplit.verify(url).problems == ()
