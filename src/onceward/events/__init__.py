"""The event log, and the feed that lets clients follow it without missing or repeating anything."""
