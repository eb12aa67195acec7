"""Checks of JaxLoader in one process of 8 devices, without torch; run by test_integrations_jax.py."""

import itertools
import logging
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pytest
from jax.sharding import AxisType, Mesh, PartitionSpec

import wdsplit
from checks import documented_block
from logs import logged
from wdsplit.integrations.jax import JaxLoader

NUM_SAMPLES = 101


def opened(path, **options):
    return wdsplit.Dataset(path, **options).decode().to_tuple("__position__", "cls", "__pad__")


def mesh_of(*shape, names=("data", "model")):
    devices = np.array(jax.devices()[: int(np.prod(shape))]).reshape(shape)
    return Mesh(devices, names[: len(shape)])


def rows(batches):
    """Return the numbers of the rows that batches hold as themselves, sorted."""
    found = [np.asarray(batch.data[1])[np.asarray(batch.valid)] for batch in batches]
    return sorted(np.concatenate(found).tolist()) if found else []


def content(batches):
    return [[column.tolist() for column in map(np.asarray, batch.data)] for batch in batches]


def plain(path, global_batch, epoch=0, **options):
    """Return what a plain loader of one rank gives."""
    loader = wdsplit.Loader(opened(path, **options), global_batch)
    loader.set_epoch(epoch)
    return [[column.tolist() for column in batch] for batch in loader]


def failing_from(limit):
    def fail(sample):
        if sample["__position__"] >= limit:
            raise ValueError("too far")
        return sample

    return fail


def check_torch_is_not_there(path):
    with pytest.raises(ModuleNotFoundError):
        __import__("torch")


def check_a_batch_is_that_of_a_plain_loader_over_all_devices(path):
    loader = JaxLoader(opened(path), 2)
    assert loader.global_batch == 16
    assert content(loader) == plain(path, 16)
    assert content(loader) == plain(path, 16, epoch=1)


def check_each_device_holds_its_rows(path):
    for batch in JaxLoader(opened(path), 3):
        for leaf in [*batch.data, batch.valid]:
            assert leaf.shape == (24,)
            assert [shard.data.shape for shard in leaf.addressable_shards] == [(3,)] * 8
            assert {shard.index[0].start for shard in leaf.addressable_shards} == set(range(0, 24, 3))


def check_along_a_model_axis_rows_are_repeated(path):
    loader = JaxLoader(opened(path), 5, mesh=mesh_of(4, 2))
    assert loader.global_batch == 20
    for batch in loader:
        held = {}
        for shard in batch.data[1].addressable_shards:
            held.setdefault(shard.index[0].start, []).append(np.asarray(shard.data).tolist())
        assert sorted(held) == [0, 5, 10, 15]
        assert all(len(copies) == 2 and copies[0] == copies[1] for copies in held.values())
    assert content(loader) == plain(path, 20, epoch=1)


def check_a_field_may_be_split_over_more_axes(path):
    dataset = wdsplit.Dataset(path).decode().map(lambda sample: {"a": sample["cls"], "b": np.full(6, sample["cls"])})
    loader = JaxLoader(dataset, 5, mesh=mesh_of(4, 2), specs={"b": PartitionSpec("data", "model")})
    for batch, expected in zip(loader, wdsplit.Loader(dataset, 20), strict=True):
        assert {shard.data.shape for shard in batch.data["a"].addressable_shards} == {(5,)}
        assert {shard.data.shape for shard in batch.data["b"].addressable_shards} == {(5, 3)}
        assert (np.asarray(batch.data["b"])[: len(expected["b"])] == expected["b"]).all()


def check_specs_that_do_not_split_the_batch_or_name_no_field_are_refused(path):
    mesh = mesh_of(4, 2)
    for spec in (PartitionSpec("model"), PartitionSpec(), "data"):
        with pytest.raises(wdsplit.InputError, match=r"field 1(.|\n)*begins with the data axis, 'data'"):
            JaxLoader(opened(path), 5, mesh=mesh, specs={1: spec})
    with pytest.raises(wdsplit.InputError, match="no such array"):
        next(iter(JaxLoader(opened(path), 5, mesh=mesh, specs={"jpg": PartitionSpec("data")})))


