"""Bytes on the disk, beside the same steps by hand."""
