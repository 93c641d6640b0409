"""The relational half: tables, migrations, and the two ways to open a transaction."""
