"""Benchmark of ingest: normalizing, inserting compared with raw SQL, repeated runs, archives and growing tables."""
