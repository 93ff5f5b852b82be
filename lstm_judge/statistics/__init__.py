"""What several answers use: percentiles, bursts, dependence, segments, clusters, causes."""
