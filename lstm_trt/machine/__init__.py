"""What this machine is, counts and allows; how fast its cores compute."""
