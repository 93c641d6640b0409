"""Backups of a hub on SQLite: consistent copies of both files and of every blob that they name.

Not here: hubs on PostgreSQL, Redis or S3, which have tools of their own.
Start with `backup.py`, which says in what order things are copied; then `restore.py`.
"""

__all__ = ["backup", "manifest", "restore"]
