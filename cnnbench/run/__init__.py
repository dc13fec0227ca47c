"""One run: a graph of all towers is built, measured and recorded."""
