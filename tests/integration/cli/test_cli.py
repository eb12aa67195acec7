import dataclasses
import json
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pyarrow as pa
import pytest

import wdsplit
from commands import Ended, done, refused, run
from made_datasets import converted, numbers_table
from tables import (
    DEADLINE_S,
    FULL_PROCESS_BYTES,
    PROGRAM_WITH_PROCESSES,
    files_below,
    labels,
    mixed_table,
    without_progress,
    write_table,
)
from wdsplit.checks import contents
from wdsplit.cli import terminal
from wdsplit.cli.main import cli
from wdsplit.engines import local
from wdsplit.shards.files import read_manifest, write_manifest
from wdsplit.shards.manifest import HEADER_NAME
from wdsplit.storage.local import LocalStorage

COMMANDS = sorted(cli.commands)
PROGRAM = [sys.executable, "-m", "wdsplit.cli"]
WITH_PROCESSES = [sys.executable, "-c", PROGRAM_WITH_PROCESSES]


def run_program(*arguments, stdout=subprocess.PIPE, program=PROGRAM):
    """Run the command line in a process of its own."""
    command = [*program, *map(str, arguments)]
    ended = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=DEADLINE_S)
    return Ended(ended.returncode, ended.stdout, without_progress(ended.stderr))


def assert_says(message, *parts):
    """Check that an error names all these parts and a remedy, and is no traceback."""
    assert message.startswith("error: ")
    assert [part for part in parts if str(part) not in message] == []
    assert "\n  remedy: " in message
    assert "Traceback" not in message


@pytest.fixture
def table(tmp_path):
    """Return a parquet file of 23 numbered rows."""
    return write_table(tmp_path / "raw" / "numbers.parquet", numbers_table(23))


@pytest.fixture
def output(tmp_path):
    return tmp_path / "data" / "train"


@pytest.fixture
def dataset(numbers, tmp_path):
    """Return a copy of `numbers` that may be damaged."""
    return Path(shutil.copytree(numbers, tmp_path / "copy"))


# Help and version


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_shows_examples_that_it_takes_and_its_options_in_sections(command):
    out = done(command, "--help").out
    assert re.search(rf"^Usage:.*\n\n  Examples?:\n\n    wdsplit {command} ", out)
    assert out == done(command, "-h").out
    alone = run(command)
    assert alone.code == 2
    assert re.search(rf"Missing arguments. Example(.|\n)*wdsplit {command} ", alone.err)
    examples = re.findall(rf"wdsplit {command} (.*)", cli.commands[command].epilog or cli.commands[command].help)
    assert examples
    for example in examples:
        cli.commands[command].make_context(command, shlex.split(example))
    options = [each for each in cli.commands[command].params if isinstance(each, click.Option)]
    left = [option.name for option in options if option.section == "Options"]
    assert left == [] or left == [option.name for option in options], "all of them or none"
    assert [option.opts[0] for option in options if not re.search(rf"^ +.*{option.opts[-1]}\b", out, re.M)] == []


def test_the_help_lists_all_commands_and_explains_the_exit_codes():
    out = done("--help").out
    listed = re.findall(r"^  (\w+)  +(.*)", out[out.index("Commands:") :], re.MULTILINE)
    assert {name for name, _ in listed} == set(COMMANDS)
    assert [name for name, _ in listed][:3] == ["plan", "convert", "commit"], "in the order of their use"
    assert all(text.endswith(".") and not text.endswith("...") for _, text in listed)
    assert "Exit codes:" in out and "wdsplit convert raw/" in out
    assert refused(2) == out


def test_what_there_is_one_of_is_not_in_the_plural(tmp_path):
    data = tmp_path / "data"
    plan = done("plan", path := write_table(tmp_path / "in.parquet", numbers_table(1)), "--world-size", 1).out
    said = [plan, done("convert", path, data, "--shards", 1, "--lanes", 1).out]
    alone = ("--world-size", 1, "--workers", 1)
    for command in (
        ("audit", data, *alone, "--batch-size", 1, "--read"),
        ("assign", data, *alone),
        ("bench", data, "--batch-size", 1, "--epochs", 1),
        *((name, data) for name in ("inspect", "verify", "log", "gc")),
    ):
        said.append(done(*command).out)
    said += map(repr, (wdsplit.Samples(data), wdsplit.Dataset(data).manifest))
    things = "batches|classes|(?:rank|worker|sample|pad|shard|lane|row|file|field|step|version|stage)s"
    assert re.findall(rf"(?<![\d.,])1 (?:{things})\b.*", "\n".join(said)) == []


