"""What it costs to keep attachments in order."""
