"""The training examples, run by torchrun on two ranks: what they print, and that a resumed run is the same run.

Horovod is not for the torch that is used here: a module stands in for the part of its interface that the example uses
(stand_in/horovod), so the example runs, but not with Horovod. What belongs to clusters is in test_examples_clusters.py.
"""

import importlib
import io
import os
import re
import shutil

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image

from example_runs import EXAMPLES, NUM_TEST, SMALL, STEPS, STOPPED_AFTER, SUPPORT, run
from made_datasets import converted

pytestmark = pytest.mark.xdist_group("digits")


def check_learning(whole):
    """The loss falls, the network has learned the digits, and each held-out digit counts once."""
    assert len(whole.losses) == 2
    assert whole.losses[1] < whole.losses[0]
    assert whole.accuracies[-1] > 0.8
    assert whole.counts == [NUM_TEST] * 2


def test_ddp_learns(by_ddp):
    """That it resumes is in test_examples_clusters.py, by SLURM's scripts."""
    check_learning(by_ddp)


def test_fsdp_trains_as_ddp_does_and_resumes_from_the_newest_checkpoint_that_is_complete(by_ddp, digits, tmp_path):
    """All the same to the last bit: two ranks leave no choice of the order in which gradients are summed."""
    folder = tmp_path / "checkpoints"
    checkpoint = (f"--checkpoint={folder}", f"--checkpoint-steps={STOPPED_AFTER}", "--resume")
    whole = run("train_fsdp.py", *digits, *SMALL, *checkpoint, out=tmp_path)
    assert whole.parameters == by_ddp.parameters
    assert whole.counts == [NUM_TEST] * 2
    names = sorted(each.name for each in folder.iterdir())
    assert names == [
        f"epoch-{epoch:04d}-step-{step:07d}" for epoch, step in ((0, 10), (0, 20), (1, 0), (1, 10), (1, 20), (2, 0))
    ]
    for name in names[4:]:
        shutil.rmtree(folder / name)
    (folder / "epoch-0001-step-0000020").mkdir()
    rest = run("train_fsdp.py", *digits, *SMALL, *checkpoint, out=tmp_path)
    assert "resumed in epoch 1 at step 10, on 2 ranks" in rest.output
    assert rest.parameters == whole.parameters


def test_lightning_trains_as_ddp_does_and_resumes_in_mid_epoch(by_ddp, digits, tmp_path):
    """All the same to the last bit. It is stopped in the middle of epoch 1; the end of an epoch is saved, too."""
    checkpoint = (f"--checkpoint={tmp_path}", "--resume")
    begun = run("train_lightning.py", *digits, *SMALL, *checkpoint, f"--stop-after={STEPS + 7}", out=tmp_path)
    assert "stopped in epoch 1 after 7 steps" in begun.output
    rest = run("train_lightning.py", *digits, *SMALL, *checkpoint, out=tmp_path)
    assert rest.parameters == by_ddp.parameters
    assert begun.counts + rest.counts == [NUM_TEST] * 2
    assert begun.accuracies + rest.accuracies == pytest.approx(by_ddp.accuracies, abs=1e-4)
    assert torch.load(tmp_path / "newest.ckpt", weights_only=False)["global_step"] == 2 * STEPS


def test_accelerate_trains_as_ddp_does_and_resumes_in_mid_epoch(by_ddp, digits, tmp_path):
    checkpoint = (f"--checkpoint={tmp_path / 'checkpoint'}", "--resume")
    run("train_accelerate.py", *digits, *SMALL, *checkpoint, f"--stop-after={STOPPED_AFTER}", out=tmp_path)
    (tmp_path / "checkpoint").rename(tmp_path / "checkpoint.old")  # as if the run had ended while it replaced it
    rest = run("train_accelerate.py", *digits, *SMALL, *checkpoint, out=tmp_path)
    assert f"resumed in epoch 0 at step {STOPPED_AFTER}, on 2 ranks" in rest.output
    assert rest.parameters == by_ddp.parameters
    assert rest.accuracies == by_ddp.accuracies
    assert rest.counts == [NUM_TEST] * 2
    assert not (tmp_path / "checkpoint.old").exists()


