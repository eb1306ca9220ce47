"""`workbench device`: run a suite on a phone, a board or another machine, and keep the recording."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

TARGET_HELP = "local, ssh:HOST, adb[:SERIAL], hdc[:KEY], ios[:UDID] or devicectl[:ID]."


def _target_options(function: Any) -> Any:
    for option in (
        click.option("--bundle", default="", help="Bundle identifier of the iOS app (ios, devicectl)."),
        click.option("--ssh-config", type=click.Path(path_type=Path, exists=True), help="OpenSSH configuration."),
        click.option("--target", "spec", default="local", show_default=True, help=TARGET_HELP),
    ):
        function = option(function)
    return function


@click.group("device")
def command() -> None:
    """Run suites on phones, boards and other machines; list and check the ways to reach them."""


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of the table.")
def list_command(as_json: bool) -> None:
    """List the targets: their tool here, the devices it sees, and how far each target has been verified."""
    from workbench.devices.targets import TARGETS

    found: list[dict[str, Any]] = []
    for kind in TARGETS.values():
        target = kind()
        version = target.version()
        found.append(
            {
                "target": kind.name,
                "about": kind.about,
                "tool": kind.tool,
                "version": version,
                "devices": target.attached() if version else [],
                "transfers": kind.transfers,
                "verified": kind.verified.to_dict(),
            }
        )
    if as_json:
        click.echo(json.dumps(found))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(show_lines=True)
    for column in ("target", "tool here", "devices", "verified", "what that leaves open"):
        table.add_column(column)
    for entry in found:
        verified = entry["verified"]
        table.add_row(
            f"[bold]{entry['target']}[/]\n{entry['about']}",
            entry["version"] or f"{entry['tool']}: not installed",
            "\n".join(entry["devices"]) or "–",
            f"{verified['level']}, {verified['date']}\n{verified['tool']}",
            verified["limits"],
        )
    console = Console()
    (console if console.is_terminal else Console(width=130)).print(table)


@command.command("doctor")
@_target_options
@click.option("--out", type=click.Path(path_type=Path), help="Also write the transcript here, to send it in.")
def doctor_command(spec: str, ssh_config: Path | None, bundle: str, out: Path | None) -> None:
    """Ask a device what it is, and record what its tool says, without serial numbers, names and addresses.

    Prints ONE JSON document. Exit code 1 when the device does not answer. Read the transcript before you send it.
    """
    from workbench.ablation.store import write_atomic
    from workbench.devices.targets import target_of
    from workbench.devices.transcript import record

    transcript = record(target_of(spec, ssh_config=ssh_config, bundle=bundle))
    text = json.dumps(transcript, indent=1)
    if out:
        write_atomic(out, text + "\n")
    click.echo(text)
    if "error" in transcript["probe"]:
        sys.exit(1)


@command.command("run")
@click.argument("suite_path", metavar="SUITE", type=click.Path(path_type=Path))
@_target_options
@click.option("--model", help="The model's GGUF (or owner/repo:file.gguf); default: the suite's.")
@click.option("--file", "files", multiple=True, metavar="VARIANT=GGUF", help="A form of the model that you have.")
@click.option("--draft", type=click.Path(path_type=Path, exists=True), help="The DSpark drafter trained for the model.")
@click.option("--runner", type=click.Path(path_type=Path, exists=True), help="les-run for the device (ssh, adb, hdc).")
@click.option("--repeats", type=click.IntRange(1), help="Timed repeats per rung.")
@click.option("--tokens", type=click.IntRange(2), help="Tokens generated per prompt.")
@click.option("--work", type=click.Path(path_type=Path), help="Folder of finished runs; default: runs/TARGET-SUITE.")
@click.option(
    "--out", type=click.Path(path_type=Path), default="device_runs/recorded", show_default=True,
    help="Where the recording goes, as DATE-DEVICE-SUITE.",
)  # fmt: skip
@click.option("--native", is_flag=True, help="The device's own flash, whatever the suite emulates.")
@click.option("--timeout", "timeout_s", type=float, help="Limit of a single run, s; a run beyond it fails its rung.")
@click.option("--fresh", is_flag=True, help="Measure again instead of going on where the work folder stopped.")
@click.option("--dry-run", is_flag=True, help="Print every command and an estimate; touch nothing.")
def run_command(
    suite_path: Path,
    spec: str,
    ssh_config: Path | None,
    bundle: str,
    model: str | None,
    files: tuple[str, ...],
    draft: Path | None,
    runner: Path | None,
    repeats: int | None,
    tokens: int | None,
    work: Path | None,
    out: Path,
    native: bool,
    timeout_s: float | None,
    fresh: bool,
    dry_run: bool,
) -> None:
    """Run the ladder of SUITE (YAML or JSON) on a device and record it.

    Files are pushed once, under their hash. Every run's logits are compared with the reference's, fetched from the
    device. A cable pulled, a locked screen, an app killed for memory or a hot device is a row with that reason; the
    same command goes on where it stopped. Prints the table, then ONE JSON document. Exit code: 0; 1 when a rung failed
    or differs.
    """
    from workbench.ablation.drafting import EMBEDDED
    from workbench.ablation.suites import load_suite
    from workbench.demo import demo_model
    from workbench.devices.targets import target_of
    from workbench.errors import ModelFileError
    from workbench.models import resolve_model

    suite = load_suite(suite_path)
    pairs = [file.partition("=") for file in files]
    for variant, _, file in pairs:
        if not file:
            raise click.UsageError(f"--file {variant}: write it as VARIANT=GGUF, such as packed=model.packed.gguf")
    changes: dict[str, Any] = {"repeats": repeats, "tokens": tokens, "drafter": str(draft) if draft else None}
    suite = replace(suite, **{key: value for key, value in changes.items() if value is not None})
    suite = replace(suite, files={**suite.files, **{variant: file for variant, _, file in pairs}})
    if native:
        suite = replace(suite, flash={}, name=f"{suite.name}-native")
    target = target_of(spec, runner=runner, ssh_config=ssh_config, bundle=bundle)
    name = model or suite.model
    if not name:
        raise ModelFileError(f"{suite_path}: it names no model; give one with --model GGUF")
    if dry_run:
        _print_plan(suite, target, demo_model() if name == EMBEDDED else Path(name) if Path(name).is_file() else None)
        return
    path = demo_model() if name == EMBEDDED else resolve_model(name)
    if target.runner_path is None and target.name in ("ssh", "adb", "hdc"):
        target.runner_path = _built_runner(target)
    _perform(
        path, suite, target, work or Path("runs") / f"{spec.replace(':', '-')}-{suite.name}", out, timeout_s, fresh
    )


def _built_runner(target: Any) -> Path | None:
    """The runner that was built for the device's platform, if it is there."""
    facts = target.probe()
    arch = {"aarch64": "aarch64", "arm64": "aarch64", "x86_64": "x86_64"}.get(facts.machine, facts.machine)
    names = {"adb": "android-arm64", "hdc": "linux-aarch64"}
    name = names.get(target.name) or ("macos-arm64" if facts.os.startswith("Darwin") else f"linux-{arch}")
    path = Path("build/devices") / name / "les-run"
    return path if path.is_file() else None


