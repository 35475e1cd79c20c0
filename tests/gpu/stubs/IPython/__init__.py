"""SGLang's helpers for notebooks ask for IPython; a server has no notebook."""
