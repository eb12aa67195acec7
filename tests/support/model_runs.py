"""A model of a training: an epoch as a list of positions, from which global batches are taken, skipped and resumed."""

from itertools import count, islice


class ModelRun:
    """The steps of all ranks together, in plain Python.

    Attributes:
        epoch: The epoch.
        delivered: What was delivered since the global batch last changed: (epoch, number, positions).
    """

    def __init__(self, num_positions, global_batch, tail, epoch=0):
        self.num_positions, self.size, self.tail, self.epoch = num_positions, global_batch, tail, epoch
        self.position, self.skipped, self.delivered, self.is_under_way = 0, set(), [], False

    @property
    def num_steps(self):
        return self._whole(self.num_positions)

    def _whole(self, num_positions):
        return num_positions // self.size if self.tail == "drop" else -(-num_positions // self.size)

    def due(self):
        """Return the steps that are still to come, by their numbers."""
        kept = [position for position in range(self.position, self.num_positions) if position not in self.skipped]
        fills = islice(count(self.num_positions), self.size)
        steps = {}
        while kept and (len(kept) >= self.size or self.tail == "pad"):
            step, kept = kept[: self.size], kept[self.size :]
            # The last step of the whole epoch always has the same number.
            number = self.num_steps - self._whole(self.num_positions - step[0])
            assert number not in steps
            steps[number] = [*step, *islice(fills, self.size - len(step))]
        return steps

    def take(self):
        """Deliver the next step; return its number and positions."""
        self._turn()
        number, positions = next(iter(self.due().items()))
        self.delivered.append((self.epoch, number, positions))
        self.position, self.is_under_way = positions[-1] + 1, True
        self._turn()
        return number, positions

    def skip(self, first, last):
        """Leave out the steps of some numbers; return whether all of them may be."""
        if any(epoch == self.epoch and first <= number <= last for epoch, number, _ in self.delivered):
            return False
        due = self.due()
        for number in due.keys() & set(range(first, last + 1)):
            self.skipped |= set(range(due[number][0], min(due[number][-1] + 1, self.num_positions)))
        if self.is_under_way:  # else the epoch stays, and its next iteration is empty
            self._turn()
        return True

    def _turn(self):
        """Go to the next epoch if nothing of this one is left."""
        if not self.due():
            self.epoch, self.position, self.skipped, self.is_under_way = self.epoch + 1, 0, set(), False

    def resume(self, global_batch):
        """Go on with another global batch: steps before are not this one's."""
        self.is_under_way = False
        if global_batch != self.size:
            self.size, self.delivered = global_batch, []
