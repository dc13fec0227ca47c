"""All processes of a job on one machine: ports, commands, logs, end; imports no TensorFlow."""
