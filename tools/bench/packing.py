"""Compare packs of 8,192 tokens with unpacked texts, and with the packing of other libraries.

The table has texts of lognormal lengths, 400 tokens of int32 on average. Everyone delivers the tokens of 8 packs at a
time, and where each text begins, in one process and from 2 worker processes; unpacked, as many texts as 8 packs have.
wdsplit shuffles; the others read in order. MosaicML streaming packs in its collator the texts of a batch; webdataset
and Energon pack 699 texts at a time, as wdsplit does, by the same function; grain fills 64 packs by first-fit; TRL
packs 1,000 texts at a time, before. wdsplit packs before, too, but stores no tokens again.

In each round everyone reads all texts once, in a process of its own. The clock starts when the libraries are imported,
before the dataset is opened. Printed are medians over the rounds, with ratios of medians; what share of the capacity of
the delivered packs is tokens; and how long packing took, where it is done before. A library that is not installed is
left out (pip install '.[torch]' datasets grain megatron-energon trl, then --no-deps mosaicml-streaming, whose
requirements exclude those of TRL).

Example: python -m tools.bench.packing --output /dev/shm
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tools.bench import core, data, peers
from tools.bench.core import Aim, Result
from tools.bench.peers import Reader

ROWS, MEAN, CAPACITY, PACKS, BLOCK = 60_000, 400, 8192, 8, 699
TEXTS = PACKS * CAPACITY // MEAN
PACKED, UNPACKED, AIM = "wdsplit, packs", "wdsplit, unpacked", 0.8
GRAIN_PACKS = 64
TIMES = ("seconds", "busy")
TIMED = (PACKED, "TRL")
"""How the names of those begin that pack before."""
LATE = ("wdsplit.loading.stages.decoders", "wdsplit.views.choosing")
"""Modules that wdsplit would import on the clock."""

Text = Any
Delivered = tuple[Any, Any, int]
"""The tokens of a batch, where its texts begin (from 0, and the number of tokens at last), and its packs."""


def make_texts(path: Path, num_rows: int) -> None:
    """Write texts of random tokens, and their lengths."""
    chance = np.random.default_rng(0)
    lengths = np.clip(chance.lognormal(np.log(MEAN) - 0.5, 1, num_rows), 1, CAPACITY).astype(np.int64)
    offsets = np.append(0, np.cumsum(lengths)).astype(np.int32)
    texts = pa.ListArray.from_arrays(offsets, chance.integers(0, 50_000, offsets[-1], dtype=np.int32))
    pq.write_table(pa.table({"npy": texts, "tokens": lengths}), path, row_group_size=10_000, compression="none")


def joined(packs: list[list[Text]]) -> Delivered:
    """Return packs, or unpacked texts as one, as they are delivered: as tensors, which workers hand over faster."""
    import torch

    texts = list(chain.from_iterable(packs))
    starts = np.append(0, np.cumsum(list(map(len, texts)))).astype(np.int32)
    return torch.from_numpy(np.concatenate(texts)), torch.from_numpy(starts), len(packs)


def best_fit(texts: list[Text]) -> list[list[Text]]:
    """Return some texts in packs, by best-fit decreasing."""
    from wdsplit.order import packing

    bins = packing.best_fit(np.array(list(map(len, texts))), CAPACITY).tolist()
    packs: list[list[Text]] = [[] for _ in range(max(bins) + 1)]
    for text, number in zip(texts, bins, strict=True):
        packs[number].append(text)
    return packs


# wdsplit


def make_view(source: str, output: str) -> None:
    import wdsplit

    wdsplit.make_view(Path(source).parent / data.SHARDS, "packed", pack="tokens", capacity=CAPACITY)


def read_packs(folder: Path, workers: int) -> Iterator[Delivered]:
    import wdsplit

    dataset = wdsplit.Dataset(folder / data.SHARDS, view="packed", seed=0).decode()
    for batch in wdsplit.Loader(dataset, PACKS, num_workers=workers):
        yield batch["npy"], batch["__cu_seqlens__"], int(np.sum(batch["__place__"].numpy() == 0))


def read_unpacked(folder: Path, workers: int) -> Iterable[Delivered]:
    import wdsplit

    dataset = wdsplit.Dataset(folder / data.SHARDS, seed=0).decode().to_tuple("npy")
    return wdsplit.Loader(
        dataset, TEXTS, num_workers=workers, collate_fn=lambda samples: joined([[npy for (npy,) in samples]])
    )


# Others


def _in_packs(texts: Iterable[tuple[Text]]) -> Iterator[list[Text]]:
    """Give the packs of a stream of texts, some of which are packed together."""
    texts = iter(texts)
    while block := [text for (text,) in islice(texts, BLOCK)]:
        yield from best_fit(block)


def read_webdataset(folder: Path, workers: int) -> Iterable[Delivered]:
    import webdataset

    texts = webdataset.WebDataset(peers.tars(folder / data.SHARDS), shardshuffle=False).decode().to_tuple("npy")
    packs = texts.compose(_in_packs).batched(PACKS, collation_fn=joined)
    return webdataset.WebLoader(packs, batch_size=None, num_workers=workers)  # type: ignore[no-any-return]


def write_mds(source: str, output: str) -> None:
    from streaming import MDSWriter

    with MDSWriter(out=output, columns={"npy": "ndarray:int32"}, size_limit=peers.SHARD_BYTES) as sink:
        for text in _texts_of(source):
            sink.write({"npy": text})


def _texts_of(source: str) -> Iterator[Text]:
    for batch in pq.ParquetFile(source).iter_batches(1000, columns=["npy"]):
        yield from (text.values.to_numpy() for text in batch.column(0))


def read_mds(folder: Path, workers: int) -> Iterable[Delivered]:
    import streaming
    from streaming.base.util import clean_stale_shared_memory
    from torch.utils.data import DataLoader

    def collate(samples: list[dict[str, Text]]) -> Delivered:
        return joined(best_fit([sample["npy"] for sample in samples]))

    clean_stale_shared_memory()
    dataset = streaming.StreamingDataset(local=str(folder / "mds"), batch_size=TEXTS)
    return DataLoader(dataset, batch_size=TEXTS, num_workers=workers, collate_fn=collate)


def read_energon(folder: Path, workers: int) -> Iterator[Delivered]:
    from megatron.energon import Cooker, DefaultTaskEncoder, WorkerConfig, get_loader, get_val_dataset, stateless

    @stateless  # type: ignore[untyped-decorator]
    def cook(sample: Any) -> Any:
        return sample

    class Encoder(DefaultTaskEncoder):  # type: ignore[misc]
        cookers = (Cooker(cook),)

        def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
            texts = {id(sample["npy"]): sample for sample in samples}
            return [[texts[id(text)] for text in pack] for pack in best_fit([sample["npy"] for sample in samples])]

        @stateless  # type: ignore[untyped-decorator]
        def pack_selected_samples(self, samples: list[Any]) -> Any:
            return {"texts": [sample["npy"] for sample in samples]}

        @stateless  # type: ignore[untyped-decorator]
        def batch(self, samples: list[Any]) -> Any:
            return {"batch": joined([sample["texts"] for sample in samples])}

    dataset = get_val_dataset(
        str(folder / data.SHARDS),
        split_part="train",
        batch_size=PACKS,
        packing_buffer_size=BLOCK,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=workers),
        task_encoder=Encoder(),
    )
    return (batch["batch"] for batch in get_loader(dataset))


def write_array_record(source: str, output: str) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(output, "group_size:1,uncompressed")
    for text in _texts_of(source):
        writer.write(text.tobytes())
    writer.close()


def read_grain(folder: Path, workers: int) -> Iterator[Delivered]:
    import grain

    def parse(record: bytes) -> dict[str, Text]:
        return {"npy": np.frombuffer(record, np.int32)}

    source = grain.sources.ArrayRecordDataSource(str(folder / "array_record"))
    unthreaded = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)  # 16 threads, its default, take twice as long
    texts = grain.MapDataset.source(source).map(parse).to_iter_dataset(unthreaded)
    lengths = {"npy": CAPACITY}
    packs = grain.experimental.FirstFitPackIterDataset(texts, length_struct=lengths, num_packing_bins=GRAIN_PACKS)
    batches = packs.batch(PACKS)
    if workers:
        batches = batches.mp_prefetch(grain.multiprocessing.MultiprocessingOptions(num_workers=workers))
    for batch in batches:
        is_token = batch["npy_segment_ids"] > 0
        starts = np.flatnonzero((batch["npy_positions"] == 0)[is_token])
        yield batch["npy"][is_token], np.append(starts, is_token.sum()), len(is_token)


def pack_by_trl(source: str, output: str) -> None:
    import datasets
    from trl import pack_dataset

    texts = datasets.load_dataset("parquet", data_files=source, columns=["npy"], split="train")
    pack_dataset(texts.rename_column("npy", "input_ids"), CAPACITY, "bfd").save_to_disk(output)


def read_trl(folder: Path, workers: int) -> Iterable[Delivered]:
    def collate(packs: list[dict[str, Any]]) -> Delivered:
        import torch

        starts = np.append(0, np.cumsum(np.concatenate([pack["seq_lengths"] for pack in packs]))).astype(np.int32)
        tokens = np.concatenate([pack["input_ids"] for pack in packs])
        return torch.from_numpy(tokens), torch.from_numpy(starts), len(packs)

    return _trl_packs(folder, workers, "numpy", collate)


def read_trl_collated(folder: Path, workers: int) -> Iterable[Delivered]:
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    collator = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)

    def collate(packs: list[dict[str, Any]]) -> tuple[dict[str, Any], int]:
        return collator(packs), len(packs)

    batches = _trl_packs(folder, workers, None, collate)
    return ((batch["input_ids"][0], batch["cu_seq_lens_q"], num_packs) for batch, num_packs in batches)


def _trl_packs(folder: Path, workers: int, form: str | None, collate: Callable[[list[Any]], Any]) -> Iterable[Any]:
    import datasets
    from torch.utils.data import DataLoader

    packs = datasets.load_from_disk(str(folder / "trl")).with_format(form)
    return DataLoader(packs, batch_size=PACKS, num_workers=workers, collate_fn=collate)


READERS = (
    Reader(PACKED, "torch", read_packs, make_view),
    Reader(UNPACKED, "torch", read_unpacked),
    Reader("TRL packs, as numpy arrays", "trl", read_trl, pack_by_trl, "trl"),
    Reader("TRL packs, its collator", "trl", read_trl_collated),
    Reader("grain, first-fit", "grain", read_grain, write_array_record, "array_record"),
    Reader("MosaicML streaming, collator", "streaming", read_mds, write_mds, "mds"),
    Reader("webdataset, a stage that packs", "webdataset", read_webdataset),
    Reader("Energon, packing buffer", "megatron.energon", read_energon),
)


# In a process of its own


def prepare(name: str, folder: str) -> Result:
    """Write what a reader reads; return the seconds."""
    reader = peers.reader_of(READERS, name)
    clock = core.begin("wdsplit.views.make", reader.module, *["trl.data_utils"] * (reader.module == "trl"))
    reader.write(folder)
    return clock.read()


def read_once(name: str, folder: str, workers: int) -> Result:
    """Read all texts once; return seconds, and how many texts, tokens and packs came."""
    reader = peers.reader_of(READERS, name)
    more = {"torch": LATE, "trl": ("datasets", "trl.trainer.sft_trainer")}.get(reader.module, ())
    clock = core.begin("torch", "wdsplit.loading.loader", "wdsplit.order.packing", reader.module, *more)
    texts = tokens = packs = 0
    for found, starts, num_packs in reader.read(Path(folder), workers):
        texts, tokens, packs = texts + len(starts) - 1, tokens + len(found), packs + num_packs
    return {**clock.read(), "texts": texts, "tokens": tokens, "packs": packs, "megabytes": core.peak_mib()}


# Comparing


def compare(num_rows: int, folder: Path, rounds: int, names: tuple[str, ...], numbers: tuple[int, ...]) -> list[Aim]:
    """Measure all whose names begin so, with some numbers of workers, and print the medians; return the aims."""
    make_texts(folder / data.SOURCE, num_rows)
    num_tokens = int(np.sum(pq.read_table(folder / data.SOURCE, columns=["tokens"]).column(0)))
    data.make_shards(folder, workers=2, columns=("npy",), keep=("tokens",))
    environ = {"HF_HOME": str(folder / "huggingface"), "HF_HUB_OFFLINE": "1"}
    before = {}

    def ready(name: str) -> None:
        before[name] = core.in_own_process(prepare, name, folder, environ=environ)["seconds"]

    chosen = peers.ready((reader for reader in READERS if reader.name.startswith(names)), ready)
    aims = []
    for workers in numbers:

        def measure(name: str, workers: int = workers) -> Result:
            result = core.in_own_process(read_once, name, folder, workers, environ=environ)
            if result["texts"] < num_rows or result["tokens"] < num_tokens:
                raise core.ProcessError(f"it gave {result['texts']} of {num_rows} texts")
            return result

        results = core.run_rounds(chosen, rounds, measure)
        medians = {name: [core.median_of(runs, itemgetter(of)) for of in TIMES] for name, runs in results.items()}
        rows = []
        for name, (seconds, busy) in medians.items():
            ratios = [f"{base / own:.2f}" for base, own in zip(medians[UNPACKED], (seconds, busy), strict=True)]
            packed = "" if name == UNPACKED else f"{num_tokens / results[name][0]['packs'] / CAPACITY:.3f}"
            took = f"{before[name]:.1f}" if name in before and name.startswith(TIMED) else ""
            memory = f"{max(run['megabytes'] for run in results[name]):,.0f}"
            rows.append((name, f"{num_tokens / seconds / 1e6:.2f}", *ratios, packed, took, memory))
            if name == PACKED:
                way = core.workers_of(workers)
                aims.append(Aim(f"packs of {CAPACITY:,} tokens: {way}", UNPACKED, f"{AIM}", ratios[0]))
        header = ("", "M tokens/s", "x unpacked", "x by processor s", "fill", "packed before, s", "MiB of memory")
        title = f"{num_rows:,} texts, {num_tokens:,} tokens, {workers} workers, medians of {rounds}"
        core.print_table(title, header, rows)
    return aims


def main() -> None:
    parser = core.parser_of(__doc__)
    parser.add_argument("--rows", type=int, default=ROWS, help=f"Texts. Default: {ROWS}.")
    parser.add_argument("--readers", default="", help="Only wdsplit and those whose names begin so, such as TRL,grain.")
    parser.add_argument("--workers", type=core.numbers, default=(0, 2), help="Numbers of workers. Default: 0,2.")
    arguments = parser.parse_args()
    core.print_machine()
    print(f"load {os.getloadavg()[0]:.1f}")
    with core.work_folder(arguments.output) as folder:
        names = ("wdsplit", *arguments.readers.split(","))
        aims = compare(arguments.rows, folder, arguments.rounds, names, arguments.workers)
    print(f"load {os.getloadavg()[0]:.1f}")
    core.print_aims(aims)


if __name__ == "__main__":
    main()
