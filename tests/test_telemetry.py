"""Reading, summing up and storing recordings; running `les-run` and its bad endings."""

from __future__ import annotations

import json
import signal
import stat
import sys
import textwrap
import threading
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from recordings import MS, end, flash_run, header, lines, recording, resident_run, token

from workbench.errors import ModelFileError, RunError, ToggleError, UnsupportedArchitectureError
from workbench.runner import InterruptedRun, NativeRunError, environment, model_sha256, run_native
from workbench.telemetry import Recording, TelemetryError, chrome_trace, read_jsonl, summarize


class TestReading:
    def test_whole_file(self, tmp_path: Path) -> None:
        path = tmp_path / "t.jsonl"
        path.write_text("".join(lines(flash_run())))
        run = read_jsonl(path)
        assert run.status == "ok"
        assert run.header["config"]["lookahead"] == "router"
        assert list(run.decode["i"]) == [0, 1]
        assert run.generated == [0, 1, 2]

    def test_every_cut_is_readable_and_crashed(self) -> None:
        text = "".join(lines(flash_run()))
        first = text.index("\n") + 1
        for cut in range(first, len(text) - 1, 29):
            run = read_jsonl(text[:cut].splitlines(keepends=True))
            assert run.status == ("crashed" if run.end is None else "ok")
            assert len(run.tokens) <= 3
        assert read_jsonl(text[:-30].splitlines(keepends=True)).status == "crashed"

    def test_no_header(self) -> None:
        with pytest.raises(TelemetryError, match="no header"):
            read_jsonl([])
        with pytest.raises(TelemetryError, match="no header"):
            read_jsonl(lines(flash_run())[1:])

    def test_damage_in_the_middle_is_named(self) -> None:
        text = lines(flash_run())
        text[2] = text[2][:40] + "\n"
        with pytest.raises(TelemetryError, match="line 3"):
            read_jsonl(text)

    def test_other_schema(self) -> None:
        with pytest.raises(TelemetryError, match="schema 2"):
            recording([header() | {"schema": 2}])

    def test_unknown_kinds_are_skipped(self) -> None:
        run = recording([*flash_run()[:-1], {"t": "smp", "watts": 3}, end()])
        assert run.status == "ok"

    @pytest.mark.parametrize(
        ("ends", "status"),
        [({}, "ok"), ({"rc": 1, "reason": "error"}, "error"), ({"reason": "interrupted"}, "interrupted")],
    )
    def test_status(self, ends: dict, status: str) -> None:
        assert recording(flash_run(**ends)).status == status


class TestSummarize:
    def test_flash(self) -> None:
        m = summarize(recording(flash_run()))
        assert m["prefill_tok_s"] == pytest.approx(4 / 0.008)
        assert m["decode_tok_s"] == pytest.approx(2 / 0.020)
        assert m["ttft_ms"] == 9
        assert m["bytes_per_token"] == 3000
        assert m["reads_per_token"] == 6
        assert m["stall_ms_per_token"] == 6
        assert m["compute_ms_per_token"] == 2
        assert m["flash_idle_share"] == pytest.approx(1 - 10 / 20)
        assert m["hit_rate"] == pytest.approx(3 / 8)
        assert m["recall"] == pytest.approx(5 / 8)
        assert m["prefetch_wasted_bytes"] == 1000
        assert m["prefetch_wasted_bytes_per_token"] == 500
        assert m["peak_bytes"] == 1000
        assert m["contended"] is False
        assert (m["n_prompt"], m["n_decode"]) == (4, 2)

    def test_resident_has_none_never_zero(self) -> None:
        m = summarize(recording(resident_run()))
        for name in ("bytes_per_token", "reads_per_token", "stall_ms_per_token", "flash_idle_share", "hit_rate",
                     "recall", "prefetch_wasted_bytes"):  # fmt: skip
            assert m[name] is None, name
        assert m["compute_ms_per_token"] == 2

    def test_a_partly_measured_column_is_not_measured(self) -> None:
        records = flash_run()
        records[2]["bytes"] = None
        assert summarize(recording(records))["bytes_per_token"] is None

    def test_no_prediction_no_recall(self) -> None:
        records = flash_run()
        for record in records[1:-1]:
            record["recall_hit"] = record["recall_total"] = 0
        assert summarize(recording(records))["recall"] is None

    def test_crashed_run_keeps_what_was_measured(self) -> None:
        m = summarize(recording(flash_run()[:-1]))
        assert m["decode_tok_s"] == pytest.approx(100)
        assert m["ttft_ms"] is None
        assert m["peak_bytes"] is None
        assert m["contended"] is None

    def test_telemetry_off_uses_the_totals(self) -> None:
        m = summarize(recording([header(telemetry="off"), end()]))
        assert m["decode_tok_s"] == pytest.approx(2 / 0.020)
        assert m["prefill_tok_s"] == pytest.approx(4 / 0.008)
        assert m["bytes_per_token"] is None

    def test_pooled_prompts_are_sums_over_sums(self) -> None:
        slow = flash_run(ttft_ns=11 * MS, peak_bytes=3000, contended=True)
        slow[3]["t1_ns"] = 70 * MS
        m = summarize(recording(flash_run()), recording(slow))
        assert m["decode_tok_s"] == pytest.approx(4 / (0.020 + 0.060))
        assert m["ttft_ms"] == 10
        assert m["peak_bytes"] == 3000
        assert m["contended"] is True

    def test_header_only(self) -> None:
        assert set(summarize(recording([header()])).values()) == {None}


