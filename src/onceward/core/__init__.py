"""The pure part: values in, values out. No clock, no randomness, no I/O, no `async`."""
