"""What the paper prints (Kwon et al., SOSP 2023). Only ever printed beside what comes out here."""

SYSTEMS = ("Orca (Max)", "Orca (Pow2)", "Orca (Oracle)", "vLLM")

# Table 1: memory for the KV cache in GiB, and its slots in thousands.
SETUPS = {"OPT-13B": (12, 15.7), "OPT-66B": (21, 9.7), "OPT-175B": (264, 60.1)}
WEIGHTS_GB = {"OPT-13B": 26, "OPT-66B": 132, "OPT-175B": 346}

# Section 6.1: mean tokens of prompts and outputs.
MEAN_LENGTHS = {"ShareGPT": (161.31, 337.99), "Alpaca": (19.31, 58.45)}

# Fig. 2: % of the KV memory: token states, reservation, internal, external fragmentation & others.
MEMORY = {
    "Orca (Max)": (20.4, 13.3, 57.3, 8.9),
    "Orca (Pow2)": (26.8, 17.9, 13.6, 41.6),
    "Orca (Oracle)": (38.2, 25.2, 0.0, 36.6),
    "vLLM": (96.3, None, None, None),
}

# Section 6.2, ShareGPT, over the three models: how many times the rate at similar latencies.
RATE_RATIOS = {"Orca (Max)": (2.7, 8.0), "Orca (Oracle)": (1.7, 2.7)}

# Fig. 13: mean requests in a batch, OPT-13B, at these requests a second.
BATCHED_RATES = {"ShareGPT": 2, "Alpaca": 30}
BATCHED = {
    "ShareGPT": (7.00, 9.81, 13.62, 30.42),
    "Alpaca": (7.00, 43.24, 72.75, 132.44),
}

# Section 6.3: over Orca (Oracle), OPT-13B on Alpaca, one sample and beams six wide.
SPEED_UP = {("samples", 1): 1.3, ("beams", 6): 2.3}

# Fig. 15: % of blocks saved by sharing. ShareGPT's are ranges over widths of 2 to 6.
SAVED: dict[tuple[str, str], dict[int, float] | tuple[float, float]] = {
    ("Alpaca", "samples"): {2: 6.09, 4: 8.53, 6: 9.79},
    ("Alpaca", "beams"): {2: 37.56, 4: 53.13, 6: 55.16},
    ("ShareGPT", "samples"): (16.2, 30.5),
    ("ShareGPT", "beams"): (44.3, 66.3),
}

# Section 6.4: throughput over Orca (Oracle), by tokens of the shared prefix.
SHARED_PREFIX = {80: 1.67, 341: 3.58}

# Section 6.5: over each of the three.
CHATBOT = 2.0

# Section 7.1: how much slower the paged attention kernel is, and the sizes that serve best.
KERNEL_OVERHEAD = (0.20, 0.26)
BEST_BLOCK_SIZES = {"ShareGPT": (16, 128), "Alpaca": (16, 32)}

# Section 7.3.
COMPARABLE_BLOCK_SIZES = (16, 64)
