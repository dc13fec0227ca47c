"""The built-in optimizers of cnnbench. Each module declares one optimizer, `OPTIMIZER`."""
