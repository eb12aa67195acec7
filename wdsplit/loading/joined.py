"""The side shards of the annotations whose fields are joined to the samples of a dataset."""

from __future__ import annotations

from collections.abc import Sequence

from wdsplit.errors import DatasetNotFoundError, InputError
from wdsplit.loading.reading.source import Access
from wdsplit.shards.annotations import ANNOTATIONS, find_annotation, read_side_shards
from wdsplit.shards.manifest import Manifest
from wdsplit.urls import shown_url

__all__ = ["read_joined"]


def read_joined(url: str, manifest: Manifest, access: Access, names: Sequence[str]) -> list[Manifest]:
    """Return the side shards of annotations, for `Source`.

    Args:
        url: The dataset's folder.
        manifest: Its manifest, of all samples.
        access: How it is reached.
        names: The annotations.

    Raises:
        InputError: There is no such annotation, it was made for other shards or has no fields, or two fields of the
            samples would have one name.
        CorruptDataError: An annotation is damaged.
    """
    sides, owners = list[Manifest](), dict.fromkeys(manifest.field_names, "the dataset")
    storage = access.storage(url) if names else None
    for name in dict.fromkeys(names):
        if storage is None or access.tars is not None:
            raise InputError(
                "tars without a manifest have no fields to join",
                place=shown_url(url),
                expected="the folder of a dataset",
                found=f"join = {name!r}",
                remedy="make a dataset of the tars with `wdsplit index FOLDER`, annotate it, and open it",
            )
        try:
            annotation = find_annotation(storage, name, manifest)
        except DatasetNotFoundError as error:
            raise ANNOTATIONS.unknown(storage, name) from error
        owner = f"annotation {name!r}"
        if not annotation.fields:
            raise InputError(
                f"{owner} has no fields to join",
                place=storage.url,
                expected="an annotation with bytes, texts, lists or tensors",
                found=f"only the columns {', '.join(annotation.schema.names)}",
                remedy="leave it out of join: conditions (where=) can name its columns",
            )
        for field in annotation.fields:
            if field.name in owners:
                raise InputError(
                    f"two fields of the samples are called {field.name!r}",
                    place=storage.url,
                    expected="different names",
                    found=f"in {owners[field.name]}, and in {owner}",
                    remedy=f"join one of them, or annotate again with --map new.{field.name}={field.column}",
                )
            owners[field.name] = owner
        sides.append(read_side_shards(storage, annotation, manifest))
    return sides
