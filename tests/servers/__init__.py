"""Throw-away servers for the tests, each started on a free loopback port."""
