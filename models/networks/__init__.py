"""The networks of cnnbench. When a module is imported, it registers its networks."""
