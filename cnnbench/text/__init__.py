"""What goes to people: escaping, sorting, terminals, progress."""
