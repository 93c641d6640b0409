"""Benchmarks (`make bench`): Onceward compared with hand-written statements and with its peers."""
