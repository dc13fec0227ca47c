"""Records of runs and all-reduces: their schema, and how they are written and read."""
