"""`wdsplit.report`: facts collected from a dataset, and the page made of them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from wdsplit.conversion.plan.options import chosen
from wdsplit.notebook import html_table
from wdsplit.reporting.charts import draw
from wdsplit.reporting.cluster import ASSUMPTIONS
from wdsplit.reporting.collect import Facts, collected
from wdsplit.reporting.options import ReportOptions
from wdsplit.reporting.pictures import pictures
from wdsplit.reporting.subject import open_subject
from wdsplit.reporting.templates import TEMPLATES, Markup
from wdsplit.reporting.verdicts import Verdict, verdicts
from wdsplit.storage.local import write_whole
from wdsplit.texts import safe_text

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["Report", "report"]

_PROVENANCE_CHARACTERS, _PARTS = 4000, 20


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
    choice = {"view": options.view, "where": options.where, "version": options.version, "join": options.join or None}
    facts = collected(open_subject(dataset, options.seed, options.shuffle, storage_options, fs, **choice), options)
    made = Report(facts, _page(facts))
    if output is not None:
        made.save(output)
    return made


def _page(facts: Facts) -> str:
    """Return the HTML of a report."""
    made = pictures(facts)
    drawn = draw(made)
    provenance = [orjson.dumps(part.manifest.provenance, option=orjson.OPT_INDENT_2) for part in facts.parts[:_PARTS]]
    return TEMPLATES.get_template("page.html.jinja").render(
        facts=facts,
        name=safe_text(facts.name, 200),
        verdicts=verdicts(facts),
        pictures={picture.name: picture for picture in made},
        svg={name: Markup(text) for name, text in drawn.items()},  # parsed and written anew by `charts`
        field_pictures=[picture.name for picture in made if picture.name.startswith("field-")],
        assumptions=ASSUMPTIONS,
        provenance=[safe_text(text.decode(), _PROVENANCE_CHARACTERS, lines=True) for text in provenance],
        keys={row: safe_text(key, 60) for row, key in facts.keys.items()},
    )
