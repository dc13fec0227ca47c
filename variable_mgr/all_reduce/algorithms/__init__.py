"""All-reduce algorithms, one module each. The module's name is the name in a spec."""
