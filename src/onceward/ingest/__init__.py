"""Messages from outside, made into entries: normalized, keyed, and inserted once by policy."""
