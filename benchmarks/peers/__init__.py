"""Other engines, measured as ours is: what `benchmarks/peers.py` runs.

`adapters` know how a peer is installed and started, and run in our environment. `workers` run in
the peer's own, which has nothing of ours: they import only `protocol` and `vllm_settings`, which
need the standard library alone. Both stand in folders of their own, since their files have the
names of the packages they are about, and a script's own folder comes before all packages.
"""
