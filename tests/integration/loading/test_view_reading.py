"""What is read of a view: its samples, few bytes beside them, and no more requests than without a view."""

import numpy as np
import pytest

import wdsplit
from faults import Flip
from made_datasets import converted, payloads_table
from orders import masks_of
from tools.bench import billion
from wdsplit.errors import CorruptDataError
from wdsplit.loading import announcing
from wdsplit.order.bundles import Grouping, Groups, Packing, Packs
from wdsplit.order.selection import Selection
from wdsplit.order.views import View
from wdsplit.shards import views
from wdsplit.shards.files import read_manifest
from wdsplit.shards.places import read_places
from wdsplit.shards.views import write_view
from wdsplit.storage.local_file import LocalFile
from wdsplit.storage.opening import open_storage

NUM_ROWS, SHARDS, WINDOW = 240, 8, 10
SMALL, LARGE = 1_000, 20_000


@pytest.fixture(scope="session")
def both_sizes(tmp_path_factory):
    """Return datasets by the bytes of their samples: 3 windows in each of 8 shards, on 4 lanes."""
    made = {}
    for num_bytes in (SMALL, LARGE):
        folder, table = tmp_path_factory.mktemp("viewed"), payloads_table(NUM_ROWS, num_bytes)
        made[num_bytes] = converted(folder, table, shards=SHARDS, lanes=4, window=WINDOW)
    return made


@pytest.fixture
def made(both_sizes, request):
    return both_sizes[request.param]


@pytest.fixture
def remote(bucket, made):
    """Return the URL of a dataset in a bucket."""
    return bucket.put(made)