def test_a_checkpoint_of_accelerate_that_fails_leaves_the_one_before_as_it_was(tmp_path, monkeypatch):
    """What fails is the last part of it: the weights of the model are written by then."""
    accelerate, example = importlib.import_module("accelerate"), example_of("train_accelerate", monkeypatch)
    accelerator = accelerate.Accelerator(cpu=True)
    model, part = accelerator.prepare(torch.nn.Linear(1, 1)), Part()
    accelerator.register_for_checkpointing(part)
    example.save(tmp_path / "run", accelerator)
    saved, part.fails = model.weight.item(), True
    torch.nn.init.constant_(model.weight, 7)
    with pytest.raises(OSError, match="the disk is full"):
        example.save(tmp_path / "run", accelerator)
    accelerator.load_state(str(example.newest_checkpoint(tmp_path / "run")))
    assert model.weight.item() == saved


class Part:
    """A part of a checkpoint that may fail."""

    fails = False

    def state_dict(self):
        if self.fails:
            raise OSError("the disk is full")
        return {}

    def load_state_dict(self, state):
        pass


def test_deepspeed_learns_and_resumes_where_the_file_latest_says(digits, tmp_path, monkeypatch):
    """With ZeRO 1 and accumulated gradients: a step is two batches."""
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    folder = tmp_path / "checkpoints"
    scripts, accumulated = ("watched_example.py", "train_deepspeed.py"), ("--zero=1", "--accumulate=2")
    checkpoint = (f"--checkpoint={folder}", f"--checkpoint-steps={STOPPED_AFTER}", "--resume")
    whole = run(scripts, *digits, *SMALL, *accumulated, *checkpoint, "--lr=0.006", out=tmp_path)
    check_learning(whole)
    assert (folder / "latest").read_text() == f"global_step{2 * -(-STEPS // 2)}", "the last batch is a step of its own"
    (folder / "latest").write_text(f"global_step{STOPPED_AFTER // 2}")
    rest = run(scripts, *digits, *SMALL, *accumulated, *checkpoint, "--lr=0.006", out=tmp_path)
    assert f"resumed in epoch 0 at step {STOPPED_AFTER}, on 2 ranks" in rest.output
    assert rest.parameters == whole.parameters


def test_horovods_interface_is_used_as_it_is_documented(digits, tmp_path, monkeypatch):
    """Not by Horovod itself, see above. 23 steps do not go into pairs, so the last step of an epoch is of one batch."""
    monkeypatch.setenv("PYTHONPATH", str(SUPPORT / "stand_in"), prepend=os.pathsep)
    checkpoint = (f"--checkpoint={tmp_path / 'run.pt'}", "--resume", "--accumulate=2", "--lr=0.006")
    begun = run("train_horovod.py", *digits, *SMALL, *checkpoint, f"--stop-after={STOPPED_AFTER - 1}", out=tmp_path)
    assert f"stopped in epoch 0 after {STOPPED_AFTER} steps" in begun.output
    rest = run("train_horovod.py", *digits, *SMALL, *checkpoint, out=tmp_path)
    assert f"resumed in epoch 0 at step {STOPPED_AFTER}, on 2 ranks" in rest.output
    check_learning(rest)


# When to save and to stop


