"""The machine: facts about it, samples of its load, and whether it is fit to measure on."""
