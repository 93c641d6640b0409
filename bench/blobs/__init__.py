"""Benchmark of blobs: durable puts compared with the same steps by hand, and the cost of their rows."""
