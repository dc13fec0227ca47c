"""Facts about the machine, its load and its energy, and checks of the measuring conditions."""
