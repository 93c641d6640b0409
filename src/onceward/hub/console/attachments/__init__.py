"""Attachments of tasks in the console: the page of one attachment, its preview, and the forms that create one.

Not here: the page of a task, which lists them (`hub/console/pages/tasks.py`), and how they are stored (`hub/tasks/`).
Start with `page.py`; `keyed_form.py` also serves the form that creates a task.
"""

__all__ = ["keyed_form", "page", "preview"]