def test_the_installed_program_is_this_command_line():
    program = Path(sys.executable).parent / "wdsplit"
    ended = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=DEADLINE_S)
    assert (ended.returncode, ended.stdout) == (0, f"wdsplit, version {wdsplit.__version__}\n")


# Convert


def test_convert_writes_a_dataset_and_says_what_is_in_it(table, output):
    out = done("convert", table, output, "--shards", 4, "--jobs", 1).out
    first, fields, label, took = out.splitlines()
    num_bytes = sum(path.stat().st_size for path in output.glob("*.tar"))
    assert first == f"{output}: 4 shards, 23 samples, 1 pad, {num_bytes / 1000:.1f} kB"
    assert fields == "fields: cls (from cls), txt (from txt)"
    assert label == "label: column 'cls' in cls"
    assert re.fullmatch(r"took \d+\.\d s \([\d,]+ samples/s, [\d.]+ [kM]?B/s\)", took)
    assert sorted(labels(output)) == list(range(23))


def test_convert_says_why_fields_are_named_after_their_columns(tmp_path):
    columns = {"txt": ["a", "b"], "My caption": ["c", "d"], "score": [0.5, 1.5], "width": [1, 2]}
    path = write_table(tmp_path / "in.parquet", columns)
    fields, why, *_ = done("convert", path, tmp_path / "out").out.splitlines()[1:]
    assert fields.startswith("fields: txt.txt (from txt), my_caption.txt (from My caption), score.json")
    assert why == (
        "2 columns would be txt: these fields begin with their columns' names; --map txt=COLUMN names one txt"
    )
    mapped = done("convert", path, tmp_path / "mapped", "--map", "txt=txt", "--columns", "My caption,score").out
    assert "fields: txt (from txt), my_caption.txt (from My caption)" in mapped and "would be" not in mapped
    assert "would be" not in done("convert", tmp_path / "out", tmp_path / "again").out


def test_plan_convert_and_inspect_say_which_column_is_the_label(tmp_path):
    path = write_table(
        tmp_path / "in.parquet",
        {"kind": ["cat", "dog", "\x1b[2J"] * 10, "breed": ["x", "y", "z"] * 10, "height": range(30)},
    )
    line = r"label: column 'kind', 3 classes in cls: \u001b[2J, cat, dog"
    chosen = ("--classes", "kind", "--shards", 1, "--no-shuffle")
    assert line in done("plan", path, *chosen).out.splitlines()
    assert json.loads(done("plan", path, *chosen, "--json").out)["label"] == "kind"
    assert line in done("convert", path, tmp_path / "out", *chosen).out.splitlines()
    shown = done("inspect", tmp_path / "out", "--samples", 1).out.splitlines()
    assert line in shown
    assert shown[-3:] == ["  cls: 1 (cat)", "  txt: x", "  height.json: 0"]
    assert "  cls: 2 (dog)" in done("inspect", tmp_path / "out", "--sample", 1).out.splitlines()
    assert done("convert", path, tmp_path / "none").out.count("label:") == 0
    write_table(path, {"label": ["a", "b"], "class": [0, 1]})
    assert "several columns could be the label" in refused(2, "plan", path)


def test_convert_says_how_many_rows_it_left_out(table, output):
    for options, said in (
        (("--no-shuffle",), "left out: the last 3 rows"),
        (("--limit", 22), "selected: 22 of 23 rows\nleft out: 2 rows"),
    ):
        out = done("convert", table, output / options[0], *options, "--shards", 4, "--pad", "drop", "--jobs", 1).out
        assert said in out
    assert labels(output / "--no-shuffle") == list(range(20))


def test_thousands_of_tiny_shards_are_warned_of(tmp_path, caplog):
    path = write_table(tmp_path / "in.parquet", {"label": list(range(2000))})
    for options, remedy in ((("--shard-size", 100), "use a --shard-size such as"), (("--shard-size", "100kB"), None)):
        caplog.clear()
        done("plan", path, *options)
        said = f"2,000 shards of only about 777 B: reading them will be slow; {remedy}"
        assert [record.getMessage()[: len(said)] for record in caplog.records] == ([said] if remedy else [])


