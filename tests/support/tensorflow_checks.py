"""Checks of TensorFlowLoader in one process of two logical CPUs; run by test_integrations_tensorflow.py."""

import itertools
import time

import numpy as np
import pytest
import tensorflow as tf

import wdsplit
from checks import documented_block
from logs import logged
from made_datasets import expected_batches
from tables import wait_until
from wdsplit.integrations.tensorflow import TensorFlowLoader

NUM_SAMPLES = 101
STEPS = 7

CPU = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(CPU, [tf.config.LogicalDeviceConfiguration()] * 2)


def opened(path, **options):
    return wdsplit.Dataset(path, **options).decode().to_tuple("__position__", "cls", "__pad__")


def loader_of(path, batch_size=16, prefetch=2, num_workers=0, **options):
    loader = wdsplit.Loader(opened(path, **options), batch_size, num_workers=num_workers, workers="thread")
    return TensorFlowLoader(loader, prefetch=prefetch)


def content(batches):
    return [list(zip(*(column.numpy().tolist() for column in batch), strict=True)) for batch in batches]


def rows(batches):
    return sorted(row for batch in content(batches) for _, row, pad in batch if not pad)


class Recorder(tf.keras.Model):
    """A model that keeps what it is trained on, and can end the training after some steps."""

    def __init__(self):
        super().__init__()
        self.batches = []
        self.weight = self.add_weight(shape=(), initializer="zeros")

    def train_step(self, data):
        self.batches.append(data)
        return {"loss": tf.reduce_mean(tf.cast(data[1], tf.float32))}


class StopAfter(tf.keras.callbacks.Callback):
    def __init__(self, steps):
        super().__init__()
        self.steps = steps

    def on_train_batch_end(self, batch, logs=None):
        self.steps -= 1
        if not self.steps:
            self.model.stop_training = True


def fitted(dataset, callbacks=(), **options):
    """Train eagerly; return what the model has seen."""
    model = Recorder()
    model.compile(optimizer="sgd", run_eagerly=True)
    model.fit(dataset, callbacks=list(callbacks), verbose=0, **options)
    return model.batches


def check_batches_are_those_of_the_loader(path):
    for num_workers in (0, 2):
        loader = loader_of(path, num_workers=num_workers)
        for epoch in range(2):
            assert loader.epoch == epoch
            assert content(loader) == expected_batches(path, STEPS, global_batch=16, epoch=epoch)


def check_the_spec_is_that_of_the_batches(path):
    assert loader_of(path).element_spec == (
        tf.TensorSpec((16,), tf.int64),
        tf.TensorSpec((16,), tf.int64),
        tf.TensorSpec((16,), tf.bool),
    )
    shapes = {spec.shape[0] for spec in loader_of(path, tail="uneven").element_spec}
    assert shapes == {None}
    dataset = wdsplit.Dataset(path).decode().map(lambda sample: {"x": np.ones((2, 3), np.float16), "t": sample["txt"]})
    loader = TensorFlowLoader(wdsplit.Loader(dataset, 8))
    assert loader.element_spec["x"] == tf.TensorSpec((8, 2, 3), tf.float16)
    assert loader.element_spec["t"] == loader.element_spec["__key__"] == tf.TensorSpec((8,), tf.string)
    assert loader.loader.state_dict()["position"] == 0
    assert next(iter(loader))["t"].numpy()[0].startswith(b"row ")


def check_some_epochs_follow_one_another(path):
    loader = loader_of(path)
    expected = [expected_batches(path, STEPS, global_batch=16, epoch=epoch) for epoch in range(4)]
    assert content(loader.dataset(epochs=2)) == expected[0] + expected[1]
    assert loader.epoch == 2
    assert content(loader.dataset().take(10)) == expected[2] + expected[3][:3]


def check_tensorflow_takes_no_more_ahead_than_prefetch(path):
    """A slow consumer lets TensorFlow's own prefetch grow until it has taken a whole epoch ahead."""
    for prefetch in (0, 2):
        loader = loader_of(path, prefetch=prefetch)
        batches = iter(loader.dataset())
        for _ in range(3):
            next(batches)
        made = loader.loader.statistics
        wait_until(lambda: made().batches >= 3 + prefetch, "all are made that may be")  # noqa: B023
        time.sleep(0.3)
        assert made().batches == 3 + prefetch


