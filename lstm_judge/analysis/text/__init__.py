"""The answers as text for the terminal, tables and figures; `registry.TEXTS` names the module of each."""
