"""The summary of a report: what is in it, is it mixed, will GPUs wait; each a sentence with a grade."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from wdsplit.reporting.facts import Facts
from wdsplit.reporting.fields import FieldFacts
from wdsplit.reporting.mixing import BatchMix, Meeting
from wdsplit.reporting.topologies import TopologyFacts
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
        what = "view" if any(part.num_stored for part in facts.parts) else "dataset"
        return Verdict(question, "bad", "nothing", f"The {what} has no samples.", "", "identity")
    problems = [problem for field in facts.fields for problem in _problems(field)]
    labels = facts.labels
    is_exact = facts.num_scanned == sum(part.num_samples for part in facts.parts)
    if labels is not None and is_exact and int(labels.counts.min()) * _IMBALANCE < int(labels.counts.max()):
        problems.append(
            f"the class {safe_text(labels.names[0], 40)!r} has {int(labels.counts[0]):,} samples, "
            f"{safe_text(labels.names[-1], 40)!r} only {int(labels.counts[-1]):,}"
        )
    if facts.duplicates is not None and facts.duplicates.extra * 100 > facts.num_scanned:
        problems.append(f"{counted(facts.duplicates.extra, 'sample')} with the {facts.duplicates.field} of another")
    parts = [describe_field(field) for field in facts.fields if labels is None or field.name != labels.field]
    text = f"{counted(facts.num_samples, 'sample')} of {human_bytes(facts.num_bytes)}"
    stored, in_view = (sum(getattr(part, name) for part in facts.parts) for name in ("num_stored", "num_samples"))
    if in_view < stored:
        whole = f"{counted(stored, 'sample')}, {human_bytes(facts.num_bytes)}"
        text = f"{counted(facts.num_samples, 'sample')} in the view, of {whole} in all"
    text += f", each with {', '.join(parts)}" if parts else ""
    if labels is not None:
        names = ", ".join(safe_text(name, 30) for name in labels.names[:_NAMES])
        more = ", …" if len(labels.names) > _NAMES else ""
        at_least = "" if is_exact or labels.is_complete else "at least "
        text += f", in {at_least}{counted(len(labels.names), 'class', 'classes')} ({names}{more})"
    grade: Grade = "fair" if problems else "good"
    noticed = f" To look at: {'; '.join(problems)}." if problems else ""
    answer = "look closer" if problems else counted(facts.num_samples, "sample")
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


def _problems(field: FieldFacts) -> list[str]:
    name = safe_text(field.name, 30)
    counts = (("no", field.absent), ("an empty", field.nulls), ("an unreadable", field.unreadable))
    return [f"{counted(count, 'sample')} with {which} {name}" for which, count in counts if count]


def _mixed(facts: Facts) -> Verdict:
    question = "Is it mixed?"
    if not facts.mixing.batches:
        why = (
            f"The dataset is too small: it does not fill two batches of {facts.batch_size}."
            if facts.num_samples <= facts.batch_size
            else f"Batches of {facts.batch_size} have no two classes to compare."
        )
        return Verdict(question, "unknown", "cannot say", why, "", "mixing")
    own = next((each for each in facts.mixing.meetings if each.is_own), None)
    if facts.labels is None and not facts.mixing.is_shuffled:
        return _unlabelled(facts, own)
    worst = _worst(facts.mixing.batches) if facts.labels is not None else None
    grades = [_grade(value, limits) for value, limits in _mixing_values(worst, own, facts.mixing.global_batch)]
    grade = max(grades, key=_GRADES.index, default=_GRADES[0])
    shuffled = (
        ["The rows were shuffled when they were converted."] if facts.mixing.is_shuffled and worst is None else []
    )
    text = " ".join([*shuffled, *_skew_text(facts, worst), *_meeting_text(own, facts.mixing.global_batch)])
    answer = {"good": "yes", "fair": "partly", "bad": "no"}[grade]
    remedy = ""
    if grade != "good":
        is_skewed = worst is not None and worst.ratio > _FAIR_SKEW
        remedy = (
            "Convert again with shuffled rows: the table is sorted by class, and the loader cannot fix that."
            if is_skewed and not facts.mixing.is_shuffled
            else "Convert again with more lanes or smaller shards: see who reads what."
            if is_skewed
            else "More lanes with smaller windows mix better: see the table of lanes and windows."
        )
    return Verdict(question, grade, answer, text, remedy, "mixing")


def _worst(mixes: Sequence[BatchMix]) -> BatchMix:
    """Return the mix that is worst, or that of the most ranks if none is bad."""
    worst = max(mixes, key=lambda each: each.ratio)
    return worst if worst.ratio > _FAIR_SKEW else mixes[-1]


def _unlabelled(facts: Facts, own: Meeting | None) -> Verdict:
    """Return the verdict for a dataset that was not shuffled and has no classes."""
    mix = facts.mixing.batches[-1]
    text = (
        f"The rows were not shuffled, and without classes it is unknown whether they were sorted. On each of "
        f"{counted(mix.world_size, 'GPU')} a batch comes from {mix.classes_in_batch:.1f} of the "
        f"{len(facts.mixing.names)} tenths of the files."
    )
    remedy = (
        "If the table was sorted, convert again with shuffled rows; name the field of the classes with --class-field."
    )
    return Verdict(
        "Is it mixed?",
        "unknown",
        "cannot say",
        " ".join([text, *_meeting_text(own, facts.mixing.global_batch)]),
        remedy,
        "mixing",
    )


def _mixing_values(worst: BatchMix | None, own: Meeting | None, batch: int) -> list[tuple[float, tuple[float, float]]]:
    found = []
    if worst is not None:
        found.append((worst.ratio, (_FAIR_SKEW, _BAD_SKEW)))
    if own is not None:
        found.append((_met_beyond_chance(own, batch), (_FAIR_MEETING, _BAD_MEETING)))
    return found


def _grade(value: float, limits: tuple[float, float]) -> Grade:
    return "good" if value <= limits[0] else "fair" if value <= limits[1] else "bad"


def _skew_text(facts: Facts, worst: BatchMix | None) -> Sequence[str]:
    if worst is None:
        return []
    count = len(facts.labels.names if facts.labels is not None else facts.mixing.names)
    what = "classes" if facts.labels is not None else "tenths of the files"
    where = "On 1 GPU" if worst.world_size == 1 else f"On each of {worst.world_size} GPUs"
    judged = (
        "as if drawn at random"
        if worst.ratio <= _FAIR_SKEW
        else f"their shares are {worst.ratio:.1f} times as uneven as if drawn at random"
    )
    return [f"{where} a batch of {facts.batch_size} has {worst.classes_in_batch:.1f} of {count} {what}: {judged}."]


def _met_beyond_chance(own: Meeting, batch: int) -> float:
    return (own.met_again - own.by_chance) / max(1, batch - 1)


def _meeting_text(own: Meeting | None, batch: int) -> Sequence[str]:
    if own is None or _met_beyond_chance(own, batch) <= _FAIR_MEETING:
        return []
    return [
        f"Of the {batch - 1:,} other samples in its step, a sample meets {human_number(own.met_again)} again in a step "
        f"of the next epoch, compared with {human_number(own.by_chance)} by chance."
    ]


def _waiting(facts: Facts) -> Verdict:
    question = "Will my GPUs wait?"
    if not facts.reading.topologies or not facts.num_samples:
        return Verdict(question, "unknown", "cannot say", "The dataset has no samples.", "", "cluster")
    judged = facts.reading.judged
    found = judged.estimate
    grade = _grade(found.waiting, (_FAIR_WAITING, _BAD_WAITING))
    answer = {"good": "no", "fair": "a little", "bad": "yes"}[grade]
    cluster = facts.reading.cluster
    text = (
        f"Simulated for {judged.topology}, batch {facts.batch_size}, a link of {human_number(cluster.link_gbits)} "
        f"Gbit/s per node and steps of {human_seconds(cluster.step_ms / 1000)}: GPUs wait {found.waiting:.0%} of the "
        f"time. An epoch takes {human_seconds(found.epoch_s)}; its first batch, {human_seconds(found.first_batch_s)}."
    )
    remedy = "" if grade == "good" else _waiting_remedy(judged)
    return Verdict(question, grade, answer, text, remedy, "cluster")


def _waiting_remedy(judged: TopologyFacts) -> str:
    found = judged.estimate
    if judged.readers_per_lane > 1 and found.bound in ("link", "requests"):
        return "Ranks and workers that divide the lanes read each window once: see who reads what."
    return {
        "decoding": "Decoding is the limit: more workers, smaller images, or a faster decoder.",
        "link": "The link is the limit: a cache on the node's own disk (cache_dir), a faster link, or smaller samples.",
        "requests": "The latency of requests is the limit: larger windows, or more connections.",
    }.get(found.bound, "")
