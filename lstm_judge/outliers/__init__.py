"""Outliers, clusters and the tail, with their periods and causes."""
