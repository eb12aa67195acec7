"""The arguments of `wdsplit.mix`: which datasets to mix, and how many samples of each.

No dataset is opened here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wdsplit.errors import InputError
from wdsplit.order.schedule import Schedule
from wdsplit.order.shares import epoch_counts
from wdsplit.urls import shown_url

__all__ = ["MixArguments", "Path"]

Path = str | os.PathLike[str]

_CAUSE = "cannot tell which datasets to mix"
_EXAMPLE = "such as {'data/a': 0.7, 'data/b': 0.3}"


@dataclass(frozen=True)
class MixArguments:
    """The arguments of `mix` that define the mixture; see there.

    Attributes:
        urls: The datasets, in the order in which they are first named.

    Raises:
        InputError: They contradict each other, or name no dataset.
    """

    weights: Any = None
    repeat: Any = None
    choose: Any = None
    num_samples: Any = None
    schedule: Any = None
    interpolate: Any = None

    def __post_init__(self) -> None:
        given = [self.schedule, self.weights, [each for each in (self.repeat, self.choose) if each is not None] or None]
        kinds = [bool(each) for each in given]
        if sum(kinds) != 1 or sum(each is not None for each in given) != 1:
            found = "several of them" if any(kinds) else "none of them"
            expected = f"weights, {_EXAMPLE}; or repeat= and choose=; or schedule="
            raise InputError(_CAUSE, expected=expected, found=found)
        if self.interpolate is not None and self.schedule is None:
            raise InputError(
                "interpolate works only with schedule",
                found=f"interpolate={self.interpolate!r}",
                remedy="leave it out: these weights do not change",
            )
        for shares in [weights for _, weights in self._points] or (self.weights, self.repeat, self.choose):
            _check(shares)
        if self.schedule is None:
            _refuse_duplicates([str(path) for shares in self._mappings for path in shares])

    @property
    def _points(self) -> list[tuple[Any, Any]]:
        """The points of the schedule; none if there is no schedule."""
        points = [] if self.schedule is None else self.schedule
        is_listed = isinstance(points, Sequence) and not isinstance(points, str)
        if not is_listed or not all(isinstance(point, Sequence) and len(point) == 2 for point in points):
            raise InputError(
                "invalid schedule",
                expected="a list of pairs of a position and its weights, such as "
                "[(0, {'data/a': 0.9, 'data/b': 0.1}), (1_000_000, {'data/a': 0.5, 'data/b': 0.5})]",
                found=f"a {type(points).__name__}",  # folders may be URLs with secrets
            )
        return [(position, weights) for position, weights in points]

    @property
    def _mappings(self) -> list[Mapping[Path, Any]]:
        given = [weights for _, weights in self._points] or [self.weights, self.repeat, self.choose]
        return [shares for shares in given if shares is not None]

    @property
    def urls(self) -> list[str]:
        """The datasets that are named."""
        return list(dict.fromkeys(str(path) for shares in self._mappings for path in shares))

    def shares(self, sizes: Sequence[int], names: Sequence[str], lanes: int) -> list[int] | Schedule:
        """Return how many samples of each dataset an epoch takes, or the schedule.

        Raises:
            InputError: No mixture can have these shares.
        """
        if self.schedule is not None:
            points = [(position, self._in_order(weights, 0)) for position, weights in self._points]
            return Schedule(points, sizes, self.num_samples, self.interpolate or "step", lanes, names)
        weights, repeats, chosen = (
            None if each is None else self._in_order(each, None) for each in (self.weights, self.repeat, self.choose)
        )
        return epoch_counts(sizes, weights, repeats, chosen, self.num_samples, names)

    def _in_order(self, shares: Mapping[Path, Any], otherwise: Any) -> list[Any]:
        """Return the shares of all datasets; `otherwise` for one that is not named."""
        named = {str(path): share for path, share in shares.items()}
        return [named.get(url, otherwise) for url in self.urls]


def _check(shares: Any) -> None:
    """Refuse values that are not a dict of shares, and duplicate datasets."""
    if shares is None:
        return
    if not isinstance(shares, Mapping):
        raise InputError(
            _CAUSE, expected=f"a dict of folders and their shares, {_EXAMPLE}", found=type(shares).__name__
        )
    _refuse_duplicates([str(path) for path in shares])


def _refuse_duplicates(urls: Sequence[str]) -> None:
    for number, url in enumerate(urls):
        if url in urls[:number]:
            raise InputError("duplicate dataset", place=shown_url(url), expected="one share per dataset")
