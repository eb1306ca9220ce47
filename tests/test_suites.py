"""Suites: every shipped file parses; every mistake is an error that names the key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from workbench.ablation.rungs import DEFAULT_LADDER, ModelFacts, Rung, resolve
from workbench.ablation.suites import PHONE, Suite, SuiteError, load_suite, suite_from_dict
from workbench.cli.demo import DEMO

SHIPPED = sorted((Path(__file__).parents[1] / "device_runs" / "suites").glob("*.yaml"))
FACTS = ModelFacts(n_expert=24, n_expert_used=4)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_shipped_suite(path: Path) -> None:
    suite = load_suite(path)
    steps = resolve(suite.rungs, base=suite.base, flash={}, facts=FACTS)
    assert [step.error for step in steps] == [None] * len(steps)


def test_the_demo_suite_file_is_the_demo() -> None:
    assert load_suite(next(p for p in SHIPPED if p.name == "demo-ladder.yaml")) == DEMO


def test_round_trip(tmp_path: Path) -> None:
    suite = Suite(prompts=("Once",), flash={"emulate_bandwidth_bytes_s": 10**9}, base={"threads": 2})
    for path, text in ((tmp_path / "s.json", json.dumps(suite.to_dict())),
                       (tmp_path / "s.yaml", yaml.safe_dump(suite.to_dict()))):  # fmt: skip
        path.write_text(text)
        assert load_suite(path) == suite


RUNG = {"name": "resident (stock)", "set": {"experts": "resident"}}
BASELINE = {"name": "baseline", "start": "base"}


def ladder(*rungs: Any) -> dict[str, Any]:
    return {"rungs": [RUNG, BASELINE, *rungs]}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], "suite: expected a mapping"),
        ({"tokns": 3}, "unknown key 'tokns'; known: .*tokens"),
        ({"tokens": "many"}, "tokens: expected int, got 'many'"),
        ({"tokens": 1}, "tokens: must be at least 2"),
        ({"repeats": True}, "repeats: expected int"),
        ({"repeats": 0}, "repeats: must be at least 1"),
        ({"prompts": []}, "prompts: at least one"),
        ({"prompts": [" "]}, r"prompts\[0\]: expected text"),
        ({"prompts": "one"}, "prompts: expected list"),
        ({"order": "random"}, "order: expected 'abba' or 'abab'"),
        ({"cooldown_s": -1}, "cooldown_s: must be at least 0"),
        ({"power": {"sustained": 180}}, "power: unknown key 'sustained'; known: idle_s, sustained_s"),
        ({"power": {"idle_s": 1.5}}, "power.idle_s: expected a number"),
        ({"expect": {"decode_tok_s": "fast"}}, "expect.decode_tok_s: expected a number"),
        ({"files": {"packed": 3}}, "files.packed: expected a file name"),
        ({"flash": "tablet"}, "flash: expected"),
        ({"flash": {"emulate_bandwith_bytes_s": 1}}, "flash: unknown key 'emulate_bandwith_bytes_s'"),
        ({"flash": {"emulate_latency_ns": 5}}, "base: emulate_latency_ns needs"),
        ({"base": {"lanes": 0}}, "base: lanes=0"),
        ({"rungs": {}}, "rungs: expected list"),
        ({"rungs": []}, "rungs: none can run"),
        ({"rungs": [RUNG]}, "baseline: 'baseline' is not a rung"),
        (ladder("x"), r"rungs\[2\]: expected a mapping"),
        (ladder({}), r"rungs\[2\].name: every rung needs a name"),
        (ladder({"name": 3}), r"rungs\[2\].name: expected text"),
        (ladder({"name": "base"}), "'base' is reserved"),
        (ladder({"name": "baseline"}), "the name is used twice"),
        (ladder({"name": "a", "sett": {}}), "unknown key 'sett'"),
        (ladder({"name": "a", "set": "lanes"}), r"rungs\[2\].set: expected a mapping of toggles"),
        (ladder({"name": "a", "set": {"lookahed": "router"}}), r"rungs\[2\] 'a': unknown toggle lookahed"),
        (ladder({"name": "a", "set": {"lanes": "4"}}), r"rungs\[2\] 'a': lanes='4': must be of type int"),
        (ladder({"name": "a", "set": {"ready_first": 1}}), r"rungs\[2\] 'a': ready_first=1: must be of type bool"),
        (ladder({"name": "a", "set": {"lookahead_width": 2.0}}), r"rungs\[2\] 'a': lookahead_width needs"),
        (ladder({"name": "a", "start": "later"}, {"name": "later"}), r"rungs\[2\] 'a': start='later': not an earlier"),
        (ladder({"name": "a", "recipe": 4}), r"rungs\[2\].recipe: expected text"),
        ({"held_out": 3}, "held_out: expected str"),
        (ladder({"name": "a", "model": "zipped"}), "model='zipped': choose native or packed"),
        (ladder({"name": "a", "set": {"experts": "resident", "lookahead": "router"}}), "contradicts experts="),
        ({"reference": "a", **ladder({"name": "a", "pending": "later"})}, "reference: 'a' is not a rung that runs"),
    ],
)  # fmt: skip
def test_mistakes_are_named(values: Any, message: str) -> None:
    with pytest.raises(SuiteError, match=message):
        suite_from_dict(values)


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match="No such file"):
        load_suite(tmp_path / "none.yaml")
    (tmp_path / "bad.yaml").write_text("rungs: [")
    with pytest.raises(SuiteError, match=r"bad\.yaml"):
        load_suite(tmp_path / "bad.yaml")
    (tmp_path / "bad.json").write_text('{"tokens": 0}')
    with pytest.raises(SuiteError, match=r"bad\.json: tokens"):
        load_suite(tmp_path / "bad.json")


class TestDefaultLadder:
    def steps(self, **flash: int):
        return resolve(DEFAULT_LADDER, base={}, flash=flash, facts=FACTS)

    def test_places_of_later_rungs_are_kept_but_not_run(self) -> None:
        pending = [rung.name for rung in DEFAULT_LADDER if rung.pending]
        assert len(self.steps()) == len(DEFAULT_LADDER) - len(pending)
        assert not {step.rung.name for step in self.steps()} & set(pending)

    def test_what_each_rung_changes(self) -> None:
        lines = {step.rung.name: step.change_line for step in self.steps(emulate_bandwidth_bytes_s=10**9)}
        lines.pop("+ DSpark", None)
        assert lines == {
            "resident (stock)": "experts flash → resident",
            "baseline": "lanes 4 → 1",
            "+ lookahead": "lookahead off → router, lanes 1 → 4",
            "+ ready-first and cache": "ready_first off → on, cache_slots 0 → 8",
            "+ contiguous layout": "model native → packed",
            "+ mixed precision": "recipe as given → les-mixed",
        }

    def test_a_recipe_stays_until_another(self) -> None:
        rungs = (*DEFAULT_LADDER[:6], Rung(name="same"), Rung(name="other", recipe="q4_k_m", model="native"))
        steps = {step.rung.name: step for step in resolve(rungs, base={}, flash={}, facts=FACTS)}
        assert steps["+ contiguous layout"].variant == "packed"
        assert steps["same"].variant == "packed, les-mixed"
        assert steps["other"].variant == "native, q4_k_m"

    def test_baseline_is_serial_with_everything_off(self) -> None:
        config = self.steps()[1].config
        assert config is not None
        assert (config.experts, config.lookahead, config.ready_first, config.cache_slots, config.lanes) == (
            "flash", "off", False, 0, 1)  # fmt: skip

    def test_emulated_flash_reaches_only_rungs_that_read(self) -> None:
        kinds = [step.config.flash_kind for step in self.steps(emulate_bandwidth_bytes_s=10**9) if step.config]
        assert kinds == ["native"] + ["emulated"] * (len(kinds) - 1)

    @pytest.mark.parametrize(("n", "k", "slots"), [(24, 4, 8), (128, 8, 43), (8, 4, 4), (2, 2, 2)])
    def test_automatic_cache(self, n: int, k: int, slots: int) -> None:
        assert ModelFacts(n_expert=n, n_expert_used=k).cache_slots == slots

    def test_an_impossible_rung_is_a_step_with_its_error(self) -> None:
        rungs = (Rung(name="a", changes={"experts": "resident"}), Rung(name="b", changes={"cache_slots": 2}))
        good, bad = resolve(rungs, base={}, flash={}, facts=FACTS)
        assert good.error is None
        assert bad.config is None
        assert "contradicts" in (bad.error or "")


def test_phone_flash_is_a_word(tmp_path: Path) -> None:
    assert suite_from_dict({"flash": "phone"}).flash == PHONE
