"""The machine: facts, load, energy, and checks of the measuring conditions."""
