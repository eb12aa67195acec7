"""Stages as methods: webdataset's, with their types, and those that wdsplit implements itself.

Editors and type checkers know what `.decode()` returns. webdataset is imported with the first of its own stages.
"""

# ruff: noqa: D102 (webdataset documents its stages)

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import MethodType
from typing import TYPE_CHECKING, Any, NoReturn

from wdsplit.errors import InputError
from wdsplit.loading.reading.source import AnySource, Source
from wdsplit.loading.stages.columns import Rename, ToTuple
from wdsplit.loading.stages.randomness import IMAGES, MAPS, Draws, GeneratorKind, RandomMap, Shift, at_epoch
from wdsplit.order.epoch import OrderOptions
from wdsplit.shards.manifest import Field, Manifest

if TYPE_CHECKING:
    from torch.utils.data import IterableDataset as TorchDataset
    from typing_extensions import Self

    from wdsplit.loading.stages.decoders import Handler

    IterableDataset = TorchDataset[Any]
else:
    try:
        from torch.utils.data import IterableDataset
    except ModuleNotFoundError:
        from webdataset.pytorch import IterableDataset  # webdataset's replacement for torch's

__all__ = ["FluidPipeline", "FluidStages"]


class _OfWebdataset:
    """A method of webdataset's FluidInterface, which is imported when the method is first looked up."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type) -> Any:
        from webdataset.compat import FluidInterface

        method = getattr(FluidInterface, self._name)
        return method if instance is None else MethodType(method, instance)


class FluidStages:
    """Stages as methods, each of which returns a copy with one more stage; and what is known of the source."""

    pipeline: list[Any]

    if TYPE_CHECKING:  # webdataset has no types

        @property
        def source(self) -> AnySource: ...

        def compose(self, *stages: Any) -> Self: ...
        def map(self, f: Callable[[Any], Any], handler: Callable[..., Any] = ...) -> Self: ...
        def map_dict(self, handler: Callable[..., Any] = ..., **functions: Callable[[Any], Any]) -> Self: ...
        def map_tuple(self, *functions: Callable[[Any], Any], handler: Callable[..., Any] = ...) -> Self: ...
        def select(self, predicate: Callable[[Any], bool], **options: Any) -> Self: ...
        def rename_keys(self, *names: Any, **options: Any) -> Self: ...
        def extract_keys(self, *names: Any, **options: Any) -> Self: ...
        def batched(
            self, batchsize: int, collation_fn: Callable[[list[Any]], Any] | None = ..., partial: bool = True
        ) -> Self: ...
        def unbatched(self) -> Self: ...
        def listed(self, batchsize: int, partial: bool = True) -> Self: ...
        def unlisted(self) -> Self: ...
        def shuffle(self, size: int, **options: Any) -> Self: ...
        def slice(self, *bounds: int | None) -> Self: ...
        def rsample(self, p: float = 0.5) -> Self: ...
        def log_keys(self, logfile: str | None = None) -> Self: ...
        def xdecode(self, *args: Any, **options: Any) -> Self: ...
        def mcached(self) -> Self: ...
        def lmdb_cached(self, *args: Any, **options: Any) -> Self: ...

    @property
    def manifest(self) -> Manifest:
        """The dataset's manifest.

        Raises:
            InputError: The dataset is a mixture.
        """
        return self._single("manifest").manifest

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields that samples can have: those of the manifest, and joined ones; `fields=` reads some of them.

            print([field.name for field in dataset.fields])

        Raises:
            InputError: The dataset is a mixture.
        """
        return self._single("fields").all_fields

    def _single(self, what: str) -> Source:
        source = self.source
        if not isinstance(source, Source):
            raise InputError(
                f"a mixture has no {what} of its own",
                place=source.url,
                remedy="open one of its datasets with wdsplit.Dataset",
            )
        return source

    @property
    def options(self) -> OrderOptions:
        """The options that the order depends on."""
        return self.source.options

    @property
    def classes(self) -> tuple[str, ...]:
        """The class names by their numbers; empty if no column has class names. All datasets of a mixture must agree.

        Raises:
            InputError: Several columns have class names (see `manifest.class_names`), or datasets of a mixture differ.
        """
        return self.source.classes

    def decode(
        self,
        *handlers: str | Handler,
        only: Sequence[str] | str | None = None,
        partial: bool = False,
        allow_pickle: bool = False,
        **options: Any,
    ) -> Self:
        """Decode the fields of each sample by their names, as webdataset's `decode` does, but without pickles.

            images = dataset.decode("pil", only=["jpg", "cls"])

        `help(wdsplit.decode_sample_stage)` has the details.

        Args:
            handlers: Names of image formats (`pil`, `rgb8`, `torchrgb`, ...), or functions of name and bytes.
            only: The fields to decode; None for all.
            partial: Leave values that are not bytes as they are.
            allow_pickle: Decode pickles and object arrays too. They can run any code: trust the shards first.
            options: `exif=True` to turn images upright by their EXIF orientation; `max_field_bytes`.
        """
        if "handler" in options:
            raise InputError(
                "decode does not accept a handler for errors",
                expected="no handler=: if one skipped samples, ranks would have different numbers of steps",
                remedy="remove it; Dataset(on_bad_sample='substitute') replaces samples that cannot be decoded",
            )
        from wdsplit.loading.stages.decoders import Decode, decode_sample_stage  # here, because it loads much

        stage = decode_sample_stage(*handlers, only=only, partial=partial, allow_pickle=allow_pickle, **options)
        if stage.draws_images:
            number = sum(isinstance(other, Decode) and other.draws_images for other in self.pipeline)
            stage = replace(stage, draws=Draws(IMAGES, self.options.seed, number))
        return self.compose(stage)

    def map_random(
        self, function: Callable[..., Any], field: str | None = None, generator: GeneratorKind = "numpy"
    ) -> Self:
        """Map samples by a random function: with the same results on any number of ranks, and after a resume.

            def noisy(image, generator):
                return image + generator.normal(0, 0.1, image.shape)

            augmented = dataset.decode("rgb").map_random(noisy, field="jpg")

        The generator is seeded from the dataset's seed, the epoch and the sample's position.

        Args:
            function: Called with (sample, generator), or (value, generator) if `field` is given.
            field: The field to replace by the function's result; None for the whole sample.
            generator: `numpy` (numpy.random.Generator), `torch` (torch.Generator), `python` (random.Random); or
                `global`, for transforms that draw from the global generators: all three are seeded, and the function is
                called without a generator. Threads share the global generators, so `global` needs processes.
        """
        number = sum(isinstance(stage, RandomMap) for stage in self.pipeline)
        return self.compose(RandomMap(function, field, generator, draws=Draws(MAPS, self.options.seed, number)))

    def to_tuple(self, *args: Any, **options: Any) -> Self:
        """Make each sample a tuple of the named fields, as webdataset's `to_tuple` does.

            pairs = dataset.decode("pil").to_tuple("jpg", "cls", "__key__")

        Args:
            args: Names of fields, one by one or in one text.
            options: Options of webdataset's stage.
        """
        names = tuple(args[0].split()) if len(args) == 1 and isinstance(args[0], str) else args
        if not options:
            return self.compose(ToTuple(names))
        from webdataset import filters

        return self.compose(filters.to_tuple(*args, **options))

    def rename(self, **names: Any) -> Self:
        """Rename fields, `new="old"`, as webdataset's `rename` does.

            renamed = dataset.rename(image="jpg", label="cls")

        Args:
            names: New names to old ones.
        """
        if not {"handler", "keep"} & names.keys():
            return self.compose(Rename(names))
        from webdataset import filters

        return self.compose(filters.rename(**names))

    def _applied(
        self, stages: Sequence[Any], epoch: int, samples: Iterator[Any], shift: Shift | None = None
    ) -> Iterator[Any]:
        """Give what some stages make of samples in an epoch; `shift` is that of their positions for random numbers."""
        stream: Any = samples
        for stage in stages:
            own = at_epoch(stage, epoch, shift)
            if type(own).__module__.startswith("wdsplit."):
                stream = own(stream)
            else:
                from webdataset.compat import DataPipeline

                stream = DataPipeline.invoke(self, own, stream)
        return iter(stream)