def view(kind, seed=0):
    return View(kind, Selection.of_masks(masks_of(kind, [NUM_ROWS // SHARDS] * SHARDS, seed)))


def samples_of(path, chosen, num_workers=0, **options):
    """Return what a loader gives of a view: positions, keys and payloads."""
    dataset = wdsplit.Dataset(path, view=chosen, rank=0, world_size=1, **options)
    loader = wdsplit.Loader(dataset.to_tuple("__position__", "__key__", "bin", "__pad__"), 8, num_workers=num_workers)
    columns = [zip(*(list(column) for column in batch), strict=True) for batch in loader]
    return [(int(position), key, payload, bool(pad)) for batch in columns for position, key, payload, pad in batch]


def offsets_of(path):
    """Return where the samples of each shard begin, and where the last ends."""
    storage = open_storage(str(path))
    manifest = read_manifest(storage)
    names = manifest.field_names
    return [read_places(storage, manifest.shards[number], names).offsets() for number in range(SHARDS)]


def selected_bytes(path, chosen):
    """Return the bytes of all selected samples, in the shards."""
    places = map(chosen.selection.places, range(SHARDS))
    return sum(int(np.diff(offsets)[some].sum()) for offsets, some in zip(offsets_of(path), places, strict=True))


def window_bytes(path, chosen):
    """Return the bytes from the first to the last sample of all windows, and how many windows there are."""
    num_bytes, count = 0, 0
    for shard, offsets in enumerate(offsets_of(path)):
        samples = chosen.selection.places(shard)
        for first in range(0, len(samples), WINDOW):
            num_bytes += int(offsets[samples[first : first + WINDOW][-1] + 1] - offsets[samples[first]])
            count += 1
    return num_bytes, count


@pytest.mark.parametrize(
    ("kind", "made"),
    [("every third", SMALL), ("one a shard", LARGE), ("every third", LARGE), ("uneven", LARGE)],
    indirect=["made"],
)
def test_little_is_fetched_beside_the_samples_of_a_view(remote, made, both_sizes, fault_proxy, kind):
    chosen, shuffle = view(kind), kind == "every third"
    num_samples = len(samples_of(remote, chosen, shuffle=shuffle))
    num_requests, num_bytes = fault_proxy.fetched(".tar")
    in_windows, num_windows = window_bytes(made, chosen)
    ends = 512 * SHARDS
    if made == both_sizes[LARGE]:
        dataset = wdsplit.Dataset(made, view=chosen, shuffle=shuffle, rank=0, world_size=1)
        visits = dataset.shard_distribution().read_amplification  # lanes may part windows of an uneven view
        assert num_bytes <= 1.2 * visits * selected_bytes(made, chosen) + ends
        assert num_requests <= num_samples
    else:  # gaps between small samples are read: a request takes longer
        assert num_bytes <= 2 * in_windows + ends
        assert num_requests <= 2 * num_windows  # a window may be in two lanes


@pytest.mark.parametrize("made", [LARGE], indirect=True)
def test_little_is_read_of_a_disk_beside_the_samples_of_a_view(made, monkeypatch):
    chosen, num_read = view("every third"), []

    def counting(name, size_of):
        real = getattr(LocalFile, name)

        def counted(file, what, *rest):
            num_read.append(size_of(what, *rest) if str(file._path).endswith(".tar") else 0)
            return real(file, what, *rest)

        monkeypatch.setattr(LocalFile, name, counted)

    counting("read", lambda offset, size: size)
    counting("read_into", lambda buffer, offset: len(buffer))
    num_pads = sum(pad for *_, pad in samples_of(made, chosen))  # which are read again
    assert 0 < sum(num_read) <= 1.2 * selected_bytes(made, chosen) + 512 * SHARDS + num_pads * 21_000


@pytest.mark.parametrize("made", [LARGE], indirect=True)
def test_only_samples_of_the_view_are_verified_and_what_was_damaged_on_its_way_is_fetched_again(
    remote, made, bucket, fault_proxy
):
    chosen, flipped = view("every third"), []

    def plan(request):
        if request.path.endswith("/000001.tar") and not flipped:
            flipped.append(request)
            return Flip(3)
        return None

    fault_proxy.plan = plan
    assert samples_of(remote, chosen, verify=True) == samples_of(made, chosen)
    assert flipped
    with open(bucket.folder / "train" / "000001.tar", "r+b") as shard:
        shard.seek(int(offsets_of(made)[1][4]) + 3)  # the name in a header of a sample that the view leaves out
        shard.write(b"\xff")
    assert samples_of(remote, chosen, verify=True) == samples_of(made, chosen)
    with pytest.raises(CorruptDataError, match="a sample was changed"):
        samples_of(remote, None, verify=True)


@pytest.mark.parametrize("block", [WINDOW, 0])
@pytest.mark.parametrize("made", [LARGE], indirect=True)
def test_blocks_of_packs_and_groups_are_fetched_once_and_groups_of_a_shard_sample_by_sample(
    remote, made, fault_proxy, block
):
    rows = np.arange(NUM_ROWS // SHARDS)
    selection = Selection.of_masks([rows >= 0] * SHARDS)
    packs = Packs(selection, np.tile(rows // WINDOW * 4 + rows % 4, SHARDS), WINDOW, Packing(9, False))
    groups = Groups(selection, np.tile(rows % 2, SHARDS), block, Grouping(5, 0, ("even", "odd")))
    for units in (packs, groups):
        before = np.array(fault_proxy.fetched(".tar"))
        dataset = wdsplit.Dataset(remote, view=View("units", units), rank=0, world_size=1)
        keys = [s["__key__"] for batch in wdsplit.Loader(dataset, 1, collate_fn=list) for unit in batch for s in unit]
        num_requests, num_bytes = np.array(fault_proxy.fetched(".tar")) - before
        assert len(set(keys)) == len(keys) == NUM_ROWS
        assert num_bytes <= 1.2 * NUM_ROWS * (LARGE + 1024) + 512 * SHARDS
        assert num_requests <= (NUM_ROWS if units.block == 0 else 3 * SHARDS)


def test_a_view_without_samples_has_no_steps_and_says_so(both_sizes, caplog, monkeypatch):
    monkeypatch.setattr(announcing, "_announced", set())
    loader = wdsplit.Loader(wdsplit.Dataset(both_sizes[SMALL], view=view("nothing")), 8, num_workers=1)
    assert len(loader) == 0
    assert list(loader) == []
    (told,) = (record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    assert "there are no batches in epoch 0: view 'nothing'" in told and told.endswith("selects no samples")


# Views that are too large to read whole

PARTED_SHARDS, PARTED_SAMPLES, RANKS = 400, 500, 64


def batches_of(dataset, steps, state=None):
    """Return the positions and keys of the first batches of packs, and the loader."""
    loader = wdsplit.Loader(dataset, 4, collate_fn=list, output="numpy")
    if state is not None:
        loader.load_state_dict(state)
    batches = iter(loader)
    keys = [[(each["__position__"], each["__key__"]) for pack in next(batches) for each in pack] for _ in range(steps)]
    return keys, loader


def test_of_a_large_view_in_a_bucket_a_rank_reads_the_parts_of_shards_that_it_visits(bucket, fault_proxy, monkeypatch):
    folder, url = bucket.folder / "train", f"{bucket.url}/train"
    billion.make(folder, PARTED_SHARDS, PARTED_SAMPLES, 2)
    chosen = np.arange(PARTED_SAMPLES) % 10 > 0
    bits, packs = np.packbits(chosen, bitorder="little"), np.arange(chosen.sum()) // 5
    totals = np.full(PARTED_SHARDS, PARTED_SAMPLES)
    selection = Selection(totals, totals * 9 // 10, np.tile(bits, PARTED_SHARDS))
    units = Packs(selection, np.tile(packs, PARTED_SHARDS), 100, Packing(2_000, False))
    storage = open_storage(str(folder))
    write_view(storage, read_manifest(storage), "packs", units, {})
    options = {"view": "packs", "rank": 0, "world_size": RANKS, "read_ahead_bytes": 1}
    expected, _ = batches_of(wdsplit.Dataset(url, **options), 12)
    size = next((folder / "views").glob("packs@*")).stat().st_size

    def read(steps, state=None):
        """Return batches, the loader, and the bytes of each answer with a part of the view."""
        before = len(fault_proxy.exchanges)
        found, loader = batches_of(wdsplit.Dataset(url, **options), steps, state)
        asked = [each for each in fault_proxy.exchanges[before:] if each.request.path.endswith(".view")]
        return found, loader, [each.bytes_sent for each in asked]

    assert read(1)[2] == [size]
    monkeypatch.setattr(views, "_WHOLE_BYTES", size - 1)
    found, loader, (_, first, *parts) = read(6)  # the first answer is one that is refused by its size
    assert found == expected[:6]
    assert first == views._FIRST_BYTES + 32 * PARTED_SHARDS  # the line of JSON and the table, and some more
    lanes = billion.LANES // RANKS
    assert set(parts) == {len(bits), int(chosen.sum())}
    assert 2 * lanes <= len(parts) <= 2 * 2 * lanes  # a bitmap and the packs of each shard
    resumed, _, (_, _, *again) = read(6, loader.state_dict())
    assert resumed == expected[6:]
    assert len(again) <= 2 * 2 * lanes
