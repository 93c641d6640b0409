"""Benchmark of turns: a turn with an empty brain, a tool call, and a stream with many clients."""
