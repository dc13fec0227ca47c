"""What all parts use: text, statistics, charts, files, plug-ins, the processes of a job."""
