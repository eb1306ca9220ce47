"""A stand-in for les-run: the schema and the endings, none of the work. `FAKE_FAULTS` (JSON) maps a substring of the
run id to a fault: refuse, fail, kill, no-stock (kill resident runs), differ, hash or contended."""

from __future__ import annotations

import array
import json
import os
import random
import signal
import sys

from recordings import MS, end, header, token

N_VOCAB = 16
DECODE_MS = {"off": 20, "router": 10}


def main() -> None:
    with open(sys.argv[1]) as file:
        job = json.load(file)
    config, n = job["config"], job["n_predict"]
    faults = json.loads(os.environ.get("FAKE_FAULTS", "{}"))
    fault = next((kind for part, kind in faults.items() if part in job["run_id"]), None)
    if os.environ.get("FAKE_LOG"):
        with open(os.environ["FAKE_LOG"], "a") as log:
            print(job["run_id"], file=log)
    if fault == "refuse":
        print("error[toggle]: cache_slots=99: the model has 8 experts", file=sys.stderr)
        sys.exit(2)
    assert job["force_tokens"] is None or len(job["force_tokens"]) == n
    resident = config["experts"] == "resident"
    if fault == "no-stock":
        fault = "kill" if resident else None
    head = header(**config) | {"run_id": job["run_id"]}
    contiguous = "packed" in job["model"]
    head["model"] |= {"sha256": job["model_sha256"], "layout": "contiguous" if contiguous else "native"}
    records = [head, token(0, "prefill", 0, 8, n_tokens=4, next=5)]
    flash = {}
    if not resident:
        flash = {"stall_ns": 4 * MS, "bytes": 6000, "reads": 2 if contiguous else 6, "flash_busy_ns": 6 * MS}
        flash |= {"lookups": 4, "hits": 2 if config["cache_slots"] else 0}
    if config["lookahead"] == "router":
        flash |= {"recall_hit": 3, "recall_total": 4, "prefetch_wasted_bytes": 100}
    step_ms = 5 if resident else DECODE_MS[config["lookahead"]] / (2 if config["ready_first"] else 1)
    for i in range(n - 1):
        t0 = 10 + i * step_ms
        records.append(token(i, "decode", t0, t0 + step_ms, token=5 + i, next=6 + i, **flash))
    if fault == "hash":
        records[-1]["logits_hash"] = "f" * 16
    draw = random.Random(1)
    logits = array.array("f", [draw.randrange(-64, 64) / 16 for _ in range(n * N_VOCAB)])
    if fault == "differ":
        logits[N_VOCAB + 3] += 0.25
    if job["logits_path"]:
        with open(job["logits_path"], "wb") as file:
            logits.tofile(file)
    with open(job["telemetry_path"], "w") as out:
        for record in records[: 2 if fault in ("kill", "fail") else None]:
            print(json.dumps(record), file=out, flush=True)
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "fail":
            print(json.dumps(end(rc=1, reason="error", error="read error: EIO")), file=out, flush=True)
            sys.exit(1)
        print(json.dumps(end(n_decode=n - 1, contended=fault == "contended")), file=out)


if __name__ == "__main__":
    main()