def check_batches_may_be_split_over_several_axes(path):
    loader = JaxLoader(opened(path), 2, mesh=mesh_of(2, 4, names=("replica", "data")), data_axis=("replica", "data"))
    assert content(loader) == plain(path, 16)
    assert {shard.data.shape for shard in next(iter(loader)).valid.addressable_shards} == {(2,)}


def check_one_device_is_enough(path):
    loader = JaxLoader(opened(path), 16, mesh=mesh_of(1))
    assert content(loader) == plain(path, 16)


def check_every_sample_is_valid_once_an_epoch(path):
    loader = JaxLoader(opened(path), 2, num_workers=2)
    epochs = [list(loader) for _ in range(2)]
    for epoch, batches in enumerate(epochs):
        assert len(batches) == len(loader)
        assert rows(batches) == list(range(NUM_SAMPLES))
        for batch in batches:
            assert (np.asarray(batch.valid) == ~np.asarray(batch.data[2])).all(), epoch
    assert content(epochs[0]) != content(epochs[1])


def check_masks_broadcast_over_every_leaf(path):
    dataset = (
        wdsplit.Dataset(path).decode().map(lambda sample: {"a": sample["cls"], "b": np.full((2, 3), sample["cls"])})
    )
    total = 0
    for batch in JaxLoader(dataset, 2):
        assert {name: mask.shape for name, mask in batch.masks.items()} == {"a": (16,), "b": (16, 1, 1)}
        sums = jax.tree.map(lambda leaf, mask: jnp.sum(jnp.where(mask, leaf, 0)), batch.data, batch.masks)
        assert int(sums["b"]) == 6 * int(sums["a"])
        total += int(sums["a"])
    assert total == sum(range(NUM_SAMPLES))


def check_a_short_last_batch_is_filled_up_and_masked(path):
    batches = list(JaxLoader(opened(path, tail="uneven"), 4))
    assert {batch.valid.shape for batch in batches} == {(32,)}
    assert [int(batch.valid.sum()) for batch in batches] == [32, 32, 32, 5]
    assert np.asarray(batches[-1].data[1])[4:].tolist() == [int(batches[-1].data[1][4])] * 28
    assert rows(batches) == list(range(NUM_SAMPLES))


def check_text_stays_on_the_host(path):
    batch = next(iter(JaxLoader(wdsplit.Dataset(path).decode(), 2)))
    assert sorted(batch.data) == ["__pad__", "__position__", "cls"]
    assert sorted(batch.host) == ["__key__", "__url__", "txt"]
    assert batch.host["txt"] == [f"row {row}" for row in batch.data["cls"].tolist()]
    batch = next(iter(JaxLoader(wdsplit.Dataset(path).decode().to_tuple("txt", "cls"), 2)))
    assert batch.host == ([f"row {row}" for row in batch.data[0].tolist()],)
    assert next(iter(JaxLoader(opened(path), 2))).host is None
    texts = next(iter(JaxLoader(wdsplit.Dataset(path).decode().to_tuple("txt"), 2)))
    assert texts.data is None
    uneven = list(JaxLoader(wdsplit.Dataset(path, tail="uneven").decode().to_tuple("txt", "cls"), 4))
    assert uneven[-1].host[0][5:] == [None] * 27


