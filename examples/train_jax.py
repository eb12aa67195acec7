"""Train a small network with JAX on any image classification dataset that `wdsplit convert` made, without torch.

    python examples/train_jax.py TRAIN TEST --epochs 2                  # all devices of this machine
    python examples/train_jax.py TRAIN TEST --model-parallel 2          # a mesh of two axes: data and model
    srun python examples/train_jax.py TRAIN TEST --distributed          # all processes of a SLURM job

To see eight devices on a CPU, set XLA_FLAGS=--xla_force_host_platform_device_count=8.

What to copy: `open_loader` (batches as global arrays over a mesh), `loss_of` (rows that only fill up weigh nothing),
`evaluate` (each image counts once) and `save` and `load`: with --checkpoint FILE a run that was stopped goes on where
it was, on any number of devices. An epoch that this run has seen from its beginning is checked: the run fails if it did
not hold every image exactly once.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from PIL import Image

import wdsplit
from wdsplit.integrations.jax import JaxLoader

SIDE, HIDDEN = 8, 64
"""Pixels of a side that images are resized to, and hidden units."""
THREADS = 2
"""Threads that read and decode."""


def main() -> None:
    """Train, evaluate after each epoch, and check what was received."""
    args = parse_arguments()
    if args.distributed:
        jax.distributed.initialize()
    devices = np.array(jax.devices()).reshape(-1, args.model_parallel)
    mesh = Mesh(devices, ("data", "model"))
    train, test = (open_loader(path, mesh, args, path == args.train) for path in (args.train, args.test))
    parameters = initial_parameters(mesh, args)
    if args.checkpoint and args.checkpoint.exists():
        parameters = load(args.checkpoint, parameters, train)
        say(f"resumed in epoch {train.epoch} at step {train.step}, on {mesh.size} devices")
    say(f"mesh {dict(mesh.shape)}, global batch {train.global_batch}, {len(train)} steps an epoch")

    left = args.stop_after
    for epoch in range(train.epoch, args.epochs):
        train.set_epoch(epoch)
        is_whole = train.state_dict()["position"] == 0
        loss, received = 0.0, []
        for step, batch in enumerate(train, train.step + 1):
            parameters, loss = train_step(parameters, batch.data, batch.valid, args.lr)
            received.append(valid_positions(batch.data, batch.valid))
            left -= 1
            if left == 0:
                save(args.checkpoint, parameters, train)
                say(f"stopped in epoch {epoch} after {step} steps")
                return
        if args.checkpoint:
            save(args.checkpoint, parameters, train)
        hits, count = evaluate(parameters, test)
        say(f"epoch {epoch}: loss {float(loss):.4f}, held-out accuracy {hits / count:.4f} ({hits} of {count})")
        if is_whole:
            check_once(np.concatenate(gathered(received, mesh)), train.loader.dataset.manifest.num_samples)
            say(f"epoch {epoch}: every image exactly once")


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Train a small network with JAX on images.")
    parser.add_argument("train", help="a dataset that wdsplit convert made, with an image field and cls")
    parser.add_argument("test", help="another one, to evaluate on")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16, help="images a place of the data axis")
    parser.add_argument("--model-parallel", type=int, default=1, help="devices that share a model, and read the same")
    parser.add_argument("--field", default="png", help="the field that holds the image")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--checkpoint", type=Path, help="an .npz file to save to, and to resume from if it exists")
    parser.add_argument("--stop-after", type=int, default=0, help="save and stop after so many steps of this run")
    parser.add_argument("--distributed", action="store_true", help="call jax.distributed.initialize()")
    args = parser.parse_args()
    if args.stop_after and not args.checkpoint:
        parser.error("--stop-after needs --checkpoint")
    return args


def say(text: str) -> None:
    """Print a line on one process."""
    if jax.process_index() == 0:
        print(text, flush=True)


def open_loader(path: str, mesh: Mesh, args: argparse.Namespace, shuffle: bool) -> JaxLoader:
    """Return global batches of (position, pixels, label)."""
    dataset = wdsplit.Dataset(path, shuffle=shuffle).decode("pil")
    dataset = dataset.map_dict(**{args.field: pixels})
    dataset = dataset.to_tuple("__position__", args.field, "cls")
    return JaxLoader(dataset, args.batch_size, mesh=mesh, num_workers=THREADS)


def pixels(image: Image.Image) -> np.ndarray:
    """Return an image as float32 of shape (SIDE * SIDE,), from -1 to 1."""
    resized = image.convert("L").resize((SIDE, SIDE))
    return np.asarray(resized, np.float32).reshape(-1) / 127.5 - 1


def initial_parameters(mesh: Mesh, args: argparse.Namespace) -> dict[str, jax.Array]:
    """Return the layers of the network; the hidden units are split over the model axis."""
    random = np.random.default_rng(0)
    layers = {
        "in": (random.normal(0, 1 / SIDE, (SIDE**2, HIDDEN)), P(None, "model")),
        "out": (random.normal(0, HIDDEN**-0.5, (HIDDEN, args.classes)), P("model", None)),
    }
    return {name: placed(layer.astype(np.float32), NamedSharding(mesh, spec)) for name, (layer, spec) in layers.items()}


def placed(values: np.ndarray, sharding: NamedSharding) -> jax.Array:
    """Put the same values, which all processes have, on the devices."""
    return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])


def scores(parameters: dict[str, jax.Array], images: jax.Array) -> jax.Array:
    """Return the network's output: float32 of shape (batch, classes)."""
    return jax.nn.relu(images @ parameters["in"]) @ parameters["out"]


