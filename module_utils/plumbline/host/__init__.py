"""What the host roles need beyond Ansible's own modules: names of driver packages, and kernel settings."""