def test_plan_writes_nothing_and_says_what_convert_then_does(table, output, tmp_path):
    options, before = ("--shards", 4, "--workers", 2), files_below(tmp_path)
    plan, out = done("plan", table, *options, "--json").json, done("plan", table, *options, "--key", "txt").out
    assert (plan["rows"], plan["inputs"], plan["shards"], plan["samples_per_shard"]) == (23, 1, 4, 6)
    assert (plan["pads"], plan["dropped"], plan["key"]) == (1, 0, None)
    assert "23 rows in 1 file -> 4 shards of 6 samples" in out
    assert "pads 1, rows left out 0" in out
    assert "keys from column 'txt'" in out
    assert re.search(r"^cls +cls +int64 +integer$", out, re.M)
    library = wdsplit.plan(table, wdsplit.ConvertOptions(shards=4, workers=2)).summary()
    assert json.loads(json.dumps(library)) | {"classes": {}, "temporary_bytes": 0} == plan
    spaces = {
        ("--memory", "64GiB"): r"none, the rows fit in memory \(--memory\)",
        ("--no-shuffle",): "none",
        ("--memory", "1MiB"): r"about \d+ B in OUTPUT/.wdsplit-run/spill until the shards are written",
    }
    for more, text in spaces.items():
        assert re.search(f"^temporary space: {text}$", done("plan", table, *more).out, re.M)
    assert files_below(tmp_path) == before
    done("convert", table, output, *options, "--jobs", 1)
    found = done("inspect", output, "--json").json
    assert [found[name] for name in ("shards", "samples", "pads", "lanes", "fields")] == [
        plan[name] for name in ("shards", "rows", "pads", "lanes", "fields")
    ]
    assert found["provenance"]["plan"] == plan["plan"]


def test_splits_by_a_column_are_written_as_plan_says_and_are_resumed(tmp_path, output):
    columns = {"label": range(60), "user": [f"user {number % 12}" for number in range(60)]}
    users = write_table(tmp_path / "users.parquet", columns, rows_per_group=25)
    options = ("--split", "train=0.6, val=0.4", "--split-by", "user", "--shards", 2)
    text, plans = done("plan", users, *options).out, done("plan", users, *options, "--json").json
    out = done("convert", users, output, *options, "--jobs", 1).out
    rows = {name: labels(output / name) for name in plans}
    for name, plan in plans.items():
        assert plan["rows"] == len(rows[name]) and plan["plan"] in (output / name / HEADER_NAME).read_text()
        assert f"{name}: {len(rows[name])} rows of 60" in text
        assert f"{output / name}: 2 shards, {len(rows[name])} samples, {plan['pads']} pad" in out
    assert not {row % 12 for row in rows["train"]} & {row % 12 for row in rows["val"]}
    out = done("convert", users, output, *options, "--jobs", 1, "--resume").out
    assert out.count("resumed: 2 shards existed already") == 2


# Inspect and assign


def test_inspect_can_be_read_by_people_and_keeps_what_is_technical_for_those_who_ask(numbers):
    out = done("inspect", numbers, "--samples", 1).out
    assert out.startswith(f"{numbers}: 101 samples in 7 shards, ")
    assert re.search(r"^field +present +median bytes \(range\) +content$", out, re.M)
    assert re.search(r"^cls +100 % +2 \(1-3\) +int64$", out, re.M)
    assert "\nexact: all 101 samples\n" in out
    assert "00000000  (" in out
    assert "  txt: row 0\n" in out
    assert "00000001" not in out
    technical = ["lanes 4, window 4, pads 4, fingerprint ", "made from 1 input: ", "encoding", "versions: {"]
    verbose = done("inspect", numbers, "-v").out
    assert [part for part in technical if part in out or part not in verbose] == []
    assert re.search(r"^cls +cls +int64 +integer$", verbose, re.M)


def test_inspect_shows_the_largest_of_many_classes_and_that_those_of_some_samples_may_not_be_all(tmp_path, monkeypatch):
    classes = [row for row in range(20) for _ in range(30 - row)]
    path = converted(tmp_path, pa.table({"cls": classes}), shards=1)
    out = done("inspect", path).out
    assert "\n20 classes in cls:\n" in out
    assert re.findall(r"^  (\d+) +(\d+) ", out, re.M) == [(str(row), str(30 - row)) for row in range(10)]
    assert "\n  ... and 10 more, with 11 to 20 samples each\n" in out
    assert done("inspect", path, "--json").json["contents"]["fields"][0]["classes"]["19"] == 11
    monkeypatch.setattr(contents, "_MAX_ALL", 10)
    monkeypatch.setattr(contents, "_MAX_DRAWN", 40)
    out = done("inspect", path).out
    assert re.search(r"\n\d+ or more classes in cls, in a sample of 40:\n", out)
    assert "\nestimated from 40 samples, evenly spaced\n" in out


