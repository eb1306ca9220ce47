"""Figures: drawn from recorded runs alone, the same bytes every time, the CSV is the picture, gaps are named."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner
from matplotlib.figure import Figure

import workbench as wb
from workbench.ablation.ladder import run_ladder
from workbench.ablation.stats import Estimate
from workbench.ablation.suites import load_suite
from workbench.bench.common import recorded_in, report
from workbench.cli import cli
from workbench.errors import WorkbenchError
from workbench.figures import FIGURES
from workbench.figures.build import KINDS, build, save
from workbench.figures.ladder import choose_ladder
from workbench.figures.reported import article
from workbench.figures.runs import NotMeasured, open_runs
from workbench.figures.sheet import FigureData
from workbench.storage.synth import SynthShape, synthesize

SUITES = Path(__file__).parent.parent / "device_runs" / "suites"
EMULATED = {"emulate_bandwidth_bytes_s": 10**9, "emulate_latency_ns": 50_000}
SHAPE = SynthShape(
    n_layer=2, n_embd=256, n_ff=256, n_expert=24, n_expert_used=4, n_head=4, n_head_kv=2, n_vocab=300, n_ctx=256
)


def module(name: str) -> Any:
    return importlib.import_module(f"workbench.figures.{name}")


def drafts() -> list[dict[str, Any]]:
    """Rows in the schema of `bench draft_width`."""
    return [
        {"flash": flash, "text": text, "arm": arm, "tok/s": 50.0 * gain, "x off": gain, "tau": tau, "drafted": drafted,
         "union": None if drafted is None else 0.6, "MB/token": 1.0, "contended": False}
        for flash in ("emulated", "native")
        for text in ("easy", "hard")
        for arm, gain, tau, drafted in (("off", 1.0, None, None), ("width 2 (best fixed)", 1.3, 2.2, 2.0),
                                        ("adaptive", 1.1, 1.7, 1.4), ("no Markov, width 3", 0.8, 1.5, 3.0))
    ]  # fmt: skip


def samples(**columns: Any) -> pd.DataFrame:
    n = 5
    empty: dict[str, Any] = dict.fromkeys(("power_w", "battery_temp_c", "thermal_state", "freq_hz", "memory_bytes"))
    frame = pd.DataFrame({"t_ns": [10**9 * i for i in range(n)], "source": "psutil", **empty})
    return frame.assign(memory_bytes=[30e6 + i for i in range(n)], **columns)


@pytest.fixture
def ladder(tmp_path: Path) -> Path:
    """A copy of the ladder that comes with the project."""
    return Path(shutil.copytree(choose_ladder(open_runs(), "test").folder, tmp_path / "runs" / "2026-01-01-demo"))


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "results.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def texts(figure: Figure) -> str:
    from matplotlib.text import Text

    return "\n".join(t.get_text() for t in figure.findobj(Text)).replace("\n", " ")


class TestRecordedLadder:
    def test_the_csv_is_the_picture(self, ladder: Path, tmp_path: Path) -> None:
        (made,) = build(ladder, tmp_path / "out", ["ablation"])
        assert [p.name for p in made.files] == ["ablation.png", "ablation.pdf", "ablation.svg", "ablation.csv"]
        frame = FigureData.load(tmp_path / "out" / "ablation.csv").frame
        rows = json.loads((ladder / "results.json").read_text())["rows"]
        ours = frame[frame["how"] == "measured"]
        assert ours["tok_s"].tolist() == pytest.approx([r["decode_tok_s"] for r in rows], rel=1e-12)
        assert ours["peak_mb"].tolist() == pytest.approx([r["peak_bytes"] / 1e6 for r in rows], rel=1e-12)
        axes = wb.figure("ablation", ladder).axes
        bars = [[b.get_height() for b in ax.patches if b.get_width() == pytest.approx(0.8)] for ax in axes]
        assert bars[0] == ours["tok_s"].tolist()
        assert bars[1] == ours["peak_mb"].tolist()
        assert bars[2] == frame.loc[frame["how"] == "reported", "tok_s"].tolist()
        (tmp_path / "again").mkdir()
        save(
            module("ablation").draw,
            FigureData.load(tmp_path / "out" / "ablation.csv"),
            tmp_path / "again",
            "ablation",
            ["png"],
        )
        assert (tmp_path / "again" / "ablation.png").read_bytes() == (tmp_path / "out" / "ablation.png").read_bytes()

    def test_a_drafting_rung_says_what_it_is_compared_with(self, ladder: Path) -> None:
        frame = module("ablation").data(open_runs(ladder)).frame
        marks = frame[frame["how"] == "measured"].set_index("rung")["mark"]
        assert marks["+ DSpark"] == "bit-exact\nto plain"
        assert marks["+ contiguous layout"] == "bit-exact"
        assert "plain decoding of the same file" in texts(wb.figure("ablation", ladder))

    def test_reported_values_are_never_measured_ones(self, ladder: Path) -> None:
        theirs = {r["tok_s"] for r in article()["ladder"]["rungs"]} | {21.7, 18.0, 78.28, 78.12}
        for name in ("overview", "frontier", "roofline"):
            frame = module(name).data(open_runs(ladder)).frame
            assert set(frame["how"]) <= {"measured", "reported", "estimated", "derived"}
            ours = frame[frame["how"] == "measured"]
            assert len(ours)
            assert not theirs & set(ours.select_dtypes("number").to_numpy().ravel())
            grounds = [ax for ax in wb.figure(name, ladder).axes if "Reported" in ax.get_title(loc="left")]
            assert grounds
            assert all(ax.get_facecolor() != (1.0, 1.0, 1.0, 1.0) for ax in grounds)

    @pytest.mark.parametrize("label", ["emulated", "synthetic", "contended"])
    def test_labels_are_in_the_figure(self, ladder: Path, label: str) -> None:
        rows = json.loads((ladder / "results.json").read_text())["rows"]
        edit(ladder, rows=[row | {"labels": [label]} for row in rows])
        assert label in texts(wb.figure("ablation", ladder))
        edit(ladder, rows=[row | {"labels": []} for row in rows], profile=None)
        assert label not in wb.figure("ablation", ladder).texts[0].get_text()

    def test_readable_in_grey(self, ladder: Path) -> None:
        speed, _, reported = wb.figure("ablation", ladder).axes
        assert len({bar.get_hatch() for bar in speed.patches}) == 2, "the stock bar is hatched"
        assert all(bar.get_hatch() for bar in reported.patches)
        markers = [line.get_marker() for line in wb.figure("frontier", ladder).axes[1].lines]
        marks = [m for m in markers if m not in ("None", "_", "|", None)]
        assert len(set(marks)) == len(marks) > 4

    def test_scores_come_from_a_run_of_the_same_model(self, ladder: Path) -> None:
        given = json.loads((ladder / "results.json").read_text())
        with pytest.raises(NotMeasured, match="scored") as missing:
            wb.figure("quantization", ladder)
        assert "--eval local" in missing.value.how
        assert "score: not measured" in texts(wb.figure("overview", ladder))
        points = [
            {"name": name, "file_bytes": size, "items": 200, "score": score, "low": score - 0.05, "high": score + 0.05}
            for name, size, score in (("as given", 56e6, 0.81), ("+ mixed precision", 25e6, 0.74))
        ]
        other = ladder.parent / "scores"
        other.mkdir()
        for sha256, there in (("another", False), (given["model"]["sha256"], True)):
            document = {"kind": "scores", "model": {"sha256": sha256, "name": "m"}, "rows": given["rows"]}
            (other / "results.json").write_text(json.dumps(document | {"size_score": points}))
            assert ("score: not measured" in texts(wb.figure("frontier", ladder.parent))) is not there
        drawn = wb.figure("quantization", ladder.parent)
        assert {74.0, 81.0} <= {line.get_ydata()[0] for line in drawn.axes[0].lines if len(line.get_ydata()) == 1}
        assert "les-mixed" in texts(drawn)

    def test_power_says_what_no_sensor_gave(self, ladder: Path) -> None:
        (ladder / "samples.parquet").unlink(missing_ok=True)
        with pytest.raises(NotMeasured, match=r"15\.60–18\.31 W"):
            wb.figure("power", ladder)
        samples().to_parquet(ladder / "samples.parquet")
        text = texts(wb.figure("power", ladder))
        assert "in part not measured" in text
        assert "power of the device: not measured" in text
        assert "reported load: 15.60–18.31 W" in text
        samples(power_w=[5.0] * 5, battery_temp_c=[30.0, 30.1, 30.2, 30.3, 30.5]).to_parquet(ladder / "samples.parquet")
        assert "not measured" not in wb.figure("power", ladder).texts[0].get_text()

    def test_the_uncontended_then_the_latest_ladder(self, ladder: Path) -> None:
        later = Path(shutil.copytree(ladder, ladder.parent / "2027-01-01-demo"))
        manifest = json.loads((later / "manifest.json").read_text())
        (later / "manifest.json").write_text(json.dumps(manifest | {"date": "2027-01-01T00:00:00+00:00"}))
        assert choose_ladder(open_runs(ladder.parent), "ablation").folder == later
        rows = json.loads((later / "results.json").read_text())["rows"]
        edit(later, rows=[row | {"labels": ["contended"]} for row in rows])
        runs = open_runs(ladder.parent)
        assert choose_ladder(runs, "ablation").folder == ladder
        assert runs.passed_over == {"ablation": ["2027-01-01-demo"]}


class TestMissing:
    def test_nothing_recorded_draws_nothing_and_says_what_to_run(self, tmp_path: Path) -> None:
        (tmp_path / "runs").mkdir()
        out = tmp_path / "out"
        out.mkdir()
        (out / "ablation.png").write_text("of an earlier build")
        arguments = ["figures", "--runs", str(tmp_path / "runs"), "--out", str(out)]
        result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
        assert result.exit_code == 0
        document = json.loads(result.stdout.splitlines()[-1])["figures"]
        assert [f["figure"] for f in document] == list(FIGURES)
        for f in document:
            assert f["files"] == []
            assert f["not_measured"]
            assert f["run"].startswith("workbench ")
        assert not list(out.iterdir())
        assert result.stdout.count("not measured") >= len(FIGURES)

    def test_clear_errors(self, tmp_path: Path) -> None:
        with pytest.raises(WorkbenchError, match="no such folder"):
            wb.paper_figures(tmp_path / "none", tmp_path)
        with pytest.raises(WorkbenchError, match="no figure 'pie'"):
            wb.figure("pie")
        (tmp_path / "results.json").write_text("{")
        with pytest.raises(WorkbenchError, match=r"results\.json: not a readable recording"):
            wb.figure("ablation", tmp_path)


class TestDrafting:
    def record(self, folder: Path) -> None:
        with recorded_in(folder):
            report("draft_width", Estimate(value=1.0, low=0.9, high=1.1, n=3), 0.97, drafts())

    def test_bench_records_what_it_prints(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.record(tmp_path / "run")
        document = json.loads((tmp_path / "run" / "bench.json").read_text())
        assert {"kind": "bench", "name": "draft_width"}.items() <= document.items()
        assert document["rows"] == json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
        assert document["estimate"] == {"value": 1.0, "low": 0.9, "high": 1.1, "n": 3}
        assert document["machine"]["n_cpu"] == os.cpu_count()
        report("draft_width", None, 0.97, drafts())
        assert len(list(tmp_path.rglob("*.json"))) == 1

    def test_break_even(self, tmp_path: Path) -> None:
        self.record(tmp_path)
        frame = module("drafting").data(open_runs(tmp_path)).frame
        ours = frame[frame["how"] == "measured"]
        assert "off" not in set(ours["arm"])
        wide = ours[ours["arm"] == "width 2"].iloc[0]
        assert wide["flash_gain"] == pytest.approx(2.2 / (3 * 0.6))
        assert "emulated flash" in texts(wb.figure("drafting", tmp_path))


class TestThroughput:
    def record(self, folder: Path) -> None:
        rows: list[dict[str, Any]] = [
            {"case": name, "batch": "2048 tokens", "n_batch": None, "tok/s": speed, "low": speed - 1, "high": speed + 1,
             "MB read/token": None} for name, speed in (("les-workbench, resident", 900.0), ("hf", 300.0))
        ]  # fmt: skip
        rows += [{"case": "flash", "batch": f"{n} tokens", "n_batch": n, "tok/s": 2.0 * n, "low": 1.0 * n,
                  "high": 3.0 * n, "MB read/token": 100 / n} for n in (32, 512, 128)]  # fmt: skip
        with recorded_in(folder):
            report("eval_throughput", Estimate(value=3.0, low=2.9, high=3.1, n=3), 3.0, rows, ["8 requests"])

    def test_the_curve_is_that_of_the_streamed_rows(self, tmp_path: Path) -> None:
        self.record(tmp_path)
        figure = wb.figure("throughput", tmp_path)
        (curve,) = [line for line in figure.axes[1].lines if len(line.get_xdata()) == 3]
        assert list(curve.get_xdata()) == [32, 128, 512]
        assert list(curve.get_ydata()) == pytest.approx([100 / 32, 100 / 128, 100 / 512])
        assert "hf: 300" in texts(figure)
        assert "8 requests" in texts(figure)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The suites that come with the project, small, on a synthetic model; layouts, drafts and samples beside."""
    folder = tmp_path_factory.mktemp("runs")
    model = synthesize(tmp_path_factory.mktemp("model") / "tiny.gguf", SHAPE, progress=False)
    for name, rungs in (("demo-ladder", 5), ("demo-cache-window", 4), ("demo-timeline", 5), ("demo-recall", 4)):
        suite = load_suite(SUITES / f"{name}.yaml")
        flash = EMULATED if suite.flash else {}
        suite = replace(suite, rungs=suite.rungs[:rungs], tokens=4, repeats=1, flash=flash, drafter="")
        run_ladder(model, suite, folder / name)
    (packed,) = (folder / "demo-timeline").glob("*.packed.gguf")
    for file, kind in ((model, "native"), (packed, "packed")):
        target = folder / "layout" / f"layout-{kind}.json"
        result = CliRunner().invoke(cli, ["inspect", str(file), "--record", str(target)], catch_exceptions=False)
        assert result.exit_code == 0
        assert str(file.parent) not in target.read_text()
    TestDrafting().record(folder / "draft")
    TestThroughput().record(folder / "throughput")
    samples().to_parquet(folder / "demo-ladder" / "samples.parquet")
    document = json.loads((folder / "demo-ladder" / "results.json").read_text())
    point = {"items": 50, "low": 0.4, "high": 0.6}
    scores = [point | {"name": "as given", "score": 0.5, "file_bytes": 9 * 10**6},
              point | {"name": "q4_k_m", "score": 0.45, "file_bytes": 5 * 10**6}]  # fmt: skip
    edit(folder / "demo-ladder", **document, size_score=scores)
    return folder


