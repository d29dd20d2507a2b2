"""The figures of "Efficient Memory Management for Large Language Model Serving with PagedAttention"
(Kwon et al., SOSP 2023), by the engine that serves.

What the paper measured on A100s is replayed here on a virtual clock: its two allocators run behind
the same scheduler, `published.py` has the paper's numbers, and every figure says what is assumed.
"""
