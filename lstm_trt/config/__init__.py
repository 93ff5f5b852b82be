"""What is measured: shapes, workloads, configurations, options, protocols, and what tells them apart."""
