"""The summary of a report: what is in it, is it mixed, will GPUs wait; each a sentence with a grade."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from wdsplit.reporting.collect import Facts
from wdsplit.reporting.fields import FieldFacts
from wdsplit.texts import counted, human_bytes, human_number, human_seconds, safe_text

__all__ = ["Verdict", "verdicts"]

Grade = Literal["good", "fair", "bad", "unknown"]

_FAIR_SKEW, _BAD_SKEW = 1.5, 2.5
"""How many times the ideal the chi-squared of a rank's batch may be."""
_FAIR_MEETING, _BAD_MEETING = 0.01, 0.05
"""The share of the others in its batch that a sample may meet again, beyond chance."""
_FAIR_WAITING, _BAD_WAITING = 0.05, 0.2
_IMBALANCE = 10
_GRADES: tuple[Grade, ...] = ("good", "fair", "bad")
_NAMES = 5
_REMEDIES = {
    "decoding": "Decoding is the limit: more workers, smaller images, or a faster decoder.",
    "link": "The link is the limit: a cache on the node's own disk (cache_dir), a faster link, or smaller samples.",
    "requests": "The latency of requests is the limit: larger windows, or more connections.",
}


@dataclass(frozen=True)
class Verdict:
    """An answer.

    Attributes:
        question: What is asked.
        grade: good, fair, bad or unknown.
        answer: One or two words.
        text: The reason, in a sentence or two.
        remedy: What to do; empty if nothing.
        section: The section of the page that shows it.
    """

    question: str
    grade: Grade
    answer: str
    text: str
    remedy: str
    section: str


def verdicts(facts: Facts) -> list[Verdict]:
    """Return the three answers."""
    return [_content(facts), _mixed(facts), _waiting(facts)]


def _content(facts: Facts) -> Verdict:
    question = "What is in it?"
    if not facts.num_samples:
        what = "view" if facts.total("num_samples") else "dataset"
        return Verdict(question, "bad", "nothing", f"The {what} has no samples.", "", "identity")
    labels, stored = facts.labels, facts.total("num_samples")
    is_exact = facts.num_scanned == facts.num_in_view
    problems = [
        f"{counted(count, 'sample')} with {which} {safe_text(field.name, 30)}"
        for field in facts.fields
        for which, count in (("no", field.absent), ("an empty", field.nulls), ("an unreadable", field.unreadable))
        if count
    ]
    if labels is not None and is_exact and int(labels.counts.min()) * _IMBALANCE < int(labels.counts.max()):
        problems.append(
            f"the class {safe_text(labels.names[0], 40)!r} has {int(labels.counts[0]):,} samples, "
            f"{safe_text(labels.names[-1], 40)!r} only {int(labels.counts[-1]):,}"
        )
    if facts.duplicates is not None and facts.duplicates.extra * 100 > facts.num_scanned:
        problems.append(f"{counted(facts.duplicates.extra, 'sample')} with the {facts.duplicates.field} of another")
    parts = [describe_field(field) for field in facts.fields if labels is None or field.name != labels.field]
    text = f"{facts.contents} of {human_bytes(facts.total('num_bytes'))}"
    if facts.num_in_view < stored:
        whole = f"{counted(stored, 'sample')}, {human_bytes(facts.total('num_bytes'))}"
        text = f"{facts.contents} in the view, of {whole} in all"
    text += f" ({'; '.join(facts.units)})" if facts.units else ""
    text += f", each with {', '.join(parts)}" if parts else ""
    if labels is not None:
        names = ", ".join(safe_text(name, 30) for name in labels.names[:_NAMES])
        more = ", …" if len(labels.names) > _NAMES else ""
        at_least = "" if is_exact or labels.is_complete else "at least "
        text += f", in {at_least}{counted(len(labels.names), 'class', 'classes')} ({names}{more})"
    grade: Grade = "fair" if problems else "good"
    noticed = f" To look at: {'; '.join(problems)}." if problems else ""
    answer = "look closer" if problems else facts.contents
    return Verdict(question, grade, answer, f"{text}.{noticed}", "", "samples")


def describe_field(field: FieldFacts) -> str:
    """Describe a field in a few words: `jpg (image, 32 x 32)`."""
    width, height, characters = (field.measure(name) for name in ("width", "height", "characters"))
    detail = ""
    if width is not None and height is not None:
        sides = (f"{human_number(each.median)}" for each in (width, height))
        usual = "" if width.is_constant and height.is_constant else "usually "
        detail = f", {usual}{' x '.join(sides)}"
    elif characters is not None:
        detail = f", usually {characters.median:,.0f} characters"
    return f"{safe_text(field.name, 30)} ({field.kind}{detail})"


