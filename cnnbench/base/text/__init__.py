"""Text for people: escaping, numbers, tables, sorting, terminals, progress."""