def check_keras_may_iterate_one_epoch_again_and_again(path):
    loader = loader_of(path)
    seen = fitted(loader.dataset(epochs=1), [loader.callback()], epochs=3)
    assert [rows(seen[first : first + STEPS]) for first in (0, STEPS, 2 * STEPS)] == [list(range(NUM_SAMPLES))] * 3
    assert len(seen) == 3 * STEPS


def check_a_first_batch_that_was_looked_at_is_not_lost(path):
    expected = [expected_batches(path, STEPS, global_batch=16, epoch=epoch) for epoch in (0, 1)]
    for prefetch, callbacks in ((0, False), (1, False), (100, True)):
        state = loader_of(path).state_dict() | {"position": 32}
        loader = loader_of(path, prefetch=prefetch)
        loader.load_state_dict(state)
        if callbacks:
            loader.callback()
        endless = loader.dataset()
        next(iter(endless))
        assert content(endless.take(9)) == expected[0][2:] + expected[1][:4]


def check_training_resumes_after_what_keras_has_used(path):
    for prefetch in (0, 3):
        loader = loader_of(path, prefetch=prefetch)
        begun = fitted(loader.dataset(), [loader.callback(), StopAfter(4)], steps_per_epoch=len(loader), epochs=9)
        assert (loader.epoch, loader.step, len(begun)) == (0, 4, 4)
        resumed = loader_of(path, batch_size=10, prefetch=prefetch)
        resumed.load_state_dict(loader.state_dict())
        assert rows([*begun, *fitted(resumed.dataset(epochs=1), [resumed.callback()])]) == list(range(NUM_SAMPLES))
        assert (resumed.epoch, resumed.step) == (1, 0)


def check_an_endless_dataset_goes_on_after_the_batches_that_keras_used(path):
    """Nine steps by fits of three, across the end of an epoch of seven; without the callback it logs what happens."""
    expected = [batch for epoch in (0, 1) for batch in expected_batches(path, STEPS, global_batch=16, epoch=epoch)]
    for prefetch in (0, 2):
        loader = loader_of(path, prefetch=prefetch)
        endless = loader.dataset()
        seen = [fitted(endless, [loader.callback()], steps_per_epoch=3) for _ in range(3)]
        assert [batch for each in seen for batch in content(each)] == expected[:9]
        assert (loader.epoch, loader.step) == (1, 2)
    unreported = loader_of(path, prefetch=0)
    endless = unreported.dataset()
    with logged("wdsplit.integrations.tensorflow") as lines:
        assert content(fitted(endless, [], steps_per_epoch=4)) == expected[:4]
        assert lines == []
        assert content(fitted(endless, [], steps_per_epoch=4)) == expected[:4]
    assert len(lines) == 1 and "epoch 0 starts again at position 0" in lines[0]


def check_an_epoch_without_batches_is_an_error_and_no_endless_search(path):
    spec = tuple(tf.TensorSpec((None,), dtype) for dtype in (tf.int64, tf.int64, tf.bool))
    loader = TensorFlowLoader(wdsplit.Loader(opened(path, tail="drop"), 1000), element_spec=spec)
    with pytest.raises(wdsplit.InputError, match="there is no batch in an epoch"):
        loader.dataset()
    assert content(loader.dataset(epochs=1)) == []


def check_pads_weigh_nothing_in_an_evaluation(path):
    model = tf.keras.Sequential([tf.keras.layers.Lambda(lambda x: x)])
    model.compile(loss="mse", weighted_metrics=["mae"])
    loader = loader_of(path, shuffle=False)

    def weighted(position, row, pad):
        row = tf.cast(row, tf.float32)[:, None]
        return row, tf.zeros_like(row), tf.cast(~pad, tf.float32)

    _, mean = model.evaluate(loader.dataset(epochs=1).map(weighted), verbose=0)
    assert mean == pytest.approx(50)


def check_a_state_counts_what_was_iterated(path):
    loader = loader_of(path, prefetch=5)
    begun = list(itertools.islice(loader, 3))
    assert (loader.epoch, loader.step) == (0, 3)
    alone = wdsplit.Loader(opened(path), 4)
    alone.load_state_dict(loader.state_dict())
    assert sorted(rows(begun) + [row for batch in alone for row in batch[1][~batch[2]]]) == list(range(NUM_SAMPLES))
    assert content(loader) == expected_batches(path, STEPS, global_batch=16)


