"""Reports to hand over: one HTML file that needs nothing else, a short form in Markdown, and JUnit
for CI.

`report` collects what a report says; `html`, `markdown` and `junit` write it. `explore` shows it as
a page in a notebook, `views` computes what that page draws.
"""
