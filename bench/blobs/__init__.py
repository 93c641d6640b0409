"""Bytes on the disk, beside the same steps by hand, and what their rows add."""