def check_steps_are_skipped_before_an_iteration_or_after_a_state(path):
    loader = loader_of(path)
    loader.skip(1, 2)
    expected = expected_batches(path, STEPS, global_batch=16)
    batches = loader.enumerate()
    seen = {step: content([batch])[0] for step, batch in itertools.islice(batches, 2)}
    assert seen == {0: expected[0], 3: expected[3]}
    with pytest.raises(wdsplit.InputError, match="prefetched"):
        loader.skip(5, 5)
    loader.load_state_dict(loader.state_dict())
    loader.skip(5, 5)
    assert {step: content([batch])[0] for step, batch in loader.enumerate()} == {4: expected[4], 6: expected[6]}


def check_epochs_can_be_chosen(path):
    dataset = opened(path)
    loader = TensorFlowLoader(wdsplit.Loader(dataset, 16))
    list(loader)
    loader.set_epoch(5)
    assert content(loader) == expected_batches(path, STEPS, global_batch=16, epoch=5)
    dataset.set_epoch(3)
    assert content(loader) == expected_batches(path, STEPS, global_batch=16, epoch=3)
    iterator = iter(loader)
    next(iterator)
    dataset.set_epoch(7)
    next(iterator)
    assert (loader.epoch, loader.step) == (7, 0)


def replica_rows(strategy, distributed, steps):
    """Return the deliveries of each replica in each step."""
    found = []
    for batch in itertools.islice(distributed, steps):
        local = [strategy.experimental_local_results(column) for column in batch]
        found.append([content([[column[replica] for column in local]])[0] for replica in range(2)])
    return found


def check_a_mirrored_strategy_splits_batches_among_replicas_and_nothing_else(path):
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    found = replica_rows(strategy, strategy.experimental_distribute_dataset(loader_of(path).dataset(epochs=2)), 99)
    expected = [batch for epoch in range(2) for batch in expected_batches(path, STEPS, global_batch=16, epoch=epoch)]
    assert [first + second for first, second in found] == expected
    assert all(len(first) == len(second) == 8 for first, second in found)


def check_an_error_keeps_its_type(path):
    def fail(sample):
        if sample["__position__"] == 20:
            raise ZeroDivisionError("no number")
        return sample

    dataset = wdsplit.Dataset(path).map(fail).decode().to_tuple("cls")
    iterator = iter(TensorFlowLoader(wdsplit.Loader(dataset, 16), prefetch=0))
    next(iterator)
    with pytest.raises(ZeroDivisionError, match="no number"):
        next(iterator)


def check_what_cannot_be_a_tensor_is_refused_by_name(path):
    dataset = wdsplit.Dataset(path).decode().map(lambda sample: {"cls": sample["cls"], "set": {1}})
    with pytest.raises(wdsplit.InputError, match="cannot convert 'set' to a tensor"):
        TensorFlowLoader(wdsplit.Loader(dataset, 8))
    dataset = wdsplit.Dataset(path).map(lambda sample: (np.longdouble(1),))
    with pytest.raises(wdsplit.InputError, match="cannot convert element 0 to a tensor"):
        TensorFlowLoader(wdsplit.Loader(dataset, 8, output="numpy"))
    with pytest.raises(wdsplit.InputError, match="no batch"):
        loader_of(path, batch_size=1000, tail="drop")
    for bad in ({"prefetch": -1}, {"prefetch": True}):
        with pytest.raises(wdsplit.InputError, match="prefetch"):
            loader_of(path, **bad)
    with pytest.raises(wdsplit.InputError, match="not a wdsplit loader"):
        TensorFlowLoader(dataset)
    with pytest.raises(wdsplit.InputError, match="invalid epochs"):
        loader_of(path).dataset(epochs=0)


def check_the_block_of_the_documentation_runs(path):
    code = (
        documented_block("tensorflow.md", "TensorFlowLoader(")
        .replace("data/train", path)
        .replace('"npy", "cls"', '"cls", "cls"')
    )
    model = tf.keras.Sequential([tf.keras.Input(()), tf.keras.layers.Lambda(lambda x: tf.cast(x, tf.float32))])
    model.compile(loss="mse")
    names = {"model": model}
    exec(code, names)
    assert (names["loader"].epoch, names["loader"].step) == (2, 0)