def _mixed(facts: Facts) -> Verdict:
    question = "Is it mixed?"
    if facts.is_grouped:
        text = "The samples of a batch have one value, or similar lengths, on purpose: other ones in the next epoch."
        return Verdict(question, "good", "by group", text, "", "mixing")
    if not facts.batches and (facts.labels is not None or facts.num_samples <= facts.batch_size):
        why = f"Batches of {facts.batch_size} have no two classes to compare."
        if facts.num_samples <= facts.batch_size:
            why = f"The dataset is too small: it does not fill two batches of {facts.batch_size}."
        return Verdict(question, "unknown", "cannot say", why, "", "mixing")
    of_classes, text = _spread(facts)
    of_meeting, meeting = _met_again(facts)
    text = f"{text} {meeting}".rstrip()
    if facts.labels is None and not facts.is_shuffled:
        remedy = "If the table was sorted, convert again with shuffled rows; "
        remedy += "name the field of the classes with --class-field."
        return Verdict(question, "unknown", "cannot say", text, remedy, "mixing")
    grade = max(of_classes, of_meeting, key=_GRADES.index)
    answer = {"good": "yes", "fair": "partly", "bad": "no"}[grade]
    if grade == "good":
        remedy = ""
    elif of_classes == "good":
        remedy = "More lanes with smaller windows mix better: report a Dataset(path, lanes=..., window=...) of others."
    elif facts.is_shuffled:
        remedy = "Convert again with more lanes or smaller shards: see who reads what."
    else:
        remedy = "Convert again with shuffled rows: the table is sorted by class, and the loader cannot fix that."
    return Verdict(question, grade, answer, text, remedy, "mixing")


def _spread(facts: Facts) -> tuple[Grade, str]:
    """Say how evenly the batches of a rank have the classes; good if there are none, as nothing is known then."""
    if facts.labels is None:
        if facts.is_shuffled:
            return "good", "The rows were shuffled when they were converted."
        return "good", "The rows were not shuffled, and without classes it is unknown whether they were sorted."
    worst = max(facts.batches, key=lambda each: each.ratio)
    grade = _grade(worst.ratio, (_FAIR_SKEW, _BAD_SKEW))
    shown, judged = worst, f"their shares are {worst.ratio:.1f} times as uneven as if drawn at random"
    if grade == "good":
        shown, judged = facts.batches[-1], "as if drawn at random"  # that of the most ranks
    where = "On 1 GPU" if shown.world_size == 1 else f"On each of {shown.world_size} GPUs"
    classes = f"{shown.classes_in_batch:.1f} of {len(facts.labels.names)} classes"
    return grade, f"{where} a batch of {facts.batch_size} has {classes}: {judged}."


def _met_again(facts: Facts) -> tuple[Grade, str]:
    """Say how often samples of a step meet again in the next epoch, if that is more than by chance."""
    found, num_others, unit = facts.meeting, facts.global_batch - 1, "pack" if facts.units else "sample"
    if found is None:
        return "good", ""
    grade = _grade((found.met_again - found.by_chance) / max(1, num_others), (_FAIR_MEETING, _BAD_MEETING))
    text = (
        f"Of the {num_others:,} other {unit}s in its step, a {unit} meets {human_number(found.met_again)} again in a "
        f"step of the next epoch, compared with {human_number(found.by_chance)} by chance."
    )
    return grade, "" if grade == "good" else text


def _grade(value: float, limits: tuple[float, float]) -> Grade:
    return "good" if value <= limits[0] else "fair" if value <= limits[1] else "bad"


def _waiting(facts: Facts) -> Verdict:
    question = "Will my GPUs wait?"
    if not facts.num_samples:
        return Verdict(question, "unknown", "cannot say", "The dataset has no samples.", "", "cluster")
    judged = facts.judged
    found = judged.estimate
    grade = _grade(found.waiting, (_FAIR_WAITING, _BAD_WAITING))
    answer = {"good": "no", "fair": "a little", "bad": "yes"}[grade]
    cluster = judged.cluster
    text = (
        f"Simulated for {judged.topology}, batch {facts.batch_size}, a link of {human_number(cluster.link_gbits)} "
        f"Gbit/s per node and steps of {human_seconds(cluster.step_ms / 1000)}: GPUs wait {100 * found.waiting:.0f} % "
        f"of the time. An epoch takes {human_seconds(found.epoch_s)}; its first batch, "
        f"{human_seconds(found.first_batch_s)}."
    )
    if grade == "good":
        remedy = ""
    elif judged.readers_per_lane > 1 and found.bound in ("link", "requests"):
        remedy = "Ranks and workers that divide the lanes read each window once: see who reads what."
    else:
        remedy = _REMEDIES.get(found.bound, "")
    return Verdict(question, grade, answer, text, remedy, "cluster")
