"""The request: its key, from headers or another source, and its body, which is hashed while it is read.

Not here: whether the request may run (`http/keyed/`).
Start with `buffered_body.py`.
"""

__all__ = ["buffered_body", "form_digest", "headers", "json_digest", "key_source"]
