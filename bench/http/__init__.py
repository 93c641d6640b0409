"""Benchmark of the middleware, compared with the bare route and with peers under the same server and load."""
