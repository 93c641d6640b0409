"""Tasks, their attachments with labels, and blobs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_ATTACHMENT_CHECKS = {
    "kind": "kind IN ('spec', 'diagram', 'artifact', 'diagnostic', 'archive', 'other')",
    "source_type": "source_type IN ('managed_blob', 'external_url', 'repo_path')",
    "media_type_source": "media_type_source IN ('sniffed', 'declared', 'inferred', 'unknown')",
    "source": """
        (source_type = 'managed_blob' AND blob_id IS NOT NULL AND external_url IS NULL AND repo_path IS NULL) OR
        (source_type = 'external_url' AND blob_id IS NULL AND external_url IS NOT NULL AND repo_path IS NULL) OR
        (source_type = 'repo_path' AND blob_id IS NULL AND external_url IS NULL AND repo_path IS NOT NULL)
    """,
    "expires_at": "expires_at IS NULL OR expires_at >= created_at",
}


def upgrade() -> None:
    op.create_table(
        "tasks",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("title", sa.Text, nullable=False),
        sa.Column("spec_id", sa.Text),
        sa.Column("created_at", sa.Text, nullable=False),
        sa.Column("updated_at", sa.Text, nullable=False),
        sa.Column("request_key", sa.Text, unique=True),
    )
    op.create_index("idx_tasks_created", "tasks", ["created_at", "id"])
    op.create_table(
        "blobs",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("sha256", sa.Text, nullable=False, unique=True),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("storage_backend", sa.Text, nullable=False),
        sa.Column("blob_key", sa.Text, nullable=False),
        sa.Column("created_at", sa.Text, nullable=False),
        sa.Column("uploaded_at", sa.Text, nullable=False),
        sa.CheckConstraint("size_bytes >= 0", name="blobs_size_bytes"),
        sa.CheckConstraint(
            "length(sha256) = 64 AND ltrim(sha256, '0123456789abcdef') = ''",
            name="blobs_sha256",
        ),
    )
    _attachments()


def _attachments() -> None:
    op.create_table(
        "attachments",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("task_id", sa.Text, sa.ForeignKey("tasks.id", ondelete="CASCADE"), nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("source_type", sa.Text, nullable=False),
        sa.Column("title", sa.Text),
        sa.Column("filename", sa.Text),
        sa.Column("media_type", sa.Text),
        sa.Column("media_type_source", sa.Text, nullable=False, server_default="unknown"),
        sa.Column("blob_id", sa.Text, sa.ForeignKey("blobs.id", ondelete="RESTRICT")),
        sa.Column("external_url", sa.Text),
        sa.Column("repo_path", sa.Text),
        sa.Column("meta_json", sa.Text),
        sa.Column("created_at", sa.Text, nullable=False),
        sa.Column("updated_at", sa.Text, nullable=False),
        sa.Column("expires_at", sa.Text),
        sa.Column("request_key", sa.Text, unique=True),
        *(sa.CheckConstraint(rule, name=f"attachments_{name}") for name, rule in _ATTACHMENT_CHECKS.items()),
    )
    for name, columns in {
        "idx_attachments_task_created": ["task_id", "created_at"],
        "idx_attachments_kind": ["kind"],
        "idx_attachments_media_type": ["media_type"],
        "idx_attachments_source_type": ["source_type"],
        "idx_attachments_blob_id": ["blob_id"],
        "idx_attachments_expires_at": ["expires_at"],
    }.items():
        op.create_index(name, "attachments", columns)
    op.create_table(
        "attachment_labels",
        sa.Column("attachment_id", sa.Text, sa.ForeignKey("attachments.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("label", sa.Text, primary_key=True),
    )
    op.create_index("idx_attachment_labels_label", "attachment_labels", ["label"])
