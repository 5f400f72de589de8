"""What the pages promise exists: their links, the names and commands they show, the files they configure."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from router.cli import _parser, docs
from router.cli.arguments import settings_flags
from router.settings import Settings

ROOT = Path(__file__).parents[1]
PAGES = {str(page.relative_to(ROOT)): page for page in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])}
EACH_PAGE = pytest.mark.parametrize("name", PAGES)

BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
COMMAND = re.compile(r"(?:^|[\s`/])prefix-router( (?:[a-z]+|--[a-z]+)\b[^`\n]*)", re.MULTILINE)
NOT_METRICS = {"router_error"}  # the type of every error that is ours


def text_of(name: str) -> str:
    return PAGES[name].read_text(encoding="utf-8")


def anchors(page: Path) -> set[str]:
    """As GitHub makes them: lower case, no punctuation, a hyphen for each space."""
    headings = HEADING.findall(BLOCK.sub("", page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@EACH_PAGE
def test_links_lead_somewhere(name: str) -> None:
    broken = []
    for target in LINK.findall(BLOCK.sub("", text_of(name))):
        if target.startswith("http"):
            continue
        path, _, anchor = target.partition("#")
        page = (PAGES[name].parent / path).resolve() if path else PAGES[name]
        if not page.exists() or (anchor and anchor not in anchors(page)):
            broken.append(target)
    assert broken == []


@EACH_PAGE
def test_metrics_that_are_named_exist(name: str) -> None:
    families = list(docs._specimen().registry.collect())
    known = {sample.name for family in families for sample in family.samples} | {each.name for each in families}
    assert set(re.findall(r"\brouter_[a-z_]+\b(?!_?\*)", text_of(name))) - known - NOT_METRICS == set()


@EACH_PAGE
def test_variables_that_are_named_are_settings(name: str) -> None:
    known = {f"ROUTER_{field.upper()}" for field in Settings.model_fields} | {"ROUTER_CONFIG", "ROUTER_URL"}
    kept = {"ROUTER_KEY_", "ROUTER_SERVICE_HOST", "ROUTER_"}  # no settings, and yet allowed: docs/settings.md
    assert set(re.findall(r"\bROUTER_[A-Z_]*", text_of(name))) - known - kept == set()


@EACH_PAGE
def test_names_in_backticks_are_words_of_the_code(name: str, words: frozenset[str]) -> None:
    """Settings, options, codes, log fields, functions: whatever has an underscore."""
    named = re.findall(r"`([a-z]+(?:_[a-z]+)+)`", BLOCK.sub("", text_of(name)))
    assert set(named) - words == set()


@pytest.fixture(scope="module")
def words() -> frozenset[str]:
    files = [*ROOT.glob("router/**/*.py"), *ROOT.glob("bench/**/*.py")]
    return frozenset(word for file in files for word in re.findall(r"\w+", file.read_text(encoding="utf-8"))) | {
        each.name + "_total" for each in docs._specimen().registry.collect() if each.type == "counter"
    }


@EACH_PAGE
def test_settings_with_a_value_in_backticks_are_accepted(name: str) -> None:
    """`placement: ring` and the like, as they would stand in a file."""
    for field, value in re.findall(r"`([a-z_]+): ([^`]+)`", BLOCK.sub("", text_of(name))):
        if field in Settings.model_fields:
            Settings(**{field: yaml.safe_load(value)})


@EACH_PAGE
def test_files_of_settings_have_only_settings(name: str) -> None:
    for text in re.findall(r"^```yaml\n# router.yaml\n(.*?)^```$", text_of(name), re.MULTILINE | re.DOTALL):
        assert set(yaml.safe_load(text)) <= set(Settings.model_fields)


def commands(text: str) -> Iterator[list[str]]:
    for line in COMMAND.findall(text):
        yield shlex.split(line.partition(" | ")[0].replace("…", "http://a:8000"), comments=True)


@EACH_PAGE
def test_commands_that_are_shown_parse(name: str) -> None:
    for argv in commands(text_of(name)):
        if len(argv) == 1:  # only named, in a sentence
            assert _exit_code([*argv, "--help"]) == 0, argv
            continue
        arguments, unknown = _parser().parse_known_args(argv)
        assert unknown == [], argv
        if argv[0] == "serve":
            Settings(**settings_flags(arguments))


def _exit_code(argv: list[str]) -> object:
    with pytest.raises(SystemExit) as end:
        _parser().parse_args(argv)
    return end.value.code


def test_the_pages_show_commands_at_all() -> None:
    shown = {argv[0] for name in PAGES for argv in commands(text_of(name))}
    assert shown >= {"serve", "config", "explain"}


@EACH_PAGE
def test_make_and_python_know_what_they_are_asked_for(name: str) -> None:
    text = text_of(name)
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(re.findall(r"(?:`|^    |&& )make ([a-z]+)", text, re.MULTILINE)) - set(targets) == set()
    modules = set(re.findall(r"python -m ((?:bench|router)[\w.]*)", text))
    assert {
        module
        for module in modules
        if not (path := ROOT / module.replace(".", "/")).with_suffix(".py").exists() and not path.is_dir()
    } == set()
