"""Where jobs are done: processes of this machine, a Ray cluster, a SLURM queue."""
