"""Train a small network with Keras on any image classification dataset that `wdsplit convert` made, without torch.

    python examples/train_tf.py TRAIN TEST --epochs 2                   # all devices of this machine

What to copy:

- `open_loader`: a dataset and its loader.
- The call of `fit`: a dataset without end, `steps_per_epoch`, and the callback that tells the loader which batches
  were used.
- `weighed`: pads have weight 0, so an evaluation is exact.
- `Checkpoint`: with --checkpoint FOLDER a stopped run continues where it was, in the middle of an epoch.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from PIL import Image

import wdsplit
from wdsplit.integrations.tensorflow import TensorFlowLoader

SIDE, HIDDEN = 8, 64
"""Pixels of a side that images are resized to, and hidden units."""
THREADS = 2
"""Threads that read and decode."""


def main() -> None:
    """Train, and evaluate after each epoch."""
    args = parse_arguments()
    tf.keras.utils.set_random_seed(0)
    train, test = (open_loader(path, args, path == args.train) for path in (args.train, args.test))
    strategy = tf.distribute.MirroredStrategy()
    with strategy.scope():
        model = build_model(args)
    checkpoint = Checkpoint(args.checkpoint, train, args.stop_after)
    if args.checkpoint and (args.checkpoint / "newest.json").exists():
        checkpoint.load(model)
        print(f"resumed in epoch {train.epoch} at step {train.step}")

    batches = train.dataset().map(weighed)
    validation = test.dataset(epochs=1).map(weighed)
    callbacks = [train.callback(), checkpoint]
    while train.epoch < args.epochs and not model.stop_training:
        epoch, left = train.epoch, len(train) - train.step
        history = model.fit(
            batches,
            initial_epoch=epoch,
            epochs=epoch + 1,
            steps_per_epoch=left,
            callbacks=callbacks,
            shuffle=False,
            verbose=0,
        )
        if model.stop_training:
            print(f"stopped in epoch {epoch} after {train.step or len(train)} steps")
            return
        accuracy = model.evaluate(validation, steps=len(test), verbose=0, return_dict=True)["accuracy"]
        num_samples = test.loader.dataset.manifest.num_samples
        print(
            f"epoch {epoch}: {left} steps, loss {history.history['loss'][-1]:.4f}, "
            f"held-out accuracy {accuracy:.4f} of {num_samples}"
        )


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Train a small network with Keras on images.")
    parser.add_argument("train", help="a dataset that wdsplit convert made, with an image field and cls")
    parser.add_argument("test", help="another one, to evaluate on")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32, help="images a batch, over all devices of this process")
    parser.add_argument("--field", default="png", help="the field that holds the image")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--lr", type=float, default=0.3)
    parser.add_argument("--checkpoint", type=Path, metavar="FOLDER", help="where to save, and to resume from")
    parser.add_argument("--stop-after", type=int, default=0, help="save and stop after so many steps of this run")
    args = parser.parse_args()
    if args.stop_after and not args.checkpoint:
        parser.error("--stop-after needs --checkpoint")
    return args


def open_loader(path: str, args: argparse.Namespace, shuffle: bool) -> TensorFlowLoader:
    """Return batches of (pixels, label, pad)."""
    dataset = wdsplit.Dataset(path, shuffle=shuffle).decode("pil")
    dataset = dataset.map_dict(**{args.field: pixels})
    dataset = dataset.to_tuple(args.field, "cls", "__pad__")
    loader = wdsplit.Loader(dataset, args.batch_size, num_workers=THREADS, workers="thread", output="numpy")
    return TensorFlowLoader(loader)


def pixels(image: Image.Image) -> np.ndarray:
    """Return an image as float32 of shape (SIDE * SIDE,), from -1 to 1."""
    resized = image.convert("L").resize((SIDE, SIDE))
    return np.asarray(resized, np.float32).reshape(-1) / 127.5 - 1


def weighed(images: tf.Tensor, labels: tf.Tensor, pad: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return images, labels and weights: 0 for pads."""
    return images, labels, tf.cast(~pad, tf.float32)


def build_model(args: argparse.Namespace) -> Any:
    """Return a compiled network."""
    model = tf.keras.Sequential(
        [
            tf.keras.Input((SIDE**2,)),
            tf.keras.layers.Dense(HIDDEN, activation="relu"),
            tf.keras.layers.Dense(args.classes),
        ]
    )
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tf.keras.optimizers.SGD(args.lr), loss, weighted_metrics=["accuracy"])
    return model


class Checkpoint(tf.keras.callbacks.Callback):
    """Saves the weights and how far the loader has got, after each epoch and when the training is stopped.

    A checkpoint is there, whole, once `newest.json` names its file of weights; until then the one before is.
    """

    def __init__(self, folder: Path | None, loader: TensorFlowLoader, stop_after: int) -> None:
        super().__init__()
        self.folder, self.loader, self.left = folder, loader, stop_after

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Stop after as many steps as were asked for."""
        self.left -= 1
        if self.left == 0:
            self.model.stop_training = True

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Write a checkpoint; the one before goes once this one is there."""
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        state = self.loader.state_dict()
        weights = self.folder / f"epoch-{state['epoch']}-position-{state['position']}.weights.h5"
        self.model.save_weights(weights)
        temporary = self.folder / "newest.json.tmp"
        temporary.write_text(json.dumps({"weights": weights.name, "loader": state}))
        temporary.replace(self.folder / "newest.json")
        for older in set(self.folder.glob("*.weights.h5")) - {weights}:
            older.unlink()

    def load(self, model: Any) -> None:
        """Read the newest checkpoint."""
        newest = json.loads((self.folder / "newest.json").read_text())
        model.load_weights(self.folder / newest["weights"])
        self.loader.load_state_dict(newest["loader"])


if __name__ == "__main__":
    main()
