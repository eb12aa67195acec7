"""What documents of the project name, and what they may not name."""

import re

import click

from paths import ROOT
from wdsplit.cli.main import cli

COMMANDS = sorted(cli.commands)
OPTIONS = [
    (command, option)
    for command in COMMANDS
    for parameter in cli.commands[command].params
    if isinstance(parameter, click.Option)
    for option in [*parameter.opts, *parameter.secondary_opts]
    if option.startswith("--")
]

MACHINE_PATH = re.compile(r"(?<![\w.:\]})/~*-])/(work|root|home|Users)/")
PACKAGE_INDEX = re.compile(r"(index[-_]url|://[\w.-]+/simple\b)", re.I)
HOST = re.compile(r"https?://(\d+\.\d+\.\d+\.\d+|localhost|[\w-]+)(:\d+)?(/|$)")


def lines_that_match(pattern, files):
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]
