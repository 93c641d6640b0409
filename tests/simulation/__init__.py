"""A deterministic simulation of the production ledger and `run`.

Several processes share one store. Their event loops, threads, clocks and the network between them and the store are
simulated; the ledger, `run`, the queue, the renewals and the claim machine are the real ones. One seed decides
everything that happens, so a failure is replayed by its seed alone:

    python -m tests.simulation --seeds 20000
    python -m tests.simulation --seed 17 --trace
"""
