"""The notebook panel without a browser: what it says, what it keeps, what it hands to the timeline."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from recordings import MS, end, flash_run, header, recording, resident_run, token

import workbench as wb
from workbench.api import Run
from workbench.config import RunConfig
from workbench.errors import ToggleError, WorkbenchError
from workbench.notebook.attempt import Attempt
from workbench.notebook.compare import DIFFERS, EXACT, OPEN, differing, judge, pieces
from workbench.notebook.figures import live_figures, table
from workbench.notebook.panel import Panel
from workbench.notebook.side import marked_text
from workbench.notebook.timeline import COLOURS, LEGEND, Timeline
from workbench.timeline import token_spans

PROMPT = "Once upon a time"
LAYER = {"t": "layer", "i": 0, "phase": "decode", "layer": 3, "t0_ns": 11 * MS, "t1_ns": 15 * MS, "routed": [[1, 2]],
         "predicted": [2, 5], "hits": 1, "stall_ns": 2 * MS, "compute_ns": MS, "waves": 2,
         "wave_spans": [[11 * MS, 12 * MS, 1], [14 * MS, 15 * MS, 1]],
         "wait_spans": [[12 * MS, 14 * MS, 0]]}  # fmt: skip
READ = {"t": "io", "i": 0, "layer": 3, "experts": [1, 2], "offset": 4096, "bytes": 512_000, "lane": 2,
        "queue_ns": 10 * MS, "start_ns": 12 * MS, "end_ns": 14 * MS, "source": "demand"}  # fmt: skip


def attempt(records: list[dict[str, Any]] | None, *, model: str = "m.gguf", prompt: str = PROMPT, **toggles: Any):
    made = Attempt(Path(model), prompt, 48, RunConfig(**toggles))
    made.recording = recording(records) if records else None
    return made


def run_of(*hashes: str, first: int = 5) -> list[dict[str, Any]]:
    rows = [token(0, "prefill", 0, 8, next=first, logits_hash=hashes[0])]
    rows += [token(i, "decode", 10 + i, 11 + i, logits_hash=h) for i, h in enumerate(hashes[1:])]
    return [header(), *rows, end()]


class TestDifferingTokens:
    def test_pieces_follow_the_positions_of_drafted_tokens(self) -> None:
        records = [{"text": "a", "next": 1}, {"text": "bc", "chosen": [2, 3], "next": 3}, {"text": "d", "next": 4}]
        assert [(p.text, p.start, p.ids) for p in pieces(records)] == [
            ("a", 0, (1,)),
            ("bc", 1, (2, 3)),
            ("d", 3, (4,)),
        ]

    def test_only_positions_that_both_have_can_differ(self) -> None:
        mine = pieces([{"text": t, "next": n} for t, n in (("a", 1), ("b", 2), ("c", 3))])
        other = pieces([{"text": t, "next": n} for t, n in (("a", 1), ("x", 9))])
        assert differing(mine, other) == [False, True, False]
        assert differing(other, mine) == [False, True]

    def test_a_draft_is_marked_if_any_of_its_tokens_differs(self) -> None:
        drafted = pieces([{"text": "ab", "chosen": [1, 2], "next": 2}, {"text": "c", "next": 3}])
        single = pieces([{"text": t, "next": n} for t, n in (("a", 1), ("y", 8), ("c", 3))])
        assert differing(drafted, single) == [True, False]

    def test_text_is_escaped(self) -> None:
        shown = marked_text("<b>&", pieces([{"text": "<i>", "next": 7}]), [True])
        assert "<b>" not in shown
        assert "<i>" not in shown
        assert "<mark title='position 0, token 7'>&lt;i&gt;</mark>" in shown


class TestVerdict:
    def test_equal_hashes_are_bit_exact_for_what_was_compared(self) -> None:
        verdict = judge(attempt(run_of("a", "b", "c")), attempt(run_of("a", "b", "c"), lookahead="router"))
        assert verdict.kind == EXACT
        assert "all 3 positions compared" in verdict.text

    def test_a_shorter_run_leaves_the_rest_uncompared(self) -> None:
        verdict = judge(attempt(run_of("a", "b")), attempt(run_of("a", "b", "c"), lookahead="router"))
        assert verdict.kind == EXACT
        assert "A has 2 positions, B has 3: the rest is not compared" in verdict.text

    def test_the_first_difference_is_named(self) -> None:
        verdict = judge(attempt(run_of("a", "b", "c")), attempt(run_of("a", "x", "y"), cache_slots=2))
        assert verdict.kind == DIFFERS
        assert "first at position 1 of 3" in verdict.text
        assert "Tokens: the same, 3 of 3 compared" in verdict.text

    def test_differing_tokens_are_counted(self) -> None:
        verdict = judge(attempt(run_of("a", "b")), attempt(run_of("x", "y", first=6), cache_slots=2))
        assert "the first 0 are the same, then they differ" in verdict.text

    def test_the_same_configuration_is_said(self) -> None:
        assert "with itself" in judge(attempt(run_of("a")), attempt(run_of("a"))).text

    def test_other_threads_are_said_where_logits_differ(self) -> None:
        a, b = run_of("a"), run_of("x")
        b[0] |= {"threads": 1}
        assert "Threads differ (2 and 1)" in judge(attempt(a), attempt(b, threads=1)).text

    @pytest.mark.parametrize(
        ("other", "reason"),
        [
            ({"model": "other.gguf"}, "different models"),
            ({"prompt": "Else"}, "prompts differ"),
            ({"speculation": "ngram-simple"}, "batches of another width"),
            ({"temperature": 1.0}, "sampled differently"),
        ],
    )
    def test_what_cannot_be_compared_is_refused(self, other: dict[str, Any], reason: str) -> None:
        verdict = judge(attempt(run_of("a")), attempt(run_of("a"), **other))
        assert verdict.kind == OPEN
        assert reason in verdict.text

    def test_without_hashes_nothing_is_said(self) -> None:
        bare = run_of("a")
        bare[1]["logits_hash"] = None
        assert judge(attempt(bare), attempt(run_of("a"))).kind == OPEN
        assert judge(attempt(None), attempt(run_of("a"))).kind == OPEN
        assert judge(None, None).kind == OPEN


class TestFigures:
    def test_values_of_the_token_and_of_the_run(self) -> None:
        found = {f.name: f for f in live_figures(flash_run()[1:-1])}
        assert found["tokens/s"].latest == pytest.approx(1 / 0.011)
        assert found["tokens/s"].mean == pytest.approx(2 / 0.020)
        assert found["stall"].mean == pytest.approx(6)
        assert (found["hit rate"].latest, found["hit rate"].mean) == (pytest.approx(50), pytest.approx(37.5))
        assert found["memory"].curve == pytest.approx([1e-4, 1e-4])

    def test_what_is_not_measured_says_so(self) -> None:
        found = {f.name: f for f in live_figures(resident_run()[1:-1])}
        assert found["stall"].mean is None
        assert found["hit rate"].latest is None
        assert table(live_figures([])).count("not measured") == 2 * len(found)

    def test_agrees_with_the_summary(self) -> None:
        summary = Run(recording(flash_run())).summary
        found = {f.name: f.mean for f in live_figures(flash_run()[1:-1])}
        assert found["tokens/s"] == pytest.approx(summary["decode_tok_s"])
        assert found["hit rate"] == pytest.approx(100 * summary["hit_rate"])
        assert found["stall"] == pytest.approx(summary["stall_ms_per_token"])


class TestTimeline:
    def test_spans_are_where_they_were_recorded(self) -> None:
        run = recording([*flash_run()[:-1], LAYER, READ, end()])
        data = token_spans(run, 0)
        assert data["tracks"] == ["layers", "waves", "waits", "lane 2"]
        assert data["duration_us"] == 9000
        at = {(s["kind"], s["t0"], s["t1"]): s for s in data["spans"]}
        assert ("dense", 0, 1000) in at
        assert ("layer", 1000, 5000) in at
        assert ("wave", 1000, 2000) in at
        assert ("wait", 2000, 4000) in at
        assert ["experts", "1, 2"] in at["demand", 2000, 4000]["details"]
        assert {s["kind"] for s in data["spans"]} <= set(COLOURS)
        assert set(LEGEND) <= set(COLOURS)

    def test_a_wait_of_unknown_place_says_so(self) -> None:
        run = recording([*flash_run()[:-1], LAYER | {"wait_spans": None, "wave_spans": None}, READ, end()])
        (wait,) = (s for s in token_spans(run, 0)["spans"] if s["kind"] == "wait")
        assert ["when", "not recorded"] in wait["details"]

    def test_the_widget_takes_data_and_view_together(self) -> None:
        shown = Timeline.of(recording([*flash_run()[:-1], LAYER, READ, end()]), 0)
        assert shown.view == [0, 9000]
        assert "Token 0 · native flash" in shown.data["title"]
        shown.clear("nothing")
        assert (shown.data, shown.message) == ({}, "nothing")

    def test_refuses_what_it_cannot_draw(self) -> None:
        with pytest.raises(WorkbenchError, match="telemetry='io'"):
            token_spans(recording(flash_run()), 0)
        with pytest.raises(WorkbenchError, match="2 decode calls"):
            token_spans(recording([*flash_run()[:-1], LAYER, READ, end()]), 7)


class TestToggles:
    def test_contradictions_are_said_before_running(self) -> None:
        panel = Panel()
        controls = panel.sides["B"].toggles.controls
        assert not panel.buttons["both"].disabled
        controls["experts"].value = "resident"
        assert "contradicts experts=&#x27;resident&#x27;" in panel.sides["B"].contradiction.value
        assert panel.buttons["both"].disabled
        assert panel.buttons["B"].disabled
        assert not panel.buttons["A"].disabled
        panel.start("B")
        assert not panel.running
        for name, off in (("lookahead", "off"), ("ready_first", False), ("cache_slots", 0)):
            controls[name].value = off
        assert panel.sides["B"].contradiction.value == ""
        assert not panel.buttons["both"].disabled

    def test_bad_toggles_are_refused_at_once(self) -> None:
        with pytest.raises(ToggleError, match="unknown toggle"):
            wb.panel(cash_slots=3)

    def test_the_embedded_model_starts_under_emulated_flash(self) -> None:
        panel = wb.panel()
        config = panel.sides["B"].config(panel.flash.toggles, panel.model.value)
        assert config.flash_kind == "emulated"
        assert config.lookahead == "router"
        assert ">emulated<" in panel.badges.value
        panel.flash.kind.value = "native"
        assert panel.sides["B"].config(panel.flash.toggles, "demo").flash_kind == "native"
        assert ">emulated<" not in panel.badges.value

    def test_the_embedded_drafter_is_found(self) -> None:
        panel = wb.panel(speculation="dspark", draft_model="demo-draft.gguf")
        panel.sides["A"].toggles.controls["draft_model"].value = ""
        assert panel.sides["A"].config({}, "demo").draft_model.endswith(".gguf")
        with pytest.raises(ToggleError, match="needs draft_model"):
            panel.sides["A"].config({}, "mine.gguf")


@pytest.mark.native
class TestRuns:
    def test_two_sides_are_compared_and_drawn(self) -> None:
        panel = Panel()
        panel.tokens.value = 12
        panel.start("A", "B")
        panel.wait(120)
        assert "Bit-exact" in panel.verdict.value
        assert "all 12 positions" in panel.verdict.value
        assert {run.recording.status for run in panel.runs.values()} == {"ok"}
        assert panel.runs["A"].text == panel.runs["B"].text
        assert "<mark" not in panel.sides["B"].text.value
        assert panel.inspector.side.value == "B"
        kinds = {span["kind"] for span in panel.inspector.timeline.data["spans"]}
        assert {"dense", "layer", "wave", "prefetch"} <= kinds
        panel.inspector.side.value = "A"
        assert {s["kind"] for s in panel.inspector.timeline.data["spans"]} >= {"wait", "demand"}
        assert not panel.buttons["both"].disabled

    def test_stop_keeps_what_was_recorded(self) -> None:
        panel = Panel(emulate_bandwidth_bytes_s=20_000_000)
        panel.tokens.value = 400
        panel.start("A", "B")
        side = panel.sides["A"]
        wait_until(lambda: side.attempt is not None and len(side.attempt.records) >= 3)
        panel.stop()
        panel.wait(60)
        assert not panel.running
        assert panel.runs["A"].recording.status == "interrupted"
        assert len(panel.runs["A"].tokens) >= 3
        assert "B" not in panel.runs
        assert "Stopped:" in side.message.value
        assert "Not compared" in panel.verdict.value

    def test_an_error_is_one_sentence(self, tmp_path: Path) -> None:
        panel = Panel(cache_slots=99)
        panel.start("A")
        panel.wait(60)
        assert "cache_slots=99" in panel.sides["A"].message.value
        assert "Traceback" not in panel.sides["A"].message.value
        assert panel.inspector.timeline.message == "A has no finished run."
        panel.model.value = str(tmp_path / "none.gguf")
        panel.start("A")
        panel.wait(60)
        assert "no such file" in panel.status.value

    def test_a_trace_is_written(self, tmp_path: Path) -> None:
        panel = Panel()
        panel.tokens.value = 4
        panel.start("A")
        panel.wait(60)
        path = panel.inspector.save_trace(tmp_path)
        assert path is not None
        assert '"wave"' in path.read_text()
        assert panel.inspector.save_trace(tmp_path / "no" / "folder") is None
        assert "No such file" in panel.inspector.note.value


@pytest.mark.native
def test_waves_and_waits_account_for_the_recorded_time(demo_file: Path) -> None:
    flash = {"emulate_bandwidth_bytes_s": 500_000_000, "io": "buffered", "threads": 1}
    run = wb.run(demo_file, PROMPT, tokens=4, lookahead="router", ready_first=True, telemetry="io", **flash)
    layers = run.layers
    assert layers is not None
    for row in layers.to_dict("records"):
        assert len(row["wave_spans"]) == row["waves"]
        assert sum(t1 - t0 for t0, t1, _ in row["wave_spans"]) == row["compute_ns"]
        assert sum(t1 - t0 for t0, t1, _ in row["wait_spans"]) == row["stall_ns"]
        assert sum(n for _, _, n in row["wave_spans"]) == len({e for experts in row["routed"] for e in experts})
    assert layers["wait_spans"].map(len).sum() > 0


@pytest.mark.native
def test_a_generation_ends_the_one_before(demo_file: Path) -> None:
    with wb.Session(demo_file, threads=1) as session:
        first = session.generate(PROMPT, n_predict=20)
        next(first)
        assert len(list(session.generate(PROMPT, n_predict=4))) == 4
        assert session.end is not None
        assert session.end["reason"] == "length"
        with pytest.raises(wb.RunError, match="another generation"):
            next(first)
        assert session.end["reason"] == "length"


def wait_until(true: Callable[[], bool], limit_s: float = 120) -> None:
    waited = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < waited
        time.sleep(0.02)
