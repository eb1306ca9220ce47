"""Benchmarks behind `workbench bench NAME`: medians and ratios of interleaved runs, never a timed test."""

BENCHES = {
    "engine_tax": "flash mode with every expert cached against stock resident, matched kernels",
    "memory_cap": "streaming against stock mmap, both under a quarter of the model's size",
    "overlap": "lookahead and ready-first against serial on demand, native flash",
    "bandwidth": "read bandwidth during decode against the idle I/O benchmark",
    "telemetry_cost": "token telemetry against none",
}
