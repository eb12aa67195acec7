"""The arguments of `wdsplit.mix`: which datasets to mix, and how many samples of each.

No dataset is opened here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from wdsplit.errors import InputError
from wdsplit.order.schedule import Schedule
from wdsplit.order.shares import epoch_counts
from wdsplit.urls import shown_url

__all__ = ["MixArguments", "Path"]

Path = str | os.PathLike[str]

_CAUSE = "cannot tell which datasets to mix"
_EXAMPLE = "such as {'data/a': 0.7, 'data/b': 0.3}"


class MixArguments:
    """The arguments of `mix` that define the mixture; see there.

    Attributes:
        urls: The datasets, in the order in which they are first named.

    Raises:
        InputError: They contradict each other, or name no dataset.
    """

    def __init__(
        self, weights: Any, repeat: Any, choose: Any, num_samples: Any, schedule: Any, interpolate: Any
    ) -> None:
        repeated = [each for each in (repeat, choose) if each is not None] or None
        given = [each for each in (schedule, weights, repeated) if each is not None]
        if len(given) != 1 or not given[0]:
            raise InputError(
                _CAUSE,
                expected=f"weights, {_EXAMPLE}; or repeat= and choose=; or schedule=",
                found="several of them" if any(given) else "none of them",
            )
        if interpolate is not None and schedule is None:
            raise InputError(
                "interpolate works only with schedule",
                found=f"interpolate={interpolate!r}",
                remedy="leave it out: these weights do not change",
            )
        points = [] if schedule is None else schedule
        is_listed = isinstance(points, Sequence) and not isinstance(points, str)
        if not is_listed or not all(isinstance(point, Sequence) and len(point) == 2 for point in points):
            raise InputError(
                "invalid schedule",
                expected="a list of pairs of a position and its weights, such as "
                "[(0, {'data/a': 0.9, 'data/b': 0.1}), (1_000_000, {'data/a': 0.5, 'data/b': 0.5})]",
                found=f"a {type(points).__name__}",  # folders may be URLs with secrets
            )
        named = []
        for shares in [each for _, each in points] or repeated or [weights]:
            if not isinstance(shares, Mapping):
                expected = f"a dict of folders and their shares, {_EXAMPLE}"
                raise InputError(_CAUSE, expected=expected, found=type(shares).__name__)
            own = [str(path) for path in shares]
            _refuse_duplicates(own)
            named += own
        if schedule is None:
            _refuse_duplicates(named)
        self.urls = list(dict.fromkeys(named))
        self._points, self._interpolate, self._num_samples = points, interpolate or "step", num_samples
        self._shares = weights, repeat, choose

    def shares(self, sizes: Sequence[int], names: Sequence[str], lanes: int) -> list[int] | Schedule:
        """Return how many samples of each dataset an epoch takes, or the schedule.

        Raises:
            InputError: No mixture can have these shares.
        """
        if self._points:
            points = [(position, self._in_order(weights, 0)) for position, weights in self._points]
            return Schedule(points, sizes, self._num_samples, self._interpolate, lanes, names)
        weights, repeats, chosen = (None if each is None else self._in_order(each, None) for each in self._shares)
        return epoch_counts(sizes, weights, repeats, chosen, self._num_samples, names)

    def _in_order(self, shares: Mapping[Path, Any], otherwise: Any) -> list[Any]:
        """Return the shares of all datasets; `otherwise` for one that is not named."""
        named = {str(path): share for path, share in shares.items()}
        return [named.get(url, otherwise) for url in self.urls]


def _refuse_duplicates(urls: Sequence[str]) -> None:
    for number, url in enumerate(urls):
        if url in urls[:number]:
            raise InputError("duplicate dataset", place=shown_url(url), expected="one share per dataset")
