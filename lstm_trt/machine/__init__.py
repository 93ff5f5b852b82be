"""The machine: description, counters, settings, and peak rates of its cores."""