class TestStorage:
    def test_parquet_round_trip(self, tmp_path: Path) -> None:
        layer = {"t": "layer", "i": 0, "phase": "decode", "layer": 3, "t0_ns": 11 * MS, "t1_ns": 12 * MS,
                 "routed": [[1, 2]], "predicted": None, "hits": 1, "stall_ns": 5, "compute_ns": 6,
                 "waves": 1}  # fmt: skip
        io = {"t": "io", "i": 0, "layer": 3, "experts": [1, 2], "offset": 4096, "bytes": 512, "lane": 1,
              "queue_ns": 1 * MS, "start_ns": 2 * MS, "end_ns": 3 * MS, "source": "demand"}  # fmt: skip
        run = recording([*flash_run()[:-1], layer, io, end()])
        run.to_parquet(tmp_path)
        back = Recording.from_parquet(tmp_path)
        pd.testing.assert_frame_equal(run.tokens, back.tokens)
        pd.testing.assert_frame_equal(run.io, back.io)
        assert back.layers["routed"][0][0].tolist() == [1, 2]
        assert (back.header, back.end) == (run.header, run.end)
        assert back.tokens["drafted"].isna().all()

    def test_levels_not_recorded_stay_absent(self, tmp_path: Path) -> None:
        recording(flash_run()).to_parquet(tmp_path)
        back = Recording.from_parquet(tmp_path)
        assert back.layers is None
        assert back.io is None

    def test_trace_has_a_compute_track_and_one_per_lane(self) -> None:
        io = [
            {"t": "io", "i": 0, "layer": 0, "experts": [1], "offset": 0, "bytes": 512, "lane": lane,
             "queue_ns": 1, "start_ns": 11 * MS, "end_ns": 12 * MS, "source": "prefetch"} for lane in (0, 3)
        ]  # fmt: skip
        events = chrome_trace(recording([*flash_run()[:-1], *io, end()]))["traceEvents"]
        tracks = {e["args"]["name"]: e["tid"] for e in events if e["ph"] == "M"}
        assert set(tracks) == {"compute", "lane 0", "lane 3"}
        reads = [e for e in events if e["ph"] == "X" and e["tid"] == tracks["lane 3"]]
        assert reads == [
            {"ph": "X", "name": "layer 0 experts [1]", "cat": "prefetch", "pid": 1, "tid": tracks["lane 3"],
             "ts": 11000.0, "dur": 1000.0, "args": {"bytes": 512, "experts": [1]}}
        ]  # fmt: skip
        json.dumps(events)