def loss_of(parameters: dict[str, jax.Array], data: Any, valid: jax.Array) -> jax.Array:
    """Return the mean cross entropy over the rows that are valid."""
    _, images, labels = data
    log_likelihood = jnp.take_along_axis(jax.nn.log_softmax(scores(parameters, images)), labels[:, None], axis=1)[:, 0]
    return -jnp.sum(jnp.where(valid, log_likelihood, 0)) / jnp.maximum(1, jnp.sum(valid))


@jax.jit
def train_step(parameters: Any, data: Any, valid: jax.Array, lr: float) -> tuple[Any, jax.Array]:
    """Take one step of gradient descent; the gradients are summed over all devices because the batch is split so."""
    loss, gradients = jax.value_and_grad(loss_of)(parameters, data, valid)
    return jax.tree.map(lambda layer, gradient: layer - lr * gradient, parameters, gradients), loss


@jax.jit
def count_hits(parameters: Any, data: Any, valid: jax.Array) -> jax.Array:
    """Return how many rows that are valid were classified right."""
    _, images, labels = data
    return jnp.sum((scores(parameters, images).argmax(1) == labels) & valid)


def evaluate(parameters: Any, loader: JaxLoader) -> tuple[int, int]:
    """Return how many images were classified right, and how many there are."""
    loader.set_epoch(0)
    hits = sum(int(count_hits(parameters, batch.data, batch.valid)) for batch in loader)
    return hits, loader.loader.dataset.manifest.num_samples


@jax.jit
def valid_positions(data: Any, valid: jax.Array) -> jax.Array:
    """Return the positions of the rows of a batch: int32 of shape (batch,), -1 for rows that are not valid."""
    return jnp.where(valid, data[0], -1)


def check_once(positions: np.ndarray, num_samples: int) -> None:
    """Fail unless each sample was received once: as many valid rows as samples, and no position twice."""
    positions = positions[positions >= 0]
    if len(positions) != num_samples or len(np.unique(positions)) != num_samples:
        raise SystemExit(f"the audit failed: {len(positions)} rows, {len(np.unique(positions))} different")


def save(path: Path, parameters: Any, loader: JaxLoader) -> None:
    """Write the parameters and how far the loader has got; every process gathers, one writes."""
    layers = gathered(parameters, loader.mesh)
    if jax.process_index() == 0:
        temporary = path.with_suffix(".tmp.npz")
        np.savez(temporary, loader=json.dumps(loader.state_dict()), **layers)
        temporary.replace(path)


def gathered(arrays: Any, mesh: Mesh) -> Any:
    """Return arrays, in any tree of them, whole on each process."""
    return jax.tree.map(np.asarray, jax.jit(lambda values: values, out_shardings=NamedSharding(mesh, P()))(arrays))


def load(path: Path, parameters: Any, loader: JaxLoader) -> Any:
    """Return the parameters of a checkpoint, split as those given are; send the loader to its position."""
    with np.load(path) as checkpoint:
        loader.load_state_dict(json.loads(str(checkpoint["loader"])))
        return {name: placed(checkpoint[name], layer.sharding) for name, layer in parameters.items()}


if __name__ == "__main__":
    main()
