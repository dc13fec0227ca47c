"""Records of runs and all-reduces: their schema, their files, reading them back."""
