"""What this package adds to the tables of `lstm_trt.registry`."""

WORKLOADS = {"literature": "lstm_literature.workloads:LiteratureWorkload"}

PREPARERS = {"literature": "lstm_literature.preparer:PREPARER"}
