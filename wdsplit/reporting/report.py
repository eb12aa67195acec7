"""`wdsplit.report`: facts collected from a dataset, and the page made of them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wdsplit.conversion.plan.options import chosen
from wdsplit.notebook import html_table
from wdsplit.reporting.collect import collected
from wdsplit.reporting.facts import Facts
from wdsplit.reporting.options import ReportOptions
from wdsplit.reporting.page import page
from wdsplit.reporting.subject import Subject, open_mixture, open_subject
from wdsplit.reporting.verdicts import Verdict, verdicts
from wdsplit.storage.local import write_whole
from wdsplit.texts import safe_text

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["Report", "report"]


@dataclass(frozen=True)
class Report:
    """A report.

    Attributes:
        facts: What it says, as plain values.
        html: The page: one file that needs no network and runs no script.
    """

    facts: Facts = field(repr=False)
    html: str = field(repr=False)

    @property
    def verdicts(self) -> list[Verdict]:
        """The answers of the summary: what is in it, is it mixed, will GPUs wait."""
        return verdicts(self.facts)

    def __repr__(self) -> str:
        answers = " ".join(f"{each.question} {each.answer}." for each in self.verdicts)
        return f"<Report of {safe_text(self.facts.name, 200)}: {answers}>"

    def _repr_html_(self) -> str:
        rows = [(each.question, each.answer, f"{each.text} {each.remedy}".strip()) for each in self.verdicts]
        return html_table(f"Report of {self.facts.name}: report.save(path) writes the whole page", rows)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page to a file.

            wdsplit.report("data/train").save("report.html")

        Raises:
            StorageError: It cannot be written.
        """
        write_whole(Path(path), self.html.encode())


def report(
    dataset: Any,
    output: str | os.PathLike[str] | None = None,
    options: ReportOptions | None = None,
    storage_options: Mapping[str, Any] | None = None,
    fs: AbstractFileSystem | None = None,
    **keywords: Any,
) -> Report:
    """Make a page that shows what is in a dataset, how well it is mixed, and whether training will wait for data.

        wdsplit.report("data/train", "report.html")

        slow = wdsplit.Cluster(link_gbits=10)
        print(wdsplit.report("data/train", topologies=[wdsplit.Topology(8, 4)], cluster=slow).verdicts)

    Args:
        dataset: The dataset's folder, or tars, as for `Dataset`. Or an open `Dataset` or mixture, whose own seed and
            view are used; if views change by epoch, the first. A list of folders is reported as a mixture of all their
            samples.
        output: The file to write, if any.
        options: The options.
        storage_options: Options for a remote store, as for `Dataset`.
        fs: fsspec file system of the folder; None to choose it by the path.
        **keywords: Fields of `ReportOptions`. They replace those of `options`.

    Returns:
        The facts and the page.

    Raises:
        WdsplitError: The dataset, or a part of it, cannot be read.
    """
    options = chosen(ReportOptions, options, keywords)
    facts = collected(_opened(dataset, options, storage_options, fs), options)
    made = Report(facts, page(facts))
    if output is not None:
        made.save(output)
    return made


def _opened(
    dataset: Any, options: ReportOptions, storage_options: Mapping[str, Any] | None, fs: AbstractFileSystem | None
) -> Subject:
    choice = {"view": options.view, "where": options.where}
    many = isinstance(dataset, Sequence) and not isinstance(dataset, str)
    if many and len(dataset) > 1 and not any(str(each).endswith(".tar") for each in dataset):
        return open_mixture(dataset, options.seed, options.shuffle, storage_options=storage_options, fs=fs, **choice)
    one = dataset[0] if many and len(dataset) == 1 else dataset
    return open_subject(one, options.seed, options.shuffle, storage_options, fs, choice)
