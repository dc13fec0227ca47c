"""How the processes of a job find one another, keep watch and serve."""
