"""One module per all-reduce algorithm; its name is the algorithm's name in a spec."""
