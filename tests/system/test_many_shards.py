"""What a dataset of thousands of shards takes: of what grows with them, a row of the manifest each."""

from collections import Counter

import numpy as np
import pyarrow.parquet as pq

import wdsplit
from tools.bench import billion
from wdsplit.engines.local import LocalEngine
from wdsplit.order.bundles import Packs
from wdsplit.shards.files import read_manifest
from wdsplit.shards.views import read_view
from wdsplit.storage.local import LocalStorage

RANKS, LANES = 64, 192
SHARDS, CONVERTED = 2_000, 2
PACKED, CAPACITY = 200, 1_000


class Watched(LocalEngine):
    """Runs tasks in this process, and keeps the shards of each."""

    def map(self, function, tasks, **options):
        self.shards = [list(shards) for shards, _ in tasks]
        return super().map(function, tasks, **options)


def test_until_its_first_batches_a_rank_asks_for_windows_of_its_lanes_and_for_nothing_of_other_shards(
    bucket, fault_proxy
):
    billion.make(bucket.folder / "train", SHARDS, 2_000, CONVERTED)
    dataset = wdsplit.Dataset(f"{bucket.url}/train", rank=0, world_size=RANKS, read_ahead_bytes=1)
    batches = iter(wdsplit.Loader(dataset, 64))
    for _ in range(8):
        next(batches)
    batches.close()
    kinds, num_bytes = Counter(), Counter()
    for exchange in fault_proxy.exchanges:
        kind = exchange.request.path.rpartition(".")[2]
        kinds[kind] += 1
        num_bytes[kind] += exchange.bytes_sent
    own_lanes, window_bytes = LANES // RANKS, dataset.manifest.window * dataset.source.sample_bytes
    assert kinds.keys() == {"json", "parquet", "places", "tar"}
    assert kinds["json"] == kinds["parquet"] == 1
    assert num_bytes["parquet"] < 100 * SHARDS
    assert own_lanes <= kinds["places"] <= 2 * own_lanes
    assert own_lanes <= kinds["tar"] <= 2 * own_lanes
    assert num_bytes["tar"] <= 2 * own_lanes * window_bytes


def test_a_view_of_packs_is_made_by_parts_and_packs_each_sample_that_it_selects_once(tmp_path):
    folder, engine = tmp_path / "train", Watched()
    billion.make(folder, SHARDS, 1_000, CONVERTED)
    wdsplit.make_view(folder, "short", where=f"tokens < {PACKED}", pack="tokens", capacity=CAPACITY, engine=engine)
    assert [shard for shards in engine.shards for shard in shards] == [*range(SHARDS)]
    assert max(map(len, engine.shards)) == 64
    storage = LocalStorage(str(folder))
    _, packs = read_view(storage, read_manifest(storage), "short")
    assert isinstance(packs, Packs)
    for first in range(CONVERTED):
        tokens = pq.read_table(folder / f"{first:06d}.tar.parquet", columns=["tokens"])["tokens"].to_numpy()
        for shard in (first, SHARDS - CONVERTED + first):
            items = packs.of_shard(shard).items(np.arange(packs.counts[shard]))
            assert sorted(items.samples) == np.flatnonzero(tokens < PACKED).tolist()
            assert max(np.bincount(items.rows, tokens[items.samples])) <= CAPACITY


def test_an_audit_of_80_million_samples_draws_some_and_finds_nothing_wrong(tmp_path):
    billion.make(tmp_path / "train", SHARDS, 40_000, CONVERTED)
    report = wdsplit.audit(tmp_path / "train", world_size=RANKS, batch_size=256)
    assert report.held
    drawn = {finding.promise for finding in report.findings if "drawn" in finding.evidence}
    assert {"same batches", "exactly once", "resume"} <= drawn
