"""SGLang's arguments, log lines, phases and failures."""