def check_packs_are_rows_of_one_shape_and_what_texts_have_alone_stays_on_the_host(path):
    folder = Path(path).parent / "texts"
    lengths = np.random.default_rng(0).integers(1, 12, 50)
    table = pa.table({"npy": [list(range(length)) for length in lengths], "tokens": lengths})
    wdsplit.convert(table, folder, shards=2, overwrite=True)
    packed = {"pack": "tokens", "capacity": 16, "tail": "uneven"}
    dataset = wdsplit.Dataset(folder, **packed).decode()
    later = wdsplit.Dataset(folder, view={0: None, 2: {"pack": "tokens", "capacity": 16}}).decode()
    for refused in (dataset, later):
        with pytest.raises(wdsplit.InputError, match="does not take packs"):
            JaxLoader(refused, 1)
    found = []
    for batch in JaxLoader(dataset, 1, pad_to="capacity"):
        shapes = {name: leaf.shape for name, leaf in batch.data.items()}
        assert shapes == dict.fromkeys(("npy", "__position_ids__", "__segment_ids__", "__mask__"), (8, 16))
        texts, masks, valid = (np.asarray(each) for each in (batch.data["npy"], batch.data["__mask__"], batch.valid))
        found.append([text[mask].tolist() for text, mask in zip(texts[valid], masks[valid], strict=True)])
        assert batch.host["__lengths__"].sum() == sum(map(len, found[-1]))
        assert len(batch.host["__key__"]) == len(batch.host["__lengths__"])
    plain = wdsplit.Loader(dataset, 8, pad_to="capacity", output="numpy")
    plain.set_epoch(0)
    expected = [
        [text[mask].tolist() for text, mask in zip(each["npy"], each["__mask__"], strict=True)] for each in plain
    ]
    assert found == expected
    assert sum(len(text) for texts in found for text in texts) == lengths.sum()


def check_a_state_resumes_on_fewer_devices_and_in_a_plain_loader(path):
    for prefetch in (0, 3):
        loader = JaxLoader(opened(path), 2, prefetch=prefetch)
        begun = list(itertools.islice(loader, 3))
        state = loader.state_dict()
        assert (state["epoch"], state["position"], loader.step) == (0, 48, 3)
        fewer = JaxLoader(opened(path), 3, mesh=mesh_of(2, 1), prefetch=prefetch)
        fewer.load_state_dict(state)
        assert fewer.step == 8
        assert rows([*begun, *fewer]) == list(range(NUM_SAMPLES))
        assert fewer.epoch == 1
        between = JaxLoader(opened(path), 7, mesh=mesh_of(2, 1), prefetch=prefetch)  # steps of 14: 48 lies between two
        between.load_state_dict(state)
        assert (between.step, len(between)) == (4, 8)
        assert [between.step for _ in between] == [5, 6, 7, 0]
        alone = wdsplit.Loader(opened(path), 16)
        alone.load_state_dict(state)
        assert [[column.tolist() for column in batch] for batch in alone] == plain(path, 16)[3:]


def check_an_epoch_that_was_broken_off_begins_again(path):
    for prefetch in (0, 2, 100):
        loader = JaxLoader(opened(path), 2, prefetch=prefetch)
        next(iter(loader))
        assert (loader.epoch, loader.step) == (0, 1)
        assert content(loader) == plain(path, 16)
        assert loader.epoch == 1


def check_no_more_is_put_ahead_than_asked_for(path):
    for prefetch in (0, 1, 3):
        loader = JaxLoader(opened(path), 2, prefetch=prefetch)
        iterator = iter(loader)
        for taken in (1, 2):
            next(iterator)
            made = loader.loader.statistics()
            assert (made.batches, made.samples_made) == (taken, 16 * (taken + prefetch))


def check_steps_are_skipped_while_batches_are_put_ahead(path):
    loader = JaxLoader(opened(path), 2)
    steps = {}
    for step, batch in loader.enumerate():
        steps[step] = batch
        if step == 1:
            loader.skip(3, 4)
    assert list(steps) == [0, 1, 2, 5, 6]
    expected = plain(path, 16)
    assert content(steps.values()) == [expected[step] for step in steps]


