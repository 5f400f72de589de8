"""The commands: each module adds its parser and runs itself. Exit code 2 is a usage error, 1 a failure."""

import sys
from collections.abc import Sequence
from importlib.metadata import version

from router.cli import config, explain, serve
from router.cli.arguments import PROGRAM, Parser, complain
from router.cli.sources import SettingsError

_WHAT = "Sends every turn of a session to the replica whose KV cache already holds it."


def main(argv: Sequence[str] | None = None) -> int:
    parser = _parser()
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        arguments.parser.unknown(unknown)
    try:
        return int(arguments.run(arguments))
    except SettingsError as error:
        complain(*error.lines)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader had enough, as in `prefix-router config | head`
        sys.stderr.close()
        return 0


def _parser() -> Parser:
    parser = Parser(prog=PROGRAM, description=_WHAT)
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {version('prefix-router')}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (serve, config, explain):
        command.add(commands)
    return parser