@pytest.mark.native
@pytest.mark.slow
class TestFromRealRuns:
    def test_two_processes_write_the_same_bytes(self, runs: Path, tmp_path: Path) -> None:
        code = "import sys; from workbench.cli import main; sys.argv = ['workbench', 'figures', *sys.argv[1:]]; main()"
        for seed in ("1", "2"):
            arguments = [sys.executable, "-c", code, "--runs", str(runs), "--out", str(tmp_path / seed)]
            subprocess.run(arguments, check=True, capture_output=True, env=os.environ | {"PYTHONHASHSEED": seed})
        names = {p.name for p in (tmp_path / "1").iterdir()}
        assert names == {f"{name}.{kind}" for name in FIGURES for kind in (*KINDS, "csv")}
        for name in names:
            assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes(), name
        for name in ("ablation", "timeline", "cache_window", "roofline", "frontier", "overview"):
            svg = (tmp_path / "1" / f"{name}.csv").read_text().splitlines()[1]
            assert "emulated" in svg
            assert "synthetic" in svg

    def test_recall_of_the_control_is_whole(self, runs: Path) -> None:
        frame = module("recall").data(open_runs(runs)).frame
        control = frame[frame["arm"] == "control"]
        assert len(control) == SHAPE.n_layer
        assert (control["recall"] == 1.0).all()
        wide, narrow = (frame[(frame["arm"] == a) & (frame["how"] == "measured")] for a in ("top-2k", "top-k"))
        assert wide["recall"].mean() >= narrow["recall"].mean()

    def test_timeline_and_storage_are_the_recorded_reads(self, runs: Path) -> None:
        frame = module("timeline").data(open_runs(runs)).frame
        baseline = frame[frame["rung"] == "baseline"]
        reads = baseline[baseline["kind"] == "demand"]
        assert len(reads) == SHAPE.n_layer * SHAPE.n_expert_used * 3
        assert set(reads["track"]) == {"lane 0"}
        assert (baseline["kind"] == "experts").sum() == SHAPE.n_layer
        stored = module("storage").data(open_runs(runs)).frame
        measured = stored[stored["panel"] == "reads"].set_index("rung")
        assert measured.loc["baseline", "reads_per_expert"] == 3.0
        assert measured.loc["+ contiguous layout", "reads_per_expert"] <= 1.0
        packed = stored[(stored["layout"] == "contiguous") & (stored["expert"] == 0)].sort_values("offset_bytes")
        ends = packed["offset_bytes"] + packed["piece_bytes"]
        assert ends.tolist()[:-1] == packed["offset_bytes"].tolist()[1:]

    def test_cache_window_holds_its_arms(self, runs: Path) -> None:
        frame = module("cache_window").data(open_runs(runs)).frame
        ours = frame[frame["how"] == "measured"]
        assert ours["cache_slots"].tolist() == [0, 2, 4]
        assert ours["hit_rate"].is_monotonic_increasing
        assert frame.loc[frame["how"] == "reported", "peak_mb"].tolist() == [3000.0, 7800.0]


def test_every_figure_is_one_module_with_data_and_draw() -> None:
    for name in FIGURES:
        assert callable(module(name).data)
        assert callable(module(name).draw)
        assert module(name).__doc__
