"""Handshake, supervision and servers of the processes of a job."""
