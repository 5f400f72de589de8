"""`prefix-router explain`: asks a running router where a request would go and why. Nothing is sent to a replica."""

import argparse
import json
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from router.cli.arguments import Parser, complain, environment
from router.cli.sources import URL
from router.settings import masked

_LOCAL = "http://127.0.0.1:8000"  # where `serve` listens by default
_TIMEOUT = 10.0  # seconds: a verdict takes microseconds, so longer is a router that hangs
_TOKEN = "ROUTER_ADMIN_TOKEN"
_WHY = {
    "session": "its session is at home there",
    "prefix": "the longest known part of its conversation is at home there",
    "response": "it names a response that was made there",
    "ring": "placed: its key meets this replica first on the ring",
    "spread": "placed further along the ring, as its first choice was dearer, full or not to be had",
    "turn": "it is this replica's turn",
    "chance": "it was drawn",
    "load": "it is the least loaded",
    "only": "there is no other to choose from",
    "panic": "no replica is healthy, and this is the least bad",
    "hold": "no cache has room for it now, so it would wait",
}
_UNNAMED = {"conversation": "the conversation names itself", "none": "nothing names it"}
_COLUMNS = ("replica", "state", "inflight", "queued_tokens", "bound_tokens", "held_tokens", "cost", "passed_over")
_SHORT = {"queued_tokens": "queued", "bound_tokens": "bound", "held_tokens": "held"}  # all in tokens
_SPARED = ("queued_tokens", "bound_tokens", "inflight", "held_tokens")  # left out of a narrow table, in this order
_WIDTH = 80  # columns: what a terminal has until it says otherwise


class _Failure(Exception):
    """What went wrong, in one line."""


def add(commands: "argparse._SubParsersAction[Parser]") -> None:
    parser = commands.add_parser(
        "explain",
        help="say where a request would go and why; sends it to no replica",
        description="Ask a running router where a request would go and why. Sends it to no replica.",
        epilog="example: prefix-router explain -H 'X-Session-ID: a' request.json",
    )
    parser.add_argument("request", help="file with the request's JSON body; - is standard input")
    parser.add_argument("--url", help=f"the router, or its admin port ({URL} or {_LOCAL})")
    parser.add_argument("-H", "--header", action="append", default=[], metavar="'NAME: VALUE'", help="may be repeated")
    parser.add_argument("--path", help="the API path it is meant for (guessed from the body, chat if in doubt)")
    parser.add_argument("--token", help=f"admin token (better in {_TOKEN}: others see command lines)")
    parser.add_argument("--json", action="store_true", help="print the router's answer as it is")
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    headers = _headers(arguments)
    url = (arguments.url or environment(URL) or _LOCAL).rstrip("/")
    if not url.startswith(("http://", "https://")):
        arguments.parser.error(f"--url {masked(url)}: it must begin with http:// or https://")
    if arguments.path is not None and not arguments.path.startswith("/"):
        arguments.parser.error(f"--path {arguments.path}: it must begin with a slash")
    try:
        body = _body(arguments.request)
        answer = _ask(url, arguments.path, headers, body)
    except _Failure as failure:
        complain(str(failure))
        return 1
    width = shutil.get_terminal_size((_WIDTH, 24)).columns
    print(json.dumps(answer, indent=2) if arguments.json else "\n".join(verdict(answer, width)))
    return 0


def verdict(answer: Mapping[str, Any], width: int = _WIDTH) -> Iterator[str]:
    """The router's answer for people; its table is at most `width` columns wide where that is possible."""
    reason = str(answer.get("reason", "unknown"))
    fallback = "the policy has a reason of its own" if answer.get("replica") else "nobody can take it"
    yield f"replica   {answer.get('replica') or 'none'}"
    yield f"why       {_WHY.get(reason, fallback)} ({reason})"
    yield from _left_home(answer)
    yield f"policy    {answer.get('policy', 'unknown')}"
    source = str(answer.get("session_source", "none"))
    yield f"session   {_UNNAMED.get(source, f'named by {source}')}"
    yield f"cached    {_share(answer.get('expected_cached_tokens'), answer.get('prompt_tokens'))}"
    candidates = answer.get("candidates") or []
    if candidates:
        yield ""
        yield from _table(candidates, width)


