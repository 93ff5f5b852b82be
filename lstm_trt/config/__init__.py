"""What is measured: shapes, workloads, configurations, options, protocols, and their labels."""