def _print_plan(suite: Any, target: Any, model: Path | None) -> None:
    from workbench.devices.plan import plan

    made = plan(suite, target, model)
    label = None
    for what, argv in made.commands:
        if what != label:
            click.echo(f"# {what}")
            label = what
        click.echo(shlex.join(argv))
    size = "not known" if made.push_bytes is None else f"{made.push_bytes / 1e9:.2f} GB"
    hours = "not known" if made.time_s is None else f"{made.time_s / 60:.0f} min"
    click.echo(f"\nDry run: nothing was touched. To push: {size} (estimate). Time: {hours} (estimate).")
    for note in made.notes:
        click.echo(f"  {note}")
    click.echo(json.dumps(made.to_dict()))


def _perform(path: Path, suite: Any, target: Any, work: Path, out: Path, timeout_s: float | None, fresh: bool) -> None:
    from workbench.ablation.results import sound, to_json
    from workbench.ablation.table import print_ladder
    from workbench.cli.ablate import INTERRUPTED, progress_bar
    from workbench.devices.record import run_suite

    try:
        with progress_bar() as progress:
            made = run_suite(
                path, suite, target, work=work, recorded=out, fresh=fresh, timeout_s=timeout_s,
                say=lambda text: click.echo(text, err=True), progress=progress,
            )  # fmt: skip
    except KeyboardInterrupt:
        click.echo(f"\ninterrupted: finished runs are in {work}; the same command goes on from there", err=True)
        sys.exit(INTERRUPTED)
    print_ladder(made.document)
    verified = target.verified
    click.echo(f"\nTarget {target.name}: verified by {verified.level} ({verified.date}, {verified.tool})")
    _print_power(made.document["power"])
    if made.reused:
        click.echo(f"Resumed: {made.reused} runs were in {work} already, {made.ran} were made (--fresh: all).")
    click.echo(f"Recorded in {made.folder}")
    click.echo(to_json(made.document))
    if not sound(made.document["rows"]):
        sys.exit(1)


def _print_power(reports: list[dict[str, Any]]) -> None:
    def text(value: Any) -> str:
        return "not measured" if value is None else f"{value:.3g}"

    for report in reports:
        click.echo(
            f"  {report['rung']}: {report['duration_s']:.0f} s sustained: {text(report['watts'])} W, "
            f"{text(report['watts_above_idle'])} W above idle, {text(report['celsius_rise'])} °C rise, "
            f"{text(report['tokens_per_joule'])} tokens/J"
        )


@command.command("meter")
@click.argument("recording", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("csv", type=click.Path(path_type=Path, exists=True))
def meter_command(recording: Path, csv: Path) -> None:
    """Add an external power meter's CSV (columns time, power_w) to a RECORDING and report its power again."""
    from workbench.devices.record import add_meter

    reports = add_meter(recording, csv)
    _print_power(reports)
    click.echo(json.dumps(reports))


@command.command("pull")
@click.argument("names", nargs=-1)
@_target_options
@click.option("--out", type=click.Path(path_type=Path), default="runs/pulled", show_default=True, help="Where to.")
def pull_command(names: tuple[str, ...], spec: str, ssh_config: Path | None, bundle: str, out: Path) -> None:
    """Fetch recordings (JSON Lines) that lie on the device: all that a shell finds, or those in NAMES.

    An iOS app keeps recording when the cable is gone; its files are named after the job: NAME.jsonl.
    """
    from workbench.devices.targets import target_of

    target = target_of(spec, ssh_config=ssh_config, bundle=bundle)
    try:
        remotes = [target.output(name) for name in names] or target.left_behind()
        out.mkdir(parents=True, exist_ok=True)
        for remote in remotes:
            local = out / Path(remote).name
            target.pull(remote, local)
            click.echo(str(local))
    finally:
        target.close()
    if not remotes:
        click.echo("no recordings are there; for an iOS app give their names", err=True)


@command.command("build")
@click.argument("platform", required=False)
def build_command(platform: str | None) -> None:
    """Build the runner for another PLATFORM from a clone; without one, list them and how far each is verified."""
    from workbench.devices.build import PLATFORMS, build

    if platform is None:
        for known in PLATFORMS.values():
            click.echo(f"{known.name}: {known.how}; needs {known.needs}; verified: {known.verified}")
        return
    click.echo(build(platform))
