"""`explain` against a router that is a socket with a fixed answer."""

import io
import json
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from router.cli import main
from router.cli.explain import verdict

ANSWER = {
    "replica": "a:1",
    "policy": "locality",
    "reason": "session",
    "session_source": "header x-session-id",
    "prompt_tokens": 2000,
    "expected_cached_tokens": 1900,
    "candidates": [
        {"replica": "a:1", "state": "up", "inflight": 2, "queued_tokens": 1500, "bound_tokens": 90000, "cost": 0.25},
        {"replica": "b:1", "state": "ejected", "inflight": 0, "queued_tokens": 0, "cost": None, "passed_over": "down"},
    ],
}


@dataclass
class Fake:
    status: int = 200
    answer: bytes = json.dumps(ANSWER).encode()
    url: str = ""
    asked: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)


@pytest.fixture
def fake() -> Iterator[Fake]:
    made = Fake()

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            made.asked.append((self.path, {name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(made.status)
            self.send_header("content-length", str(len(made.answer)))
            self.end_headers()
            self.wfile.write(made.answer)

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answers) as listener:
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        made.url = f"http://127.0.0.1:{listener.server_port}"
        yield made
        listener.shutdown()
        thread.join()


@pytest.fixture
def body(tmp_path: Path) -> str:
    path = tmp_path / "request.json"
    path.write_text('{"messages": []}', encoding="utf-8")
    return str(path)


def failure(capsys: pytest.CaptureFixture[str], *argv: str, exits: int = 1) -> str:
    try:
        code = main(["explain", *argv])
    except SystemExit as exit_:
        code = int(str(exit_.code))
    output = capsys.readouterr()
    assert (code, output.out, output.err.count("\n")) == (exits, "", 1)
    return output.err


def test_verdict_is_for_people(capsys: pytest.CaptureFixture[str], fake: Fake, body: str) -> None:
    assert main(["explain", "--url", fake.url, "-H", "X-Session-ID: a", body]) == 0
    assert capsys.readouterr().out == (
        "replica   a:1\n"
        "why       its session is at home there (session)\n"
        "policy    locality\n"
        "session   named by header x-session-id\n"
        "cached    1,900 of 2,000 prompt tokens expected (95%)\n"
        "\n"
        "replica  state    inflight  queued tokens  bound tokens  cost  passed over\n"
        "a:1      up              2          1,500        90,000  0.25  -\n"
        "b:1      ejected         0              0             -     -  down\n"
    )
    path, headers, sent = fake.asked[0]
    assert (path, headers["x-session-id"], sent) == ("/router/explain", "a", b'{"messages": []}')
    assert "authorization" not in headers


@pytest.mark.parametrize(
    ("columns", "heading"),
    [
        (100, "replica         state  inflight  queued tokens  bound tokens  held tokens  cost  passed over"),
        (80, "replica         state  inflight  queued  bound  held  cost  passed over"),
        (60, "replica         state  inflight  held  cost  passed over"),
        (20, "replica         state  cost  passed over"),
    ],
)
def test_a_table_narrows_with_the_terminal(columns: int, heading: str) -> None:
    load = {"inflight": 1, "queued_tokens": 0, "bound_tokens": 577, "held_tokens": 569, "cost": 0.07}
    candidate = {"replica": "127.0.0.1:9001", "state": "up", **load, "passed_over": "full"}
    assert heading in list(verdict({"candidates": [candidate]}, columns))


def test_hold_and_missing_values_are_said(capsys: pytest.CaptureFixture[str], fake: Fake, body: str) -> None:
    fake.answer = b'{"replica": null, "reason": "hold"}'
    assert main(["explain", "--url", fake.url, body]) == 0
    output = capsys.readouterr().out
    assert "replica   none\n" in output
    assert "it would wait (hold)" in output
    assert "cached    unknown" in output


def test_nobody_to_choose_from_is_said(capsys: pytest.CaptureFixture[str], fake: Fake, body: str) -> None:
    fake.answer = b'{"replica": null, "reason": "no replica: empty"}'
    assert main(["explain", "--url", fake.url, body]) == 0
    assert "why       nobody can take it (no replica: empty)\n" in capsys.readouterr().out


def test_json_is_the_answer_itself(capsys: pytest.CaptureFixture[str], fake: Fake, body: str) -> None:
    assert main(["explain", "--json", "--url", fake.url, body]) == 0
    assert json.loads(capsys.readouterr().out) == ANSWER


def test_path_token_and_standard_input(
    capsys: pytest.CaptureFixture[str], fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"{}")))
    monkeypatch.setenv("ROUTER_ADMIN_TOKEN", "hush")
    monkeypatch.setenv("ROUTER_URL", fake.url + "/")
    assert main(["explain", "--path", "/v1/messages", "-"]) == 0
    path, headers, sent = fake.asked[0]
    assert (path, headers["authorization"], sent) == ("/router/explain?path=%2Fv1%2Fmessages", "Bearer hush", b"{}")
    assert capsys.readouterr().err == ""


def test_router_that_does_not_answer_is_one_line(capsys: pytest.CaptureFixture[str], body: str) -> None:
    line = failure(capsys, "--url", "http://me:pw@127.0.0.1:1", body)
    assert "no answer from http://********@127.0.0.1:1: " in line
    assert "pw" not in line


def test_refused_token_says_which_token(capsys: pytest.CaptureFixture[str], fake: Fake, body: str) -> None:
    fake.status, fake.answer = 401, b'{"error": {"message": "no"}}'
    assert "asks for its admin token: use --token or ROUTER_ADMIN_TOKEN" in failure(capsys, "--url", fake.url, body)


@pytest.mark.parametrize(
    ("status", "answer", "message"),
    [
        (404, b'{"error": {"message": "has an admin_port of its own"}}', "answered 404: has an admin_port of its own"),
        (404, b"<html>", "answered 404: no reason given"),
        (200, b"<html>", "answered no verdict"),
    ],
)
def test_other_answers_are_one_line(
    capsys: pytest.CaptureFixture[str], fake: Fake, body: str, status: int, answer: bytes, message: str
) -> None:
    fake.status, fake.answer = status, answer
    assert message in failure(capsys, "--url", fake.url, body)


@pytest.mark.parametrize(("text", "message"), [("{", "not valid JSON"), ("[]", "expected a JSON object")])
def test_wrong_file_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "request.json"
    path.write_text(text, encoding="utf-8")
    assert f"{path}: {message}" in failure(capsys, str(path))


def test_missing_file_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "No such file or directory" in failure(capsys, str(tmp_path / "none.json"))


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["-H", "no colon"], "-H 'no colon': write 'Name: value'"),
        (["--url", "127.0.0.1:8000"], "--url 127.0.0.1:8000: it must begin with http:// or https://"),
        (["--path", "v1"], "--path v1: it must begin with a slash"),
        (["--hedaer", "x"], "unknown flag --hedaer; did you mean --header?"),
    ],
)
def test_wrong_usage_exits_2(capsys: pytest.CaptureFixture[str], body: str, argv: list[str], message: str) -> None:
    assert message in failure(capsys, *argv, body, exits=2)
