"""How latencies are read: from recordings, and from tables that other tools wrote.

The words, from the smallest to the largest:

- *Trial*: one timed call.
- *Recording*: a file with the trials of one process, and what is known of it
  (`lstm_trt.store.schema.Recording`). A table from elsewhere has no recordings.
- *Round*: the trials of one process in memory, in order (`rounds.Round`).
- *Group*: all rounds of one configuration on one machine (`rounds.Group`).
- *Runs*: groups and where they come from (`runs.Runs`); what every answer is given.

`runs.load` reads recordings and tables. `rounds` makes groups of recordings. `tables` reads the
files of other tools, `foreign` makes groups of their rows.
"""
