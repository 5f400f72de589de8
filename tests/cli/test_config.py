"""Layers, origins and complaints, as the `config` and `serve` commands show them."""

import json
from pathlib import Path

import pytest
import yaml

from router.cli import main


def printed(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, dict[str, object]]:
    assert main(["config", "--format", "json", *argv]) == 0
    content: dict[str, dict[str, object]] = json.loads(capsys.readouterr().out)
    return content


def complaint(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    try:
        code = main(argv)
    except SystemExit as exit_:
        code = int(str(exit_.code))
    output = capsys.readouterr()
    assert (code, output.out) == (2, "")
    return output.err


def written(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_flag_beats_environment_beats_file_beats_default(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = written(tmp_path / "r.yaml", "port: 1\nretries: 1\nhost: file\n")
    monkeypatch.setenv("ROUTER_PORT", "2")
    monkeypatch.setenv("ROUTER_RETRIES", "2")
    content = printed(capsys, "--config", file, "--port", "3")
    assert content["port"] == {"value": 3, "origin": "flag --port"}
    assert content["retries"] == {"value": 2, "origin": "environment ROUTER_RETRIES"}
    assert content["host"] == {"value": "file", "origin": f"file {file}"}
    assert content["policy"] == {"value": "locality", "origin": "default"}


def test_higher_layer_replaces_the_whole_value(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = written(tmp_path / "r.yaml", "policy_options: {margin: 1}\nreplicas: [http://a:1]\n")
    content = printed(capsys, "--config", file, "--policy-options", "placement=ring", "--replicas", "http://b:1")
    assert content["policy_options"]["value"] == {"placement": "ring"}
    assert content["replicas"]["value"] == ["http://b:1"]


def test_default_given_on_purpose_still_wins(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = written(tmp_path / "r.yaml", "port: 1\nmax_inflight: 4\n")
    content = printed(capsys, "--config", file, "--port", "8000", "--max-inflight", "none")
    assert content["port"] == {"value": 8000, "origin": "flag --port"}
    assert content["max_inflight"]["value"] is None


def test_toml_reads_like_yaml(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = written(tmp_path / "r.toml", 'replicas = ["http://a:1"]\nscrape_interval = 0.5\n')
    content = printed(capsys, "--config", file)
    assert (content["replicas"]["value"], content["scrape_interval"]["value"]) == (["http://a:1"], 0.5)


def test_config_file_may_be_named_by_a_variable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ROUTER_CONFIG", written(tmp_path / "r.yaml", "port: 1"))
    assert printed(capsys)["port"]["value"] == 1


def test_list_flags_repeat(capsys: pytest.CaptureFixture[str]) -> None:
    content = printed(capsys, "--replicas", "http://a:1,http://b:1", "--replicas", "http://c:1")
    assert content["replicas"]["value"] == ["http://a:1", "http://b:1", "http://c:1"]


@pytest.mark.parametrize(
    "words", [["--no-response-headers"], ["--response-headers", "off"], ["--response-headers=false"]]
)
def test_switches_turn_off(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert printed(capsys, *words)["response_headers"]["value"] is False


def test_yaml_output_is_a_config_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["config", "--replicas", "http://a:1", "--policy-options", '{"margin": 2.5}', "--port", "1"]) == 0
    output = capsys.readouterr().out
    assert "port: 1                                       # flag --port\n" in output
    content = printed(capsys, "--config", written(tmp_path / "again.yaml", output))
    assert {name: entry["value"] for name, entry in content.items()} == yaml.safe_load(output)


@pytest.mark.parametrize("form", ["yaml", "json"])
def test_no_secret_is_printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    monkeypatch.setenv("ROUTER_ADMIN_TOKEN", "hush")
    monkeypatch.setenv("ROUTER_UPSTREAM_API_KEY", "hush")
    assert main(["config", "--format", form]) == 0
    output = capsys.readouterr().out
    assert "hush" not in output
    assert output.count("********") == 2


def test_wrong_value_is_one_line_with_field_and_origin(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROUTER_SCRAPE_INTERVAL", "abc")
    assert complaint(capsys, "config") == (
        "prefix-router: scrape_interval (from environment ROUTER_SCRAPE_INTERVAL): "
        "Input should be a valid number, got 'abc'\n"
    )


def test_every_wrong_field_has_its_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = written(tmp_path / "r.yaml", "scrape_intervall: 1\nport: 99999\nadmission: maybe\n")
    lines = complaint(capsys, "config", "--config", file, "--store", "redis://u:pw@h").splitlines()
    assert f"prefix-router: port (from file {file}): Input should be less than or equal to 65535, got 99999" in lines
    assert (
        f"prefix-router: scrape_intervall (from file {file}): unknown setting; did you mean scrape_interval?" in lines
    )
    assert any("admission (from file" in line and "'off' or 'auto'" in line for line in lines)
    assert any("store (from flag --store): redis:// comes in a later release" in line for line in lines)
    assert len(lines) == 4
    assert "pw" not in "".join(lines)


def test_policy_that_cannot_be_made_is_a_wrong_setting(capsys: pytest.CaptureFixture[str]) -> None:
    line = complaint(capsys, "config", "--policy-options", "margn=1")
    assert line.startswith("prefix-router: policy_options (from flag --policy-options): policy locality has no option")
    line = complaint(capsys, "config", "--policy", "no_such_module:Policy")
    assert line.startswith("prefix-router: policy (from flag --policy): policy no_such_module:Policy")


def test_wrong_secret_is_not_repeated(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = written(tmp_path / "r.yaml", "admin_token: [hush]\nupstream_api_key: 'hush hush'\n")
    lines = complaint(capsys, "config", "--config", file)
    assert "admin_token" in lines
    assert "upstream_api_key" in lines
    assert "hush" not in lines


def test_unknown_variable_is_an_error_with_the_nearest_name(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROUTER_POLCY", "random")
    assert "ROUTER_POLCY (from environment): unknown setting; did you mean ROUTER_POLICY?" in complaint(
        capsys, "config"
    )


def test_variables_that_are_no_settings_are_left_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "ROUTER_URL": "http://r:1",
        "ROUTER_KEY_A": "x",
        "ROUTER_SERVICE_HOST": "10.0.0.1",
        "ROUTER_SERVICE_PORT_HTTP": "80",
        "ROUTER_PORT": "tcp://10.0.0.1:80",
        "ROUTER_PORT_80_TCP_ADDR": "10.0.0.1",
        "ROUTER_ADMIN_PORT": "tcp://10.0.0.1:81",
        "ROUTER_HOST": "",
    }.items():
        monkeypatch.setenv(name, value)
    content = printed(capsys)
    assert {content[name]["origin"] for name in ("port", "admin_port", "host")} == {"default"}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("r.yaml", "a: [1", "line 1: "),
        ("r.yaml", "- a\n", "expected a mapping"),
        ("r.yaml", "7: a\n", "expected a mapping"),
        ("r.toml", "a =", "Invalid value (at "),
        ("r.ini", "a", "its name must end in .yaml, .yml or .toml"),
    ],
)
def test_unreadable_file_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, text: str, message: str
) -> None:
    file = written(tmp_path / name, text)
    line = complaint(capsys, "config", "--config", file)
    assert line.startswith(f"prefix-router: config file {file}: ")
    assert message in line
    assert line.count("\n") == 1


def test_missing_file_is_an_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "there is no such file" in complaint(capsys, "serve", "--config", str(tmp_path / "none.yaml"))


def test_serve_without_replicas_says_how_to_name_them(capsys: pytest.CaptureFixture[str]) -> None:
    line = complaint(capsys, "serve")
    assert line.startswith("prefix-router: replicas ")
    assert "--replicas http://" in line


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["serve", "--polcy", "x"], "unknown flag --polcy; did you mean --policy?"),
        (["serve", "--max-body=1"], "unknown flag --max-body; did you mean --max-body-bytes?"),
        (["config", "file.yaml"], "unknown argument file.yaml"),
        (["serf"], "invalid choice"),
        ([], "COMMAND"),
    ],
)
def test_wrong_usage_is_one_line(capsys: pytest.CaptureFixture[str], argv: list[str], message: str) -> None:
    line = complaint(capsys, *argv)
    assert message in line
    assert line.count("\n") == 1


@pytest.mark.parametrize("argv", [["--help"], ["serve", "--help"], ["config", "--help"], ["explain", "--help"]])
def test_help_fits_80_columns(capsys: pytest.CaptureFixture[str], argv: list[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(argv)
    assert exit_.value.code == 0
    assert max(len(line) for line in capsys.readouterr().out.splitlines()) <= 80


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out.startswith("prefix-router ")