class FluidPipeline(IterableDataset, FluidStages):
    """A source and stages, like webdataset's `DataPipeline`; each stage method returns a pipeline of the same class.

    Args:
        source: The first stage, which yields samples.
    """

    def __init__(self, source: Any) -> None:
        super().__init__()
        self.pipeline = [source]

    def compose(self, *stages: Any) -> Self:
        """Return a copy with more stages: functions from an iterator to an iterator.

            def with_length(samples):
                for sample in samples:
                    yield {**sample, "length": len(sample["jpg"])}

            longer = dataset.compose(with_length)

        Args:
            stages: The functions, called in this order.
        """
        copied = copy.copy(self)
        copied.pipeline = [*self.pipeline, *stages]
        return copied

    def repeat(self, *_: Any, **__: Any) -> NoReturn:
        raise InputError(
            "a Dataset does not support repeat, with_epoch and with_length",
            expected="one epoch per iteration",
            remedy="call set_epoch(epoch + 1) and iterate again; len(wdsplit.Loader(dataset, batch_size)) counts steps",
        )

    with_epoch = with_length = repeat


for _name in (
    *("batched", "extract_keys", "listed", "lmdb_cached", "log_keys", "map", "map_dict", "map_tuple", "mcached"),
    *("rename_keys", "rsample", "select", "shuffle", "slice", "unbatched", "unlisted", "xdecode"),
):
    setattr(FluidStages, _name, _OfWebdataset(_name))
