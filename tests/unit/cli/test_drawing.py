"""Pictures of characters: what they say, and that they fit."""

import re

import click
import pytest

from wdsplit.checks.inspect import Assignment, ReaderShare
from wdsplit.cli import terminal
from wdsplit.cli.drawing import bar, draw_readers, sparkline


@pytest.fixture(autouse=True)
def blocks(monkeypatch):
    """Let the output show blocks, whatever the terminal of the tests is."""
    monkeypatch.setenv("TERM", "xterm")


def assignment(num_shards, shares, shard_samples=None):
    """Return who reads what: `shares` maps (rank, worker) to shards."""
    readers = [ReaderShare(rank, worker, 10 * len(shards), shards) for (rank, worker), shards in shares.items()]
    return Assignment(4, 1, False, 1.0, 0, None, readers, shard_samples or [10] * num_shards)


def drawn(found, width=80):
    """Return the lines of a picture, without colours."""
    return click.unstyle(draw_readers(found, width).replace(terminal._ESCAPE, "\x1b")).splitlines()


def cells(line):
    """Return the part of a line that shows shards."""
    return line[14:-12]


def test_a_sparkline_is_as_high_as_the_shares():
    assert sparkline([0, 0.001, 0.5, 0.999, 1], 80) == " ▁▄▇█"


def test_a_sparkline_shows_the_means_of_neighbours_where_it_would_be_too_wide():
    assert sparkline([0, 1, 1, 1, 0, 0], 3) == "▄█ "
    assert len(sparkline([0.5] * 256, 70)) == 64
    assert sparkline([], 70) == ""


def test_a_bar_is_blank_only_if_there_is_nothing():
    assert [len(bar(share, 30)) for share in (0, 0.001, 0.5, 1)] == [0, 1, 15, 30]


def test_each_reader_has_a_row_and_its_shards_are_full():
    lines = drawn(assignment(4, {(0, 0): [2, 0], (0, 1): [1], (1, 0): [3], (1, 1): []}))
    assert lines[0].split() == ["rank", "worker", "shards", "0", "to", "3", "samples"]
    assert [cells(line) for line in lines[1:]] == [
        "█" * 32,
        "████████        ████████        ",
        "        ████████                ",
        "                        ████████",
        " " * 32,
    ]
    assert [line.split()[:2] + line.split()[-1:] for line in lines[2:]] == [
        ["0", "0", "20"],
        ["0", "1", "10"],
        ["1", "0", "10"],
        ["1", "1", "0"],
    ]


def test_shards_of_different_sizes_are_seen():
    lines = drawn(assignment(3, {(0, 0): [0, 1, 2]}, [10, 5, 0]))
    assert cells(lines[1]) == "█" * 8 + "▄" * 8 + " " * 8
    assert lines[1].endswith("<= 10")


@pytest.mark.parametrize("width", [80, 200])
def test_many_shards_share_a_column(width):
    lines = drawn(assignment(1000, {(0, 0): list(range(500)), (0, 1): list(range(500, 1000, 2))}), width)
    assert max(map(len, lines)) <= width
    assert re.fullmatch("█+[░▒▓]? +", cells(lines[2])) and re.fullmatch(" +[░▒▓]+", cells(lines[3]))
    assert re.fullmatch(r"each column is \d+ shards: ░ few of them read, █ all", lines[-1])


def test_many_workers_are_summed_up_by_rank():
    lines = drawn(assignment(40, {(rank, worker): [20 * rank + worker] for rank in range(2) for worker in range(20)}))
    assert [line.split()[:2] + line.split()[-1:] for line in lines[2:]] == [["0", "all", "200"], ["1", "all", "200"]]
    assert [cells(line).strip() for line in lines[2:]] == ["█" * 20] * 2


def test_many_ranks_are_summed_up_in_a_line():
    lines = drawn(assignment(4, {(rank, 0): [rank % 4] * (1 + rank % 2) for rank in range(1000)}))
    assert len(lines) == 33
    assert lines[-1] == " ...  970 more ranks, each with samples: 10 to 20, shards: 1"


def test_a_narrow_terminal_still_gets_a_picture():
    assert len(drawn(assignment(100, {(0, 0): [0]}), 20)) == 4


def test_a_dataset_without_shards_or_samples_gets_a_picture():
    assert drawn(assignment(0, {(0, 0): []}))[0].split() == ["rank", "worker", "no", "shards", "samples"]
    assert drawn(assignment(2, {(0, 0): []}, [0, 0]))[1].endswith("<= 0")
