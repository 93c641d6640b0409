"""What the hub costs: attachments beside raw SQL, events to many clients, and its start."""