def check_batches_before_an_error_are_given(path):
    dataset = wdsplit.Dataset(path).map(failing_from(48)).decode().to_tuple("__position__", "cls", "__pad__")
    iterator = iter(JaxLoader(dataset, 2, prefetch=2))
    assert content(itertools.islice(iterator, 3)) == plain(path, 16)[:3]
    with pytest.raises(ValueError, match="too far"):
        next(iterator)


def check_integers_that_do_not_fit_are_an_error(path):
    dataset = wdsplit.Dataset(path).decode().map(lambda sample: {"big": sample["cls"] + 2**31 - 50})
    with pytest.raises(wdsplit.InputError, match="'big' has integers that do not fit into int32"):
        list(JaxLoader(dataset, 2))
    jax.config.update("jax_enable_x64", True)
    try:
        assert {batch.data["big"].dtype.name for batch in JaxLoader(dataset, 2)} == {"int64"}
    finally:
        jax.config.update("jax_enable_x64", False)


def check_doubles_become_floats_as_jax_says_and_that_is_logged_once(path):
    dataset = wdsplit.Dataset(path).decode().map(lambda sample: {"x": sample["cls"] / 2, "y": np.float16(1)})
    with logged("wdsplit.integrations.jax", logging.INFO) as said:
        batches = list(JaxLoader(dataset, 2))
    assert {(batch.data["x"].dtype.name, batch.data["y"].dtype.name) for batch in batches} == {("float32", "float16")}
    assert [line for line in said if "float64" in line] == [
        "'x': float64 becomes float32, because jax_enable_x64 is off"
    ]


def check_gradients_over_all_devices_are_those_of_one(path):
    def loss(weight, x, valid):
        return jnp.sum(jnp.where(valid, (weight * x - 1) ** 2, 0)) / jnp.sum(valid)

    step = jax.jit(jax.value_and_grad(loss))
    found = []
    for mesh in (mesh_of(8), mesh_of(4, 2), mesh_of(1)):
        parts = 8 if mesh.size == 8 and "model" not in mesh.shape else mesh.shape["data"]
        weight, losses = jnp.float32(0.5), []
        for batch in JaxLoader(opened(path), 16 // parts, mesh=mesh):
            value, gradient = step(weight, batch.data[1].astype(jnp.float32) / NUM_SAMPLES, batch.valid)
            weight, losses = weight - 0.1 * gradient, [*losses, float(value)]
        found.append(losses)
    np.testing.assert_allclose(found[1:], [found[0]] * 2, rtol=1e-5)
    assert found[0][-1] < found[0][0]


def check_meshes_of_explicit_axes_work_too(path):
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Explicit,))
    batch = next(iter(JaxLoader(opened(path), 2, mesh=mesh)))
    assert jax.typeof(batch.data[1]).sharding.spec == jax.P("data")


def check_what_cannot_be_is_refused_with_all_reasons(path):
    with pytest.raises(wdsplit.InputError) as caught:
        JaxLoader([], 0, data_axis="rows", prefetch=-1, mesh=mesh_of(8), collate_fn=list)
    for part in ("dataset is a list", "batch_size = 0", "prefetch = -1", "('rows',)", "collate_fn"):
        assert part in caught.value.found
    with pytest.raises(wdsplit.TopologyError, match="opened for another rank"):
        JaxLoader(opened(path, rank=1, world_size=2), 1)
    JaxLoader(opened(path, rank=0, world_size=1), 1)
    for options in ({"output": "torch"}, {"num_workers": 1}):
        with pytest.raises(wdsplit.MissingDependencyError, match="torch"):
            wdsplit.Loader(opened(path), 1, **options)


def check_the_block_of_the_documentation_runs(path):
    code = documented_block("jax.md", "JaxLoader(").replace("data/train", path).replace('"npy", "cls"', '"cls", "cls"')
    names = {"predict": lambda features: features}
    exec(code, names)
    assert names["loader"].epoch == 2
    assert int(names["hits"].sum()) == int(names["batch"].valid.sum()) > 0
    assert names["state"]["epoch"] == 2