def _left_home(answer: Mapping[str, Any]) -> Iterator[str]:
    home = answer.get("home")
    if home and home != answer.get("replica"):
        rows = answer.get("candidates") or []
        why = next((row.get("passed_over") for row in rows if row.get("replica") == home), None)
        yield f"home      {home}, but it is {why or 'gone'}"


def _share(cached: int | None, prompt: int | None) -> str:
    if cached is None or not prompt:
        return "unknown"
    return f"{cached:,} of {prompt:,} prompt tokens expected ({cached / prompt:.0%})"


def _table(candidates: Sequence[Mapping[str, Any]], width: int) -> list[str]:
    """In full, with short headings, or with fewer columns: the first of these that fits."""
    columns = [column for column in _COLUMNS if any(row.get(column) not in (None, "") for row in candidates)]
    lines = _lined_up(columns, candidates, {})
    if _widest(lines) > width:
        lines = _lined_up(columns, candidates, _SHORT)
    for spared in _SPARED:
        if _widest(lines) <= width:
            break
        columns = [column for column in columns if column != spared]
        lines = _lined_up(columns, candidates, _SHORT)
    return lines


def _widest(lines: Sequence[str]) -> int:
    return max(map(len, lines))


def _lined_up(columns: Sequence[str], candidates: Sequence[Mapping[str, Any]], short: Mapping[str, str]) -> list[str]:
    rows = [[short.get(column, column.replace("_", " ")) for column in columns]]
    rows += [[_cell(row.get(column)) for column in columns] for row in candidates]
    widths = [max(len(row[i]) for row in rows) for i in range(len(columns))]
    numeric = [all(isinstance(row.get(column), int | float | None) for row in candidates) for column in columns]
    return ["  ".join(map(_aligned, row, widths, numeric)).rstrip() for row in rows]


def _aligned(cell: str, width: int, right: bool) -> str:
    return cell.rjust(width) if right else cell.ljust(width)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float) and not value.is_integer():
        return f"{value:,.2f}"
    return f"{value:,.0f}" if isinstance(value, int | float) else str(value)


def _headers(arguments: argparse.Namespace) -> list[tuple[str, str]]:
    pairs = [line.partition(":") for line in arguments.header]
    wrong = next((name for name, colon, _ in pairs if not colon or not name.strip()), None)
    if wrong is not None:
        arguments.parser.error(f"-H {wrong!r}: write 'Name: value'")
    headers = [(name.strip(), value.strip()) for name, _, value in pairs]
    token = arguments.token or environment(_TOKEN)
    return [*headers, ("Authorization", f"Bearer {token}")] if token else headers


def _body(name: str) -> bytes:
    try:
        body = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise _Failure(f"{name}: {error.strerror}") from None
    try:
        content = json.loads(body)
    except ValueError as error:
        raise _Failure(f"{name}: not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise _Failure(f"{name}: expected a JSON object, the body of a request")
    return body


def _ask(url: str, path: str | None, headers: list[tuple[str, str]], body: bytes) -> dict[str, Any]:
    shown = masked(url)
    # Straight to the router: a proxy in the environment is for the way out, and this one is a neighbour.
    try:
        with httpx.Client(trust_env=False, timeout=_TIMEOUT) as client:
            reply = client.post(
                f"{url}/router/explain",
                params={"path": path} if path else {},
                headers=_with_type(headers),
                content=body,
            )
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
        raise _Failure(f"no answer from {shown}: {str(error) or type(error).__name__}") from None
    if reply.status_code == 401:
        raise _Failure(f"{shown} asks for its admin token: use --token or {_TOKEN}")
    answer = _decoded(reply)
    if reply.status_code != 200:
        raise _Failure(f"{shown} answered {reply.status_code}: {_error_message(answer)}")
    if not isinstance(answer, dict):
        raise _Failure(f"{shown} answered no verdict; is it a prefix-router?")
    return answer


def _with_type(headers: list[tuple[str, str]]) -> list[tuple[str, str]]:
    named = any(name.lower() == "content-type" for name, _ in headers)
    return headers if named else [*headers, ("Content-Type", "application/json")]


def _decoded(reply: httpx.Response) -> Any:
    try:
        return reply.json()
    except ValueError:
        return None


def _error_message(answer: Any) -> str:
    error = answer.get("error") if isinstance(answer, dict) else None
    return str(error.get("message")) if isinstance(error, dict) else "no reason given; is it a prefix-router?"
