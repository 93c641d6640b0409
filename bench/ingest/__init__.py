"""What ingest costs: normalizing, inserting beside raw SQL, again, from archives, and into tables that grow."""
