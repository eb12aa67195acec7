import pickle

import pytest

from wdsplit.errors import InputError
from wdsplit.storage.gathered import GatheredFiles


@pytest.mark.parametrize(
    ("urls", "root", "paths"),
    [
        (["/data/a/0.tar", "/data/a/1.tar"], "/data/a", ["0.tar", "1.tar"]),
        (["/data/a/0.tar"], "/data/a", ["0.tar"]),
        (["/data/ab/0.tar", "/data/ac/0.tar"], "/data", ["ab/0.tar", "ac/0.tar"]),
        (["/data/a/0.tar", "/data/a-b/0.tar", "/data/0.tar"], "/data", ["a/0.tar", "a-b/0.tar", "0.tar"]),
        (["/a.tar", "/b/c.tar"], "", ["a.tar", "b/c.tar"]),
        (["s3://one/0.tar", "s3://two/x/0.tar"], "s3:/", ["one/0.tar", "two/x/0.tar"]),
        (["https://host/d/0.tar?key=1", "https://host/d/1.tar?key=2"], "https://host/d", ["0.tar", "1.tar"]),
    ],
)
def test_files_have_paths_below_the_folder_that_they_have_in_common(urls, root, paths):
    files = GatheredFiles(tuple(urls), "")
    assert (files.root, list(files.places.items())) == (root, list(zip(paths, urls, strict=True)))
    assert pickle.loads(pickle.dumps(files)) == files


@pytest.mark.parametrize("urls", [("/data/0.tar", "s3://b/0.tar"), ("http://h/0.tar", "https://h/0.tar")])
def test_files_of_several_kinds_of_stores_are_refused(urls):
    with pytest.raises(InputError, match="several kinds"):
        GatheredFiles(urls, "")
