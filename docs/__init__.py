"""The pages of the documentation, which ``cnnbench docs`` prints."""
