"""How vLLM runs here, for those who start it and for the worker in its own environment."""

import os


def settings(threads: int) -> dict[str, str]:
    """Of its environment: these threads, on cores of their own, and no more memory than needed."""
    cores = sorted(os.sched_getaffinity(0))[:threads]
    return {
        "VLLM_TARGET_DEVICE": "cpu",
        # By default it leaves cores to others.
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "VLLM_CPU_KVCACHE_SPACE": "4",  # GB
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "HF_HUB_OFFLINE": "1",
    }
