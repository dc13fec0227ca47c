"""The processes of a job: who and where they are, and whether they answer."""
