"""The paper's figures, drawn from recorded runs only: `workbench figures`. One module per figure.

Each module has `data(runs) → FigureData`, which raises `NotMeasured` where the runs lack something, and
`draw(FigureData) → Figure`, which sees nothing else.
"""

FIGURES = {
    "overview": "speed and score, beside the article's",
    "timeline": "one token as it was scheduled: compute, waits, reads",
    "storage": "where an expert's bytes lie, and the reads that fetched them",
    "quantization": "size against score",
    "ablation": "the ladder: speed, memory, verdict",
    "frontier": "score and speed against memory, with the real-time line",
    "cache_window": "cached experts against speed, memory and hit rate",
    "recall": "predicted experts by layer, top-k and top-2k",
    "roofline": "every rung under the limits of flash and compute",
    "power": "power, temperature and memory over a sustained run",
    "drafting": "where drafting pays: τ and the union of experts",
    "throughput": "scoring speed against batch size",
}
"""Figure → what it shows; the article's figures 1–6 first."""
