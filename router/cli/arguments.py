"""What the commands share: a parser that fits 80 columns and fails in one line, and one flag for each setting."""

import argparse
import os
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args, get_origin

from pydantic import ByteSize
from pydantic.fields import FieldInfo

from router.cli.sources import CONFIG, flag
from router.settings import GROUPS, Settings, nearest

PROGRAM = "prefix-router"
_WIDEST = 80  # wider help is harder to read, and the README shows it


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` without abbreviations, whose errors are one line on stderr and exit code 2."""

    def __init__(self, **options: Any) -> None:
        width = min(_WIDEST, shutil.get_terminal_size().columns)
        formatter = partial(argparse.RawDescriptionHelpFormatter, width=width, max_help_position=26)
        super().__init__(allow_abbrev=False, formatter_class=formatter, **options)

    def error(self, message: str) -> NoReturn:
        complain(message)
        raise SystemExit(2)

    def unknown(self, words: list[str]) -> NoReturn:
        """Fail for words that no flag took, with the nearest flag there is."""
        word = next((word for word in words if word.startswith("-")), words[0]).partition("=")[0]
        kind = "flag" if word.startswith("-") else "argument"
        self.error(f"unknown {kind} {word}{nearest(word, list(self._option_string_actions))}")


def complain(*lines: str) -> None:
    for line in lines:
        print(f"{PROGRAM}: {line}", file=sys.stderr)


def add_settings(parser: Parser) -> None:
    """One flag for each setting, in the groups of the documentation."""
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help=f"YAML or TOML file of settings, below flags and ROUTER_* ({CONFIG})",
    )
    group = parser.add_argument_group()
    for name, field in Settings.model_fields.items():
        if name in GROUPS:
            group = parser.add_argument_group(GROUPS[name])
        _add_setting(group, name, field)


def settings_flags(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings given as flags. A list flag may be repeated."""
    given = {name: getattr(arguments, name) for name in Settings.model_fields}
    return {
        name: ",".join(value) if isinstance(value, list) else value
        for name, value in given.items()
        if value is not None
    }


def what_and_why(field: FieldInfo) -> tuple[str, str]:
    """A description's first sentence, and the rest."""
    what, _, why = " ".join((field.description or "").split()).partition(". ")
    return what, why


def default_text(field: FieldInfo) -> str:
    default = field.get_default(call_default_factory=True, validated_data={})
    if isinstance(default, bool):
        return "on" if default else "off"
    if isinstance(default, ByteSize):
        return default.human_readable()
    if isinstance(default, list | dict):
        return ",".join(default) or "none"
    return f"{default:g}" if isinstance(default, float) else str("none" if default is None else default)


def _add_setting(group: argparse._ArgumentGroup, name: str, field: FieldInfo) -> None:
    default = default_text(field)
    what, _ = what_and_why(field)
    shown = f"{what} ({default if len(default) < 30 else 'see docs/settings.md'})".replace("%", "%%")
    options: dict[str, Any] = {"dest": name, "metavar": _metavar(name, field), "help": shown}
    if field.annotation is type(None):  # a setting of a later release: refused, and not advertised
        options["help"] = argparse.SUPPRESS
    if field.annotation is bool:
        group.add_argument(flag(name), nargs="?", const="on", **options)
        no = flag("no_" + name)
        group.add_argument(no, dest=name, action="store_const", const="off", help=argparse.SUPPRESS)
        return
    repeats = get_origin(field.annotation) is list
    group.add_argument(flag(name), action="append" if repeats else "store", **options)


def _metavar(name: str, field: FieldInfo) -> str:
    if field.annotation is bool:
        return "on|off"
    if get_origin(field.annotation) is Literal:
        return "|".join(get_args(field.annotation))
    what = (field.description or "").split()[0]
    return "SECONDS" if what == "Seconds" else name.partition("_per_")[0].rpartition("_")[2].upper()


def environment(name: str) -> str | None:
    """A variable's value; an empty one counts as unset."""
    return os.environ.get(name) or None
