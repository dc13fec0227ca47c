"""All-reduce algorithms, one module each; its name is the name in a spec."""
