"""Benchmarks behind `workbench bench NAME`: medians and ratios of interleaved runs, never a timed test."""

BENCHES = {
    "engine_tax": "flash mode with every expert cached against stock resident, matched kernels",
    "memory_cap": "streaming against stock mmap, both under a quarter of the model's size",
    "overlap": "lookahead and ready-first against serial on demand, native flash",
    "bandwidth": "read bandwidth during decode against the idle I/O benchmark",
    "draft_width": "draft lengths, fixed and adaptive, on easy and hard text, emulated and native flash",
    "telemetry_cost": "token telemetry against none",
    "eval_throughput": "log-likelihood tokens/s beside lm-eval's hf backend, and against batch size in flash",
}
