
FORMATS: tuple[str, ...]