@pytest.fixture
def les_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Make a script stand in for les-run; it gets `job`, `write(record)` and the usual modules."""

    def make(body: str) -> None:
        script = tmp_path / "les-run"
        script.write_text(
            f"#!{sys.executable}\n"
            + textwrap.dedent(
                """
                import json, os, signal, sys, time
                job = json.load(open(sys.argv[1]))
                out = open(job["telemetry_path"], "w") if job["telemetry_path"] else sys.stdout
                def write(record):
                    out.write(json.dumps(record) + "\\n"); out.flush()
                """
            )
            + f"records = json.loads({json.dumps(flash_run())!r})\n"
            + textwrap.dedent(body)
        )
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        module = SimpleNamespace(runner=lambda: script, lib_dir=lambda: tmp_path)
        monkeypatch.setitem(sys.modules, "workbench.native_paths", module)

    return make


class TestRunner:
    def test_records_and_kept_file(self, les_run, tmp_path: Path) -> None:
        les_run("for r in records: write(r)")
        kept = tmp_path / "kept.jsonl"
        assert run_native({"telemetry_path": str(kept)}).status == "ok"
        assert read_jsonl(kept).status == "ok"

    def test_streaming_calls_back_and_keeps_the_file(self, les_run, tmp_path: Path) -> None:
        les_run("for r in records: write(r)")
        seen: list[str] = []
        kept = tmp_path / "kept.jsonl"
        run_native({"telemetry_path": str(kept)}, on_record=lambda record: seen.append(record["t"]))
        assert seen == ["hdr", "tok", "tok", "tok", "end"]
        assert read_jsonl(kept).status == "ok"

    @pytest.mark.parametrize(
        ("tag", "kind"),
        [("toggle", ToggleError), ("file", ModelFileError), ("arch", UnsupportedArchitectureError), ("run", RunError)],
    )
    def test_refusals_keep_their_kind(self, les_run, tag: str, kind: type[Exception]) -> None:
        les_run(f"print('noise', file=sys.stderr); print('error[{tag}]: because', file=sys.stderr); sys.exit(2)")
        with pytest.raises(kind, match=r"^because$"):
            run_native({})

    def test_error_during_the_run_keeps_telemetry(self, les_run) -> None:
        les_run(
            """
            for r in records[:3]: write(r)
            write(records[-1] | {"rc": 1, "reason": "error", "error": "EIO"})
            sys.exit(1)
            """
        )
        with pytest.raises(NativeRunError, match="EIO") as caught:
            run_native({})
        assert caught.value.recording is not None
        assert len(caught.value.recording.tokens) == 2

    def test_killed_for_memory(self, les_run) -> None:
        les_run("write(records[0]); write(records[1]); os.kill(os.getpid(), signal.SIGKILL)")
        with pytest.raises(NativeRunError, match=r"SIGKILL.*memory") as caught:
            run_native({})
        assert caught.value.recording is not None
        assert caught.value.recording.status == "crashed"

    def test_segfault_is_named(self, les_run) -> None:
        les_run("os.kill(os.getpid(), signal.SIGSEGV)")
        with pytest.raises(NativeRunError, match="SIGSEGV"):
            run_native({})

    def test_success_without_an_end_record_is_a_failure(self, les_run) -> None:
        les_run("write(records[0])")
        with pytest.raises(NativeRunError, match="exited with code 0"):
            run_native({})

    @pytest.mark.parametrize("streamed", [False, True])
    def test_timeout(self, les_run, streamed: bool) -> None:
        les_run("for r in records[:2]: write(r)\ntime.sleep(60)")
        with pytest.raises(NativeRunError, match=r"longer than 0\.5 s") as caught:
            run_native({}, timeout=0.5, on_record=(lambda record: None) if streamed else None)
        assert caught.value.recording is not None
        assert len(caught.value.recording.tokens) == 1

    @pytest.mark.parametrize("streamed", [False, True])
    def test_interrupt_ends_the_child_and_keeps_telemetry(self, les_run, tmp_path: Path, streamed: bool) -> None:
        les_run(
            f"""
            def stop(*_):
                write(records[-1] | {{"reason": "interrupted"}}); sys.exit(0)
            signal.signal(signal.SIGINT, stop)
            for r in records[:2]: write(r)
            open({str(tmp_path / "ready")!r}, "w").close()
            time.sleep(60)
            """
        )

        def interrupt() -> None:
            while not (tmp_path / "ready").exists():
                threading.Event().wait(0.02)
            signal.pthread_kill(main, signal.SIGINT)

        main = threading.get_ident()
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(InterruptedRun) as caught:
            run_native({}, on_record=(lambda record: None) if streamed else None)
        thread.join()
        run = caught.value.recording
        assert run is not None
        assert len(run.tokens) == 1
        assert streamed or run.status == "interrupted"

    def test_waiting_policy(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
            monkeypatch.delenv(name, raising=False)
        assert environment()["GOMP_SPINCOUNT"] == "10000"
        monkeypatch.setenv("GOMP_SPINCOUNT", "7")
        assert environment()["GOMP_SPINCOUNT"] == "7"
        monkeypatch.delenv("GOMP_SPINCOUNT")
        monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
        assert "GOMP_SPINCOUNT" not in environment()


class TestHash:
    @pytest.fixture(autouse=True)
    def cache(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.setattr(sys, "platform", "linux")

    def test_remembered_until_the_file_changes(self, tmp_path: Path) -> None:
        path = tmp_path / "m.gguf"
        path.write_bytes(b"abc")
        known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        assert model_sha256(path) == known == model_sha256(path)
        (memory,) = (tmp_path / "cache" / "les-workbench" / "sha256").iterdir()
        memory.write_text("f" * 64)
        assert model_sha256(path) == "f" * 64
        memory.write_text("cut")
        assert model_sha256(path) == known
        path.write_bytes(b"abcd")
        assert model_sha256(path) != known

    def test_all_shards_count(self, tmp_path: Path) -> None:
        first, second = (tmp_path / f"m-0000{i}-of-00002.gguf" for i in (1, 2))
        first.write_bytes(b"1")
        second.write_bytes(b"2")
        before = model_sha256(first)
        assert before == model_sha256(second)
        second.write_bytes(b"22")
        assert model_sha256(first) != before

    def test_missing(self, tmp_path: Path) -> None:
        with pytest.raises(ModelFileError, match=r"gone\.gguf"):
            model_sha256(tmp_path / "gone.gguf")


def test_token_records_keep_missing_values_missing() -> None:
    run = recording([header(), token(0, "decode", 0, 1), end()])
    assert run.tokens["bytes"].isna().all()
