"""The steps from an empty database to the tables of this version, forward only."""

# The last step; a test holds it equal to the files. A database at this step needs no migration, and no Alembic.
HEAD = "0007"
