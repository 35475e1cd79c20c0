"""What a host is: items in groups, observed, digested and compared."""
