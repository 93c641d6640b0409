"""The request: its key headers, and its body, which is hashed while it is read and then passed to the handler.

Not here: whether the request may run (`http/keyed/`).
Start with `buffered_body.py`.
"""

__all__ = ["buffered_body", "form_digest", "headers", "json_digest", "key_source"]
