"""Benchmark of the hub: attachments compared with raw SQL, events to many clients, and startup."""
