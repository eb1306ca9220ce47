"""The ladder: schedule, resume, failures, rows, table, figure; and, with the runner, for real."""

from __future__ import annotations

import io
import json
import math
import os
import re
import shutil
import stat
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner

from workbench.ablation import store
from workbench.ablation.figure import save
from workbench.ablation.ladder import Ladder, read_model, run_ladder
from workbench.ablation.results import sound, to_json
from workbench.ablation.suites import Suite
from workbench.ablation.table import print_ladder
from workbench.cli.ablate import command as ablate
from workbench.cli.ablate import flash_toggles
from workbench.errors import ModelFileError
from workbench.figures.reported import article
from workbench.storage.synth import SynthShape, synthesize

SCHEMA_COLUMNS = {
    "rung",
    "config",
    "prefill_tok_s",
    "decode_tok_s",
    "speedup",
    "bytes_per_token",
    "reads_per_token",
    "stall_ms_per_token",
    "compute_ms_per_token",
    "hit_rate",
    "recall",
    "prefetch_wasted_bytes",
    "peak_bytes",
    "lossless",
    "flash",
}
SUITE = Suite(name="test", tokens=4, repeats=3, flash={"emulate_bandwidth_bytes_s": 10**9, "emulate_latency_ns": 1000})
SMALL = replace(SUITE, rungs=SUITE.rungs[:3])
RUNGS = ["resident (stock)", "baseline", "+ lookahead", "+ ready-first and cache", "+ contiguous layout"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = SynthShape(
        n_layer=2, n_embd=256, n_ff=256, n_expert=8, n_expert_used=2, n_head=4, n_head_kv=2, n_vocab=300, n_ctx=256
    )
    return synthesize(tmp_path_factory.mktemp("model") / "tiny.gguf", shape, progress=False)


def stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Let ladders run on a stand-in for the runner; its log tells which runs were made."""
    script, log = folder / "les-run", folder / "log.txt"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{Path(__file__).with_name("fake_les_run.py")}" "$@"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    module = SimpleNamespace(runner=lambda: script, lib_dir=lambda: folder)
    monkeypatch.setitem(sys.modules, "workbench.native_paths", module)
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv("FAKE_LOG", str(log))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    store.build_id.cache_clear()
    return SimpleNamespace(
        faults=lambda **kinds: monkeypatch.setenv("FAKE_FAULTS", json.dumps(kinds)),
        ran=lambda: [line.rsplit("-", 1)[0] for line in log.read_text().splitlines()] if log.exists() else [],
        folder=folder / "out",
        script=script,
    )


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    yield stand_in(tmp_path, monkeypatch)
    store.build_id.cache_clear()


@pytest.fixture(scope="module")
def finished(model: Path, tmp_path_factory: pytest.TempPathFactory):
    """A ladder without faults: its `Ladder`, folder and runs in order."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        fake = stand_in(tmp_path_factory.mktemp("finished"), monkeypatch)
        done = SimpleNamespace(ladder=run_ladder(model, SUITE, fake.folder), folder=fake.folder, ran=fake.ran())
    store.build_id.cache_clear()
    return done


@pytest.fixture
def resumed(finished, fake):
    """A copy of the finished folder, to go on from."""
    shutil.copytree(finished.folder, fake.folder)
    return fake


def by_name(ladder: Ladder) -> dict[str, dict[str, Any]]:
    return {row["rung"]: row for row in ladder.document["rows"]}


class TestLadder:
    def test_rows(self, finished) -> None:
        rows = by_name(finished.ladder)
        assert list(rows) == RUNGS
        assert all(set(row) >= SCHEMA_COLUMNS for row in rows.values())
        assert {row["lossless"]["verdict"] for row in rows.values()} == {"bit-exact"}
        assert rows["baseline"]["lossless"]["compared"] == 4 * 16
        assert rows["baseline"]["lossless"]["against"] == "resident (stock)"
        assert rows["baseline"]["lossless"]["timed"]["compared"] == 3 * 4
        assert [round(rows[name]["speedup"], 6) for name in RUNGS] == [4, 1, 2, 4, 4]
        assert rows["baseline"]["bytes_per_token"] == 6000
        assert rows["+ contiguous layout"]["reads_per_token"] == 2
        assert rows["+ contiguous layout"]["layout"] == "contiguous"
        assert rows["resident (stock)"]["bytes_per_token"] is None
        assert rows["baseline"]["flash"]["kind"] == "emulated"
        assert rows["baseline"]["labels"] == ["emulated", "synthetic"]
        assert rows["resident (stock)"]["labels"] == ["synthetic"]
        assert sound(finished.ladder.document["rows"])
        assert [place["rung"] for place in finished.ladder.document["pending"]] == ["+ mixed precision", "+ DSpark"]

    def test_files(self, finished, model: Path) -> None:
        folder = finished.folder
        assert json.loads((folder / "results.json").read_text()) == json.loads(to_json(finished.ladder.document))
        manifest = json.loads((folder / "manifest.json").read_text())
        assert manifest["model"]["sha256"] == read_model(model).sha256
        assert {"date", "suite", "build", "machine", "packed", "runs"} <= set(manifest)
        table = pd.read_parquet(folder / "telemetry-tokens.parquet")
        assert len(table) == 5 * (1 + 3) * 4
        assert set(table["kind"]) == {"verify", "timed"}
        assert table["bytes"].isna().sum() > 0
        kept = {path.suffix for path in (folder / "runs").glob("*-verify-*")}
        assert kept == {".jsonl", ".json"}, "candidates' logits are not kept"

    def test_order(self, finished) -> None:
        ran = finished.ran
        assert ran[0] == "reference-p0"
        assert [run for run in ran if "verify" in run] == ran[1:6]
        assert ran[6:8] == ["resident-stock-r0-p0", "baseline-r0-p0"]
        assert ran[10:12] == ["contiguous-layout-r0-p0", "contiguous-layout-r1-p0"]

    def test_resume_runs_nothing_twice(self, resumed, finished, model: Path) -> None:
        again = run_ladder(model, SUITE, resumed.folder)
        assert resumed.ran() == []
        assert (again.ran, again.reused) == (0, 1 + 5 * 4)
        assert again.document == finished.ladder.document

    def test_more_repeats_keep_the_finished_ones(self, resumed, model: Path) -> None:
        run_ladder(model, replace(SUITE, repeats=4), resumed.folder)
        assert len(resumed.ran()) == 5

    def test_another_build_runs_again(self, resumed, model: Path) -> None:
        resumed.script.write_text(resumed.script.read_text() + "# rebuilt\n")
        store.build_id.cache_clear()
        run_ladder(model, SMALL, resumed.folder)
        assert len(resumed.ran()) == 1 + 3 * 4

    def test_a_changed_toggle_runs_that_rung_again(self, resumed, model: Path) -> None:
        rungs = [replace(r, changes={**r.changes, "lanes": 2}) if r.name == "+ lookahead" else r for r in SMALL.rungs]
        run_ladder(model, replace(SMALL, rungs=tuple(rungs)), resumed.folder)
        assert resumed.ran() == ["lookahead-verify-p0", *(f"lookahead-r{i}-p0" for i in range(3))]

    def test_fresh(self, resumed, model: Path) -> None:
        (resumed.folder / "notes.txt").write_text("mine")
        run_ladder(model, SMALL, resumed.folder, fresh=True)
        assert len(resumed.ran()) == 1 + 3 * 4
        assert (resumed.folder / "notes.txt").exists()

    def test_cut_run_is_made_again(self, resumed, model: Path) -> None:
        path = next((resumed.folder / "runs").glob("baseline-r1-*.jsonl"))
        path.write_text(path.read_text()[:-40])
        run_ladder(model, SUITE, resumed.folder)
        assert resumed.ran() == ["baseline-r1-p0"]

    def test_several_prompts_are_pooled(self, fake, model: Path) -> None:
        rows = by_name(run_ladder(model, replace(SMALL, prompts=("One day", "Then"), repeats=1), fake.folder))
        assert rows["baseline"]["lossless"]["compared"] == 2 * 4 * 16
        assert rows["baseline"]["decode_tok_s"] == pytest.approx(50)
        assert rows["baseline"]["speedup_low"] is None, "one repeat has no interval"


class TestFailures:
    @pytest.mark.parametrize(
        ("fault", "reason"),
        [("refuse", "the model has 8 experts"), ("fail", "read error: EIO"), ("kill", "SIGKILL.*memory")],
    )
    def test_a_failed_rung_is_a_row(self, fake, model: Path, fault: str, reason: str) -> None:
        fake.faults(**{"lookahead-verify": fault})
        ladder = run_ladder(model, SMALL, fake.folder)
        rows = by_name(ladder)
        row = rows.pop("+ lookahead")
        assert row["status"] == "failed"
        assert re.search(reason, row["error"])
        assert row["decode_tok_s"] is None
        assert row["lossless"]["verdict"] == "not checked"
        assert all(other["status"] == "ok" for other in rows.values())
        assert not sound(ladder.document["rows"])
        assert not any(run.startswith("lookahead-r") for run in fake.ran())

    def test_a_failed_repeat_fails_its_rung_and_says_which(self, fake, model: Path) -> None:
        fake.faults(**{"lookahead-r1": "fail"})
        row = by_name(run_ladder(model, SMALL, fake.folder))["+ lookahead"]
        assert row["status"] == "failed"
        assert row["error"] == "repeat 2 of 3: read error: EIO"
        assert row["decode_tok_s"] is None
        assert row["decode_tok_s_samples"] == []

    def test_failures_are_tried_again(self, fake, model: Path) -> None:
        fake.faults(**{"lookahead-r1": "fail"})
        run_ladder(model, SMALL, fake.folder)
        before = len(fake.ran())
        fake.faults()
        assert sound(run_ladder(model, SMALL, fake.folder).document["rows"])
        assert fake.ran()[before:] == ["lookahead-r1-p0", "lookahead-r2-p0"]

    def test_differing_logits(self, fake, model: Path) -> None:
        fake.faults(**{"lookahead-verify": "differ"})
        ladder = run_ladder(model, SMALL, fake.folder)
        verdict = by_name(ladder)["+ lookahead"]["lossless"]
        assert (verdict["verdict"], verdict["differing"], verdict["first_differing_position"]) == ("differs", 1, 1)
        assert verdict["max_abs_diff"] == pytest.approx(0.25)
        assert not sound(ladder.document["rows"])
        assert by_name(run_ladder(model, SMALL, fake.folder))["+ lookahead"]["lossless"] == verdict, "kept on resume"

    def test_a_timed_run_that_differs_is_caught(self, fake, model: Path) -> None:
        fake.faults(**{"lookahead-r2": "hash"})
        verdict = by_name(run_ladder(model, SMALL, fake.folder))["+ lookahead"]["lossless"]
        assert verdict["verdict"] == "differs"
        assert "timed runs differ at 1 of 12" in verdict["reason"]

    def test_without_stock_the_next_rung_is_the_reference_and_is_named(self, fake, model: Path) -> None:
        fake.faults(**{"-": "no-stock"})
        ladder = run_ladder(model, SMALL, fake.folder)
        rows = by_name(ladder)
        assert "SIGKILL" in rows["resident (stock)"]["error"]
        assert ladder.document["reference"] == "baseline, not stock"
        for name in ("baseline", "+ lookahead"):
            assert rows[name]["lossless"]["verdict"] == "bit-exact"
            assert rows[name]["lossless"]["against"] == "baseline, not stock"
        fake.faults()
        again = by_name(run_ladder(model, SMALL, fake.folder))
        assert again["+ lookahead"]["lossless"]["against"] == "resident (stock)", "a kept verdict names its reference"

    def test_without_any_reference_nothing_is_certified(self, fake, model: Path) -> None:
        fake.faults(reference="kill")
        rows = run_ladder(model, SMALL, fake.folder).document["rows"]
        assert {(row["status"], row["lossless"]["verdict"]) for row in rows} == {("failed", "not checked")}

    def test_no_baseline_no_speedup(self, fake, model: Path) -> None:
        fake.faults(**{"baseline-r0": "fail"})
        rows = by_name(run_ladder(model, SMALL, fake.folder))
        assert {row["speedup"] for row in rows.values()} == {None}
        assert rows["+ lookahead"]["decode_tok_s"] is not None

    def test_contended_is_labelled(self, fake, model: Path) -> None:
        fake.faults(**{"lookahead-r0": "contended"})
        row = by_name(run_ladder(model, SMALL, fake.folder))["+ lookahead"]
        assert row["contended_runs"] == 1
        assert "contended" in row["labels"]

    def test_packing_that_fails_fails_its_rung_only(self, fake, model: Path, tmp_path: Path) -> None:
        target = fake.folder / f"{model.stem}-{read_model(model).sha256[:12]}.packed.gguf"
        Path(f"{target}.partial").mkdir(parents=True)
        rows = by_name(run_ladder(model, replace(SUITE, repeats=1), fake.folder))
        assert "packed model could not be made" in rows["+ contiguous layout"]["error"]
        assert rows["+ lookahead"]["status"] == "ok"

    def test_unusable_models(self, fake, model: Path, tmp_path: Path) -> None:
        from workbench.storage.pack import pack

        packed = pack(model, tmp_path / "p.gguf", progress=False)
        with pytest.raises(ModelFileError, match="starts from the original"):
            run_ladder(packed, SUITE, fake.folder)
        (tmp_path / "x.gguf").write_bytes(b"nothing")
        with pytest.raises(ModelFileError, match="not a GGUF"):
            run_ladder(tmp_path / "x.gguf", SUITE, fake.folder)
        assert fake.ran() == []


class TestShown:
    def test_table_tells_people_everything(self, fake, model: Path) -> None:
        from rich.console import Console

        fake.faults(**{"cache-verify": "refuse", "lookahead-r0": "contended"})
        document = run_ladder(model, SUITE, fake.folder).document
        console = Console(width=200, record=True, file=io.StringIO())
        print_ladder(document, console)
        text = console.export_text()
        for part in ("emulated", "synthetic", "contended", "bit-exact", "failed: cache_slots=99", "2.00 ×",
                     "quantized already", "75 %", "lookahead off → router", "Emulated flash: 1 GB/s",
                     "Latency-bound"):  # fmt: skip
            assert part in text, part

    def test_narrow_terminals_keep_the_essentials(self, finished) -> None:
        from rich.console import Console

        document = finished.ladder.document
        console = Console(width=80, record=True, file=io.StringIO())
        print_ladder(document, console)
        text = console.export_text()
        assert "…" not in text
        assert "bit-exact" in text
        assert "recall" in text

    def test_figure_bytes_are_reproducible(self, finished, tmp_path: Path) -> None:
        document = finished.ladder.document
        first, second = save(document, tmp_path / "a"), save(document, tmp_path / "b")
        for kind in ("png", "pdf"):
            assert first[kind].read_bytes() == second[kind].read_bytes()
            assert first[kind].stat().st_size > 10_000

    def test_figure_of_a_failed_ladder(self, fake, model: Path) -> None:
        fake.faults(reference="kill")
        save(run_ladder(model, SMALL, fake.folder).document, fake.folder)

    def test_article_reference_is_the_reported_one(self) -> None:
        assert [r["tok_s"] for r in article()["ladder"]["rungs"]] == [3.38, 6.57, 11.34, 17.16, 20.51]

    def test_json_has_no_nan(self) -> None:
        assert json.loads(to_json({"a": math.nan, "b": [math.inf, 1]})) == {"a": None, "b": [None, 1]}


class TestCommand:
    def test_last_line_is_the_document(self, fake, model: Path, tmp_path: Path) -> None:
        arguments = [str(model), "--out", str(fake.folder), "--tokens", "4", "--repeats", "2", "--prompt", "One day",
                     "--emulate-bandwidth", "1e9", "--json", str(tmp_path / "copy.json")]  # fmt: skip
        result = CliRunner().invoke(ablate, arguments)
        assert result.exit_code == 0, result.output
        document = json.loads(result.stdout.splitlines()[-1])
        assert document == json.loads((tmp_path / "copy.json").read_text())
        assert document["rows"][1]["flash"]["bandwidth_bytes_s"] == 10**9
        assert (fake.folder / "ablation.png").exists()
        assert (fake.folder / "ablation.pdf").exists()

    def test_phone_flash_is_derived_once(self, fake, model: Path) -> None:
        arguments = [str(model), "--out", str(fake.folder), "--tokens", "4", "--repeats", "1",
                     "--emulate-bandwidth", "phone"]  # fmt: skip
        result = CliRunner().invoke(ablate, arguments)
        assert result.exit_code == 0, result.output
        assert "derived, emulated" in result.stdout
        before = len(fake.ran())
        again = CliRunner().invoke(ablate, arguments)
        assert "Resumed" in again.stdout
        assert len(fake.ran()) == before
        assert again.stdout.splitlines()[-1] == result.stdout.splitlines()[-1]

    def test_a_failed_rung_sets_the_exit_code(self, fake, model: Path) -> None:
        fake.faults(**{"cache-verify": "refuse"})
        result = CliRunner().invoke(ablate, [str(model), "--out", str(fake.folder), "--repeats", "1", "--tokens", "4"])
        assert result.exit_code == 1
        assert json.loads(result.stdout.splitlines()[-1])["rows"][3]["status"] == "failed"

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--emulate-latency-ns", "5"], "needs --emulate-bandwidth"),
            (["--emulate-bandwidth", "fast"], "bytes per second, or 'phone'"),
            (["--emulate-bandwidth", "phone", "--emulate-latency-ns", "5"], "chooses the latency itself"),
            (["--tokens", "1"], "1 is not in the range"),
        ],
    )
    def test_usage(self, model: Path, arguments: list[str], message: str) -> None:
        result = CliRunner().invoke(ablate, [str(model), *arguments])
        assert result.exit_code == 2
        assert message in result.output

    def test_toggles(self) -> None:
        assert flash_toggles("2.5e9", 7) == {"emulate_bandwidth_bytes_s": 2_500_000_000, "emulate_latency_ns": 7}