HOSTILE = "\x1b[2J\x9b31m\u202e\rname\n  remedy: none"
"""Clears a terminal, colours it, reverses what follows, goes back to the beginning of the line, and adds a line."""


def test_no_command_prints_a_control_character_of_a_file(tmp_path):
    """Names of columns, classes and views come from others, also in messages, and in a manifest that was changed."""
    table = write_table(tmp_path / "names.parquet", {f"a{HOSTILE}": ["x", "y"] * 4, "label": [HOSTILE, "b"] * 4})
    path, classes = tmp_path / "out", tmp_path / "classes"
    converted(classes, pa.table({"kind": [HOSTILE, "b"] * 3}), mapping={"cls": "kind"}, shards=1)
    commands = [
        ["plan", table, path, "--shards", "2"],
        ["-v", "convert", table, path, "--shards", "2"],
        ["convert", table, tmp_path / "other", "--where", HOSTILE],
        ["convert", table, tmp_path / "other", "--map", f"cls={HOSTILE}"],
        *(["inspect", each, option] for each in (path, classes / "out") for option in ("-v", "--json")),
        ["inspect", path, "--samples", "2"],
        ["inspect", path, "--key", HOSTILE],
        ["view", path, "named", "--where", "label = 'b'"],
    ]
    ended = [run(*command) for command in commands]
    for folder in (path, classes / "out"):
        changed = dataclasses.replace(read_manifest(LocalStorage(str(folder))), pad=HOSTILE)
        fields = tuple(
            dataclasses.replace(each, name=f"{HOSTILE}{number}", column=HOSTILE, type=HOSTILE)
            for number, each in enumerate(changed.fields)
        )
        write_manifest(LocalStorage(str(folder)), dataclasses.replace(changed, fields=fields))
        ended += [run(command, folder) for command in ("inspect", "verify", "assign", "audit", "bench", "report")]
        ended.append(run("inspect", "-v", folder))
    for each in ended:
        shown = each.out + each.err
        assert [character for character in shown if not (character.isprintable() or character == "\n")] == [], shown
        assert "\n  remedy: none" not in each.out
    assert "\\u001b[2J" in "".join(each.out for each in ended)


def test_only_the_module_of_the_terminal_writes_to_it():
    sources = {path.name: path.read_text() for path in Path(terminal.__file__).parent.glob("*.py")}
    found = {name for name, source in sources.items() if re.search(r"click\.(s?echo|style)\(|^ *print\(", source, re.M)}
    assert found == {"terminal.py"}


def test_inspect_shows_or_writes_one_sample_by_its_key_or_number(numbers, tmp_path, output):
    for choice in (("--key", "00000099"), ("--sample", "00000099"), ("--sample", 99), ("--sample", -2)):
        out = done("inspect", numbers, *choice).out
        assert out == f"00000099  ({numbers}/000006.tar)\n  cls: 99\n  txt: row 99\n"
    found = done("inspect", numbers, *choice, "--json").json
    assert (found["__key__"], found["__position__"], found["txt"]) == ("00000099", "99", "row 99")
    for choice, part in ((("--key", "99"), "no sample has this key"), (("--sample", 101), "a number from -101 to 100")):
        assert_says(refused(2, "inspect", numbers, *choice), part, numbers, choice[1])
    folder = tmp_path / "new" / "folder"
    assert done("inspect", numbers, "--sample", 99, "-o", folder).out.split() == [
        f"{folder}/00000099.cls",
        f"{folder}/00000099.txt",
    ]
    assert {file.suffix: file.read_text() for file in folder.iterdir()} == {".cls": "99", ".txt": "row 99"}
    assert_says(refused(2, "inspect", numbers, "--sample", 99, "-o", folder), "exists already", folder)
    assert "--output needs --sample or --key" in refused(2, "inspect", numbers, "-o", folder)
    done("convert", write_table(tmp_path / "mixed.parquet", mixed_table(5)), output, "--jobs", 1)
    last = done("inspect", output, "--samples", 3).out.rpartition("\n\n")[2]
    assert re.findall(r"^  (\w+): ", last, re.M) == ["jpg", "txt", "cls", "npy", "json"]
    assert "  jpg: 77 bytes\n" in last and "  txt: caption 2 é\n" in last


