"""The ladder as tables for people, followed by what each rung changed and where its time goes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from workbench.ablation.drafting import AGAINST
from workbench.ablation.precision import quality_line
from workbench.ablation.results import FAILED
from workbench.lossless import BIT_EXACT, DIFFERS, MEASURED, NEAR_TIE, SAME_TOKENS

WIDTH = 110
NOT_MEASURED = "–"


def _number(scale: float = 1.0, digits: int = 3) -> Callable[[Any], str]:
    def text(value: Any) -> str:
        if value is None:
            return NOT_MEASURED
        value = value * scale
        return f"{value:.0f}" if abs(value) >= 10**digits else f"{value:.{digits}g}"

    return text


def _percent(value: Any) -> str:
    return NOT_MEASURED if value is None else f"{100 * value:.0f} %"


Column = tuple[str, str, Callable[[Any], str]]
ESSENTIAL: tuple[Column, ...] = (
    ("MB/\ntoken", "bytes_per_token", _number(1e-6)),
    ("stall\nms", "stall_ms_per_token", _number()),
    ("hit\nrate", "hit_rate", _percent),
    ("recall", "recall", _percent),
    ("peak\nMB", "peak_bytes", _number(1e-6)),
)
FURTHER: tuple[Column, ...] = (
    ("prefill\ntok/s", "prefill_tok_s", _number()),
    ("TTFT\nms", "ttft_ms", _number()),
    ("compute\nms", "compute_ms_per_token", _number()),
    ("reads/\ntoken", "reads_per_token", _number()),
    ("flash\nidle", "flash_idle_share", _percent),
    ("wasted\nMB/token", "prefetch_wasted_bytes_per_token", _number(1e-6)),
)


def ladder_table(document: Mapping[str, Any]) -> Table:
    """Speed, speed-up, bytes, stall, hit rate, recall, memory and verdict per rung, and the places of later rungs."""
    table = _table(document, ("tok/s", "speed-\nup", *(name for name, _, _ in ESSENTIAL)), title=_title(document))
    table.add_column("lossless", min_width=11)
    table.caption = _caption(document)
    for row in document["rows"]:
        name, blanks = _rung(row), [""] * (len(ESSENTIAL) + 2)
        if row["status"] == FAILED:
            table.add_row(name, *blanks, "[bold red]failed[/], see below")
            continue
        rate = _with_interval(row, "decode_tok_s", _number())
        speedup = _with_interval(row, "speedup", lambda v: NOT_MEASURED if v is None else f"{v:.2f} ×")
        values = [text(row[key]) for _, key, text in ESSENTIAL]
        table.add_row(name, rate, speedup, *values, _lossless(row["lossless"]))
    for place in document["pending"]:
        reason = place["reason"].partition(":")[0]
        table.add_row(escape(place["rung"]), *[""] * (len(ESSENTIAL) + 2), escape(reason), style="dim")
    return table


def details_table(document: Mapping[str, Any]) -> Table:
    """Prefill, first token, compute, reads, waste, and the counts behind the lossless verdict."""
    names = (*(name for name, _, _ in FURTHER), "logits\ncompared", "differ", "max\n|Δ|")
    table = _table(document, names, title="Further figures (per decoded token, unless named otherwise)")
    for row in document["rows"]:
        verdict = row["lossless"]
        counts = [f"{verdict['compared']:,}", f"{verdict['differing']:,}", _number(digits=2)(verdict["max_abs_diff"])]
        checked = counts if verdict["compared"] else [NOT_MEASURED] * 3
        table.add_row(escape(row["rung"]), *(text(row[key]) for _, key, text in FURTHER), *checked)
    return table


def _table(document: Mapping[str, Any], names: Sequence[str], *, title: str) -> Table:
    table = Table(title=title, title_justify="left", caption_justify="left", box=SIMPLE_HEAD, padding=0, pad_edge=False)
    table.add_column("rung", min_width=15)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _rung(row: Mapping[str, Any]) -> str:
    labels = ", ".join(escape(label) for label in row["labels"] if label != "synthetic")
    return escape(row["rung"]) + (f"\n[italic]{labels}[/]" if labels else "")


def _with_interval(row: Mapping[str, Any], key: str, text: Callable[[Any], str]) -> str:
    if row[f"{key}_low"] is None or row[key] is None or row[f"{key}_low"] == row[f"{key}_high"]:
        return text(row[key])
    low, high = (text(row[f"{key}_{end}"]).removesuffix(" ×") for end in ("low", "high"))
    return f"{text(row[key])}\n[dim]{low}–{high}[/]"


def _lossless(verdict: Mapping[str, Any]) -> str:
    if verdict["verdict"] == BIT_EXACT:
        return "[green]bit-exact[/]" + ("\nto plain decoding" if verdict["against"] == AGAINST else "")
    if verdict["verdict"] == DIFFERS:
        return "[bold red]differs[/]"
    if verdict["verdict"] == SAME_TOKENS:
        return f"[green]same tokens[/]\n{verdict['compared']} of {verdict['compared']}"
    if verdict["verdict"] == NEAR_TIE:
        return f"[yellow]near-tie[/]\nat token {verdict['first_differing_position']}"
    if verdict["verdict"] == MEASURED:
        quality = verdict["quality"]
        return (
            f"[cyan]measured[/]\nKL {quality['kl']['mean']['value']:.2g}\n"
            f"top-1 {100 * quality['top1_agreement']['value']:.0f} %"
        )
    return f"[yellow]not checked[/]: {escape(verdict['reason'] or '')}"


def _title(document: Mapping[str, Any]) -> str:
    model = document["model"]
    synthetic = " (synthetic weights)" if model["synthetic"] else ""
    return f"{escape(model['name'])}{synthetic}: {model['n_expert']} experts, top-{model['n_expert_used']}"


def _caption(document: Mapping[str, Any]) -> str:
    prompts = "1 prompt" if document["prompts"] == 1 else f"{document['prompts']} prompts"
    lines = [
        f"Medians of {document['repeats']} interleaved repeats, {document['tokens']} tokens, {prompts}; below: 95 % "
        f"bootstrap interval. Speed-up over {document['baseline']!r}. {NOT_MEASURED} = not measured.",
        f"Lossless: logits of every position against {document['reference']!r}, fed the same tokens.",
    ]
    if any("emulated" in row["labels"] for row in document["rows"]):
        flash = next(row["flash"] for row in document["rows"] if "emulated" in row["labels"])
        lines.append(
            f"Emulated flash: {flash['bandwidth_bytes_s'] / 1e9:.3g} GB/s, {flash['latency_ns'] / 1e3:.3g} µs per "
            f"request{' (derived from the article)' if document['profile'] else ''}; not a phone's own flash."
        )
    if any("contended" in row["labels"] for row in document["rows"]):
        lines.append("Contended: something else wanted the cores during the run; do not trust its speed.")
    return "\n".join(lines)


def print_ladder(document: Mapping[str, Any], console: Console | None = None) -> None:
    """Print the tables, one line per rung on what changed, and the diagnosis of each."""
    if console is None:
        console = Console()
        if not console.is_terminal:
            console = Console(width=WIDTH)
    console.print(ladder_table(document))
    console.print()
    console.print(details_table(document))
    console.print("\nWhat each rung changed")
    for row in document["rows"]:
        console.print(f"  [bold]{escape(row['rung'])}[/]: {escape(row['changed'])}", highlight=False)
        if row["status"] == FAILED:
            console.print(f"    [bold red]failed:[/] {escape(row['error'])}", highlight=False)
    measured = [row for row in document["rows"] if row["lossless"]["verdict"] == MEASURED]
    if measured:
        console.print("\nWhat quantization lost, on held-out text (float32, against the model as given)")
    for row in measured:
        console.print(
            f"  [bold]{escape(row['rung'])}[/]: {escape(quality_line(row['lossless']['quality']))}", highlight=False
        )
        report = document.get("quantized", {}).get(f"{row['model']}, {row['recipe']}", {})
        for line in report.get("lines", ()):
            console.print(f"    {escape(line)}", highlight=False)
    console.print("\nWhere the time goes, and what can still pay")
    for row in document["rows"]:
        if row["regime"]:
            console.print(f"  [bold]{escape(row['rung'])}[/]: {escape(row['regime']['text'])}", highlight=False)
