"""The API reference at `/docs`: a page rendered from the OpenAPI document, with a form that sends each request.

Not here: the document itself (`hub/openapi.py`) and its examples (`hub/openapi_examples.py`). Its text is untrusted, also
when it comes from an application's own description. Start with `page.py`; `static/reference.js` is the script that the page starts.
"""

__all__ = ["page"]