def test_assign_can_be_read_by_people(whole_lanes, numbers):
    out = done("assign", whole_lanes, "--lanes", 1, "--no-shuffle").out
    assert re.search(r"^0 +0 +96 +0, 1, .*, 11, \.\.\. \(24 in total\)$", out, re.M)
    assert out.endswith("\n1 lane, 0 pads; each window is read 1.00 times on average\n")
    out = done("assign", numbers, "--world-size", 3, "--batch-size", 8).out
    assert "\n4 lanes, 19 pads; each window is read 2." in out
    assert "cut at equal counts" in out
    assert "; use 2 ranks or 4 ranks, or lanes=3 or lanes=6 (" in out
    for options in (("--world-size", 100_000_000), ("--world-size", 2**15, "--workers", 64)):
        assert "expected at most 1048576" in refused(2, "assign", numbers, *options).replace(",", "")


# Verify and audit


def test_verify_says_that_all_is_well_or_fails_and_names_the_shard_that_is_damaged(dataset):
    assert f"{dataset}: ok: 7 shards, 101 samples, 4 pads, " in done("verify", dataset, "--jobs", 1).out
    found = done("verify", dataset, "--jobs", 1, "--json").json
    assert found == {"dataset": str(dataset), "shards": 7, "problems": [], "with_erased": []}
    os.truncate(dataset / "000004.tar", 1000)
    ended = run("verify", dataset, "--jobs", 1)
    assert ended.code == 1
    assert "1 problem in 7 shards" in ended.out
    assert re.match("problem: .*another size", ended.err)
    assert f"place: {dataset}/000004.tar" in ended.err
    assert "remedy: " in ended.err
    ended = run("verify", dataset, "--jobs", 1, "--json")
    (problem,) = ended.json["problems"]
    assert (ended.code, ended.err) == (1, "")
    assert list(problem) == ["cause", "place", "expected", "found", "remedy"]
    assert problem["place"] == f"{dataset}/000004.tar"


def test_what_is_small_is_done_without_worker_processes(numbers, tmp_path, monkeypatch):
    """Two of them took ten seconds to index 17 MB, which is done in less than one without."""

    def no_processes(*arguments):
        raise AssertionError("worker processes were started")

    monkeypatch.setattr(local, "_PROCESS_BYTES", FULL_PROCESS_BYTES)
    monkeypatch.setattr(local, "_in_processes", no_processes)
    table = numbers_table(40).append_column("json", pa.array([{"x": 1}] * 40))
    path = write_table(tmp_path / "in.parquet", table, rows_per_group=5)
    done("convert", path, tmp_path / "out", "--shards", 8, "--jobs", 2)
    done("convert", path, tmp_path / "shuffled", "--shards", 8, "--jobs", 8, "--shuffle")
    done("verify", tmp_path / "out", "--jobs", 2)
    (tmp_path / "out/wdsplit.json").unlink()
    done("index", tmp_path / "out", "--jobs", 2, "--overwrite")


def test_a_dataset_that_does_not_exist_is_refused(tmp_path):
    for command in ("inspect", "verify", "assign", "audit", "bench"):
        assert_says(refused(2, command, tmp_path / "nowhere"), tmp_path / "nowhere", "check the path")


