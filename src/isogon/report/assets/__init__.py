"""Style and script of the pages, as files: `article.*` of a page of text, `run.*` of a run's page."""