def runner_present() -> bool:
    from workbench import native_paths
    from workbench.errors import NativeError

    try:
        return native_paths.runner().exists()
    except NativeError:
        return False


@pytest.fixture(scope="module")
def real(model: Path, tmp_path_factory: pytest.TempPathFactory):
    store.build_id.cache_clear()
    flash = {"emulate_bandwidth_bytes_s": 2 * 10**8, "emulate_latency_ns": 50_000}
    suite = Suite(tokens=12, repeats=2, flash=flash, prompts=("The fox and the hen went home.", "Once"))
    folder = tmp_path_factory.mktemp("real")
    return SimpleNamespace(ladder=run_ladder(model, suite, folder), folder=folder, suite=suite)


@pytest.mark.native
@pytest.mark.skipif(not runner_present(), reason="the native runtime is not installed")
class TestForReal:
    """The ladder on a tiny synthetic model, with the real runner."""

    def test_every_rung_is_bit_exact(self, real) -> None:
        rows = real.ladder.document["rows"]
        assert [(row["rung"], row["error"]) for row in rows] == [(name, None) for name in RUNGS]
        for row in rows:
            assert row["lossless"]["verdict"] == "bit-exact", row["rung"]
            assert row["lossless"]["compared"] == 2 * 12 * 300
            assert row["lossless"]["timed"]["compared"] == 2 * 2 * 12
        assert sound(rows)

    def test_what_is_measured(self, real, model: Path) -> None:
        rows = by_name(real.ladder)
        resident, baseline, lookahead, cache, packed = (rows[name] for name in RUNGS)
        assert resident["bytes_per_token"] is None
        assert resident["flash"]["kind"] == "native"
        expert_bytes = 2 * 2 * read_model(model).expert_bytes_total // (2 * 8)
        assert baseline["bytes_per_token"] >= expert_bytes
        assert baseline["reads_per_token"] == pytest.approx(2 * 2 * 3)
        assert baseline["hit_rate"] == 0
        assert baseline["recall"] is None
        assert 0 < lookahead["recall"] <= 1
        assert cache["hit_rate"] > 0
        assert packed["layout"] == "contiguous"
        assert packed["reads_per_token"] < cache["reads_per_token"]
        for row in (baseline, lookahead, cache, packed):
            assert row["flash"] | {"kind": "emulated", "bandwidth_bytes_s": 2 * 10**8} == row["flash"]
            assert row["labels"][:2] == ["emulated", "synthetic"]
            assert row["peak_bytes"] > 0
            assert row["decode_tok_s"] > 0
            assert row["regime"]["text"]

    def test_resumes(self, real, model: Path) -> None:
        again = run_ladder(model, real.suite, real.folder)
        assert again.ran == 0
        assert again.document == real.ladder.document

    def test_a_rung_the_model_cannot_run_is_a_row(self, model: Path, tmp_path: Path) -> None:
        rungs = (*SUITE.rungs[:2], replace(SUITE.rungs[3], name="too many", changes={"cache_slots": 99}))
        ladder = run_ladder(model, replace(SUITE, rungs=rungs, repeats=1), tmp_path)
        rows = by_name(ladder)
        assert rows["too many"]["status"] == "failed"
        assert "99" in rows["too many"]["error"]
        assert rows["baseline"]["status"] == "ok"

    def test_streamed_records_and_interrupt(self, model: Path) -> None:
        from workbench.config import RunConfig
        from workbench.runner import InterruptedRun, run_native

        def stop_after_three(record: dict[str, Any]) -> None:
            if record["t"] == "tok" and record["i"] == 3 and record["phase"] == "decode":
                raise KeyboardInterrupt

        job = {"model": str(model), "config": RunConfig().to_dict(), "prompt": "The fox", "n_predict": 200,
               "ignore_eos": True}  # fmt: skip
        with pytest.raises(InterruptedRun) as caught:
            run_native(job, on_record=stop_after_three)
        assert caught.value.recording is not None
        assert len(caught.value.recording.decode) == 4
