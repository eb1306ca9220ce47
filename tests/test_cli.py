"""The command line: every command has help and a test here or beside its subject; every toggle is an option."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from workbench import RunConfig
from workbench.bench import BENCHES
from workbench.cli import COMMANDS, cli

README = (Path(__file__).parent.parent / "README.md").read_text()


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(cli, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_says_what_it_does(name: str) -> None:
    command = cli.get_command(None, name)  # type: ignore[arg-type]
    assert command is not None
    assert len(command.help or "") > 30
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{name} {parameter.name} has no help"
    assert f"workbench {name}" in README, f"the README does not mention `workbench {name}`"


def test_every_benchmark_is_documented() -> None:
    for name in BENCHES:
        assert name in README


def test_every_toggle_is_an_option_of_run() -> None:
    text = re.sub(r"\s+", " ", invoke("run", "--help"))
    for field in dataclasses.fields(RunConfig):
        assert "--" + field.name.replace("_", "-") in text


@pytest.mark.native
def test_run_streams_text_and_ends_with_the_summary(demo_file: Path, tmp_path: Path) -> None:
    target, telemetry = tmp_path / "summary.json", tmp_path / "run.jsonl"
    output = invoke(
        "run", str(demo_file), "-p", "Once upon a time", "-n", "12", "--lookahead", "router", "--cache-slots", "8",
        "--json", str(target), "--telemetry-file", str(telemetry),
    )  # fmt: skip
    assert output.startswith("Once upon a time")
    assert "decode_tok_s" in output
    summary = json.loads(target.read_text())["summary"]
    assert summary["n_decode"] <= 11
    assert 0 < summary["recall"] <= 1
    assert telemetry.read_text().splitlines()[-1].startswith('{"t":"end"')


@pytest.mark.native
def test_doctor_finds_the_runtime(tmp_path: Path) -> None:
    checks = {c["name"]: c for c in json.loads(invoke("doctor", str(tmp_path), "--json"))}
    assert checks["runtime"]["status"] == "ok"
    assert checks["bindings"]["status"] == "ok"
    assert all(c["advice"] for c in checks.values() if c["status"] != "ok")
    assert not list(tmp_path.iterdir())


@pytest.mark.native
def test_iobench_reads_what_it_says(tiny_file: Callable[..., Path]) -> None:
    model = str(tiny_file("qwen3moe"))
    output = invoke("iobench", model, "--lanes", "1", "--lanes", "3", "--kib", "64", "--seconds", "0.05")
    document = json.loads(output.splitlines()[-1])
    assert [r["lanes"] for r in document["results"]] == [1, 3]
    for r in document["results"]:
        assert r["bytes"] == r["reads"] * 65536 > 0


@pytest.mark.native
def test_a_refused_model_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from workbench.cli import main

    with pytest.raises(SystemExit) as stop, pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["workbench", "run", str(tmp_path / "none.gguf"), "-p", "x"])
        main()
    assert stop.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert "none.gguf: no such file" in err