# The command line itself


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["convert", "IN"], "error: Missing argument 'OUTPUT'.\n"),
        (["convert", "--plan", "P"], "--plan, --share and --pass belong together"),
        (["convert", "IN", "OUT", "--plan", "P", "--share", "0/2"], "INPUT..., OUTPUT: not allowed with --plan"),
        (
            ["convert", "--plan", "P", "--share", "0/2", "--seed", "0", "--resume"],
            "--seed, --resume: not allowed with --plan",
        ),
        (["convert", "--plan", "P", "--share", "0-2"], "'0-2': expected I/N"),
        (["convert", "--plan", "P", "--share", "0/2", "--pass", "third"], "'scatter', 'merge', 'write'"),
        (["plan", "IN", "-o", "P"], "--into and -o belong together"),
        (["plan", "IN", "--overwrite", "--emit", "wids"], "--emit, --overwrite: allowed only with -o"),
        (["no-such-command"], "No such command"),
        (["inspect", "IN", "--no-such-option"], "No such option"),
        (["convert", "IN", "OUT", "--jobs", "0"], "--jobs"),
        (["convert", "IN", "OUT", "--pad", "some"], "'repeat', 'drop', 'none'"),
        (["convert", "IN", "OUT", "--map", "image"], "'image': expected EXT=COLUMN"),
        (["convert", "IN", "OUT", "--map", "jpg=a", "--map", "jpg=b"], "'jpg=b': 'jpg' is given twice"),
        (["convert", "IN", "OUT", "--shard-size", "big"], "'256MB' or '1GiB'"),
        (["plan", "IN", "--columns", ""], "'--columns': empty value"),
        (["plan", "IN", "--split", "train"], "'train': expected NAME=FRACTION"),
        (["plan", "IN", "--split", "train=inf"], "'train=inf': expected NAME=FRACTION"),
        (["plan", "IN", "--split", "..=1"], "split '..': expected letters"),
    ],
    ids=" ".join,
)
def test_a_command_line_that_is_wrong_is_refused_with_what_is_wrong(arguments, part):
    message = refused(2, *arguments)
    assert part in message and "Traceback" not in message


def test_lists_are_repeated_or_separated_by_commas(tmp_path, output):
    columns = {name: [1, 2, 3] for name in ("label", "id", "score")} | {"a,b": ["x", "y", "z"]}
    path = write_table(tmp_path / "in.parquet", columns)
    commas = "--columns label,id --keep score,id --emit dali,wids --map txt=a,b,json=score --split a=1"
    repeated = (
        "--columns label --columns id --keep score --keep id --emit dali --emit wids --map txt=a,b --map json=score "
        "--split a=1"
    )
    for number, lists in enumerate((commas, repeated)):
        folder = output / str(number)
        done("convert", path, folder, *lists.split(), "--shards", 1, "--jobs", 1)
        manifest = read_manifest(LocalStorage(str(folder / "a")))
        written = {"txt": "a,b", "json": "score", "cls": "label", "id.json": "id"}
        assert {field.name: field.column for field in manifest.fields} == written
        assert {"score", "id"} <= set(manifest.samples.names)
        assert {"000000.idx", "wids.json"} <= set(os.listdir(folder / "a"))


def test_a_program_without_arguments_shows_its_help():
    ended = run()
    assert ended.code == 2
    assert "Usage: wdsplit" in ended.out + ended.err


# The program as a process of its own


@pytest.mark.slow
def test_an_error_in_a_worker_process_ends_with_a_message_and_no_traceback(tmp_path):
    table = numbers_table(40).append_column("json", pa.array([{"x": 1}] * 30 + [None] + [{"x": 1}] * 9))
    path = write_table(tmp_path / "in.parquet", table, rows_per_group=5)
    ended = run_program("convert", path, tmp_path / "out", "--shards", 8, "--jobs", 2, program=WITH_PROCESSES)
    assert (ended.code, ended.out) == (2, "")
    assert_says(ended.err[ended.err.index("error: ") :], "a value is null", path, "row 30")  # behind lines of progress


def test_the_program_is_quiet_on_standard_error_unless_it_is_verbose(table, output, monkeypatch):
    ended = run_program("convert", table, output, "--map", "cls=cls", "--jobs", 2)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith(f"{output}: ") and "\x1b" not in ended.out
    monkeypatch.setattr(logging.root, "handlers", [])  # pytest's: with them the command adds none of its own
    said = run("convert", "-v", table, output, "--map", "cls=cls", "--jobs", 1, "--overwrite").err
    assert said == "columns not written: txt\n"


def test_a_reader_of_the_output_that_has_gone_is_no_error_worth_a_traceback(numbers):
    read_end, write_end = os.pipe()
    os.close(read_end)
    ended = run_program("assign", numbers, "--world-size", 500, stdout=write_end)
    os.close(write_end)
    assert ended.err == ""
    assert ended.code in (0, 1)


def test_every_command_is_tested():
    text = "".join(path.read_text() for path in sorted(Path(__file__).parents[1].glob("*/test_*.py")))
    assert [command for command in COMMANDS if f'"{command}"' not in text] == []