def example_of(name, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module(name)


@pytest.mark.parametrize(
    ("accumulate", "saves"), [(1, [3, 6, 10, 13, 15]), (2, [4, 6, 11, 13, 16])], ids=["alone", "pairs"]
)
def test_a_run_saves_and_stops_by_its_steps_and_never_in_an_accumulation(monkeypatch, accumulate, saves):
    """Of 7 steps an epoch each third is due, and the 15th of the run; where a pair is not complete, the one after."""
    task = example_of("image_task", monkeypatch)
    command = ["train", "test", "--checkpoint=run.pt", "--checkpoint-steps=3", "--stop-after=15"]
    pace, found = task.Pace(task.arguments("").parse_args(command)), []
    for taken in range(100):
        step = taken % 7
        pace.count(step + 1, is_update=step == task.group_of(step, 0, 7, accumulate)[-1])
        found += [taken + 1] * pace.saves
        if pace.stops:
            break
    assert found == saves


@pytest.mark.parametrize(("begin", "num_steps", "accumulate"), [(0, 8, 4), (3, 9, 3), (5, 12, 4), (5, 6, 4), (0, 3, 1)])
def test_the_steps_that_are_left_make_whole_groups_and_one_of_the_rest(monkeypatch, begin, num_steps, accumulate):
    group_of = example_of("image_task", monkeypatch).group_of
    groups = [group_of(step, begin, num_steps, accumulate) for step in range(begin, num_steps)]
    assert all(step in group for step, group in enumerate(groups, begin))
    different = list(dict.fromkeys(groups))
    assert [step for group in different for step in group] == list(range(begin, num_steps))
    assert {len(group) for group in different[:-1]} <= {accumulate}


@pytest.mark.parametrize(
    ("environ", "local_rank"),
    [
        ({}, 0),
        ({"SLURM_LOCALID": "3"}, 3),
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "2", "SLURM_LOCALID": "0"}, 2),
        ({"MPI_LOCALRANKID": "2", "SLURM_LOCALID": "0"}, 2),
        ({"LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}, 1),
    ],
    ids=["alone", "srun", "Open MPI", "hydra", "torchrun"],
)
def test_each_process_of_a_machine_takes_a_gpu_of_its_own(monkeypatch, environ, local_rank):
    task = example_of("image_task", monkeypatch)
    for name in ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert task.local_rank() == local_rank


# The recipe for ImageNet


NUM_CLASSES = 4
STRIPES = np.arange(48) % 16 < 8


def jpeg_of(row):
    """Return a JPEG whose class is in its colours and stripes, of a size that differs from others."""
    kind, random = row % NUM_CLASSES, np.random.default_rng(row)
    height, width = 24 + row % 7, 24 + row % 11
    pixels = random.integers(0, 60, (height, width, 3))
    pixels[..., kind % 3] += 90
    pixels[STRIPES[:height] if kind < 2 else slice(None)] += 60
    file = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(file, "JPEG", quality=90)
    return file.getvalue()


@pytest.fixture(scope="session")
def jpegs(tmp_path_factory):
    """Return datasets of JPEGs to train on and to validate with; their numbers do not go into batches."""
    paths = []
    for first, count in ((0, 203), (203, 53)):
        rows = range(first, first + count)
        table = pa.table({"jpg": [jpeg_of(row) for row in rows], "label": [row % NUM_CLASSES for row in rows]})
        paths.append(converted(tmp_path_factory.mktemp("jpegs"), table, shards=4, lanes=4, window=16))
    return tuple(paths)


def test_the_imagenet_recipe_learns_audits_itself_and_resumes_in_mid_epoch(jpegs, tmp_path):
    """With threads, augmentation, batch normalisation and accumulated gradients: 7 batches are 4 steps."""
    options = ("--small", "--audit", "--accumulate=2", "--classes=4", "--epochs=3", "--lr=0.8")
    whole = run("imagenet_resnet50.py", *jpegs, *options, out=tmp_path)
    assert len(re.findall(r"epoch \d: 203 samples, each once.*; pads: 21; nothing is missing", whole.output)) == 3
    assert whole.losses[2] < whole.losses[0]
    assert whole.accuracies[2] > 0.6
    assert whole.counts == [53] * 3

    checkpoint = (f"--checkpoint={tmp_path / 'run.pt'}", "--resume")
    begun = run("imagenet_resnet50.py", *jpegs, *options, *checkpoint, "--stop-after=4", out=tmp_path)
    assert "stopped in epoch 0 after 4 steps" in begun.output
    shutil.copy(tmp_path / "run.pt", tmp_path / "other.pt")
    rest = run("imagenet_resnet50.py", *jpegs, *options, *checkpoint, out=tmp_path)
    assert "resumed in epoch 0 at step 4, on 2 ranks" in rest.output
    assert "epoch 0 from position 128 on: 75 samples, each once" in rest.output
    assert rest.parameters == whole.parameters

    other = (f"--checkpoint={tmp_path / 'other.pt'}", "--resume", "--batch-size=9", "--epochs=1")
    rest = run(("watched_example.py", "imagenet_resnet50.py"), *jpegs, *options, *other, out=tmp_path, ranks=3)
    assert "resumed in epoch 0 at step 5, on 3 ranks" in rest.output, "75 samples are 3 batches of 27, and there are 8"
    assert "rank 0 has updated the parameters 2 times" in rest.output
